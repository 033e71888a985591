"""Files are whole or absent, and one process at a time changes a deployment."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

import pytest

from dsctl.files import LockBusyError, exclusive, write_atomically


def test_an_atomic_write_leaves_the_old_text_when_it_fails(tmp_path: Path) -> None:
    target = tmp_path / "state.json"
    write_atomically(target, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(target, "new \ud800")
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


def test_an_atomic_write_keeps_secrets_private(tmp_path: Path) -> None:
    target = tmp_path / "secret"
    write_atomically(target, "key", mode=0o600)
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_held_lock_names_its_holder_and_is_free_again_afterwards(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with exclusive(lock, holder="first"):
        with pytest.raises(LockBusyError) as busy, exclusive(lock, holder="second"):
            pass
        assert busy.value.holder == "first"
    with exclusive(lock, holder="third"):
        assert lock.read_text() == "third"


def test_a_waiting_process_says_so_and_then_gets_the_lock(tmp_path: Path) -> None:
    lock, said, order = tmp_path / "lock", [], []
    entered = threading.Event()

    def waiter() -> None:
        with exclusive(lock, wait=True, on_wait=said.append):
            order.append("waiter")

    with exclusive(lock, holder="holder"):
        thread = threading.Thread(target=waiter)
        thread.start()
        entered.wait(0.2)
        order.append("holder")
    thread.join(5)
    assert said == ["holder"]
    assert order == ["holder", "waiter"]


def _hold_and_die(path: str) -> None:
    import os

    with exclusive(Path(path), holder="dying"):
        os._exit(9)


def test_a_lock_is_free_when_its_holder_was_killed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    process = multiprocessing.get_context("spawn").Process(target=_hold_and_die, args=(str(lock),))
    process.start()
    process.join(20)
    assert process.exitcode == 9
    with exclusive(lock, holder="next"):
        assert lock.read_text() == "next"
