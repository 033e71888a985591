"""Debian packages: the lock, and what a directory has of it."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from dsctl.errors import ConfigError
from dsctl.image.debs import Deb, DebLock, missing_debs, read_deb_lock
from dsctl.image.names import TARGETS, lock_directory
from tools.lock_debs import wanted


def deb(name: str, content: bytes) -> Deb:
    return Deb(
        name=name,
        version="1:2-3",
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
        path=f"debian/pool/main/{name}_2-3_amd64.deb",
    )


def test_missing_and_corrupted_packages_are_told_apart(tmp_path: Path) -> None:
    debs = [deb("good", b"good"), deb("bad", b"right"), deb("gone", b"gone")]
    lock = DebLock(locked_at="20260101T000000Z", packages=tuple(debs))
    (tmp_path / "good_2-3_amd64.deb").write_bytes(b"good")
    (tmp_path / "bad_2-3_amd64.deb").write_bytes(b"wrong")
    missing, corrupt = missing_debs(lock, tmp_path)
    assert [d.name for d in missing] == ["bad", "gone"]
    (sentence,) = corrupt
    assert "bad_2-3_amd64.deb" in sentence
    assert hashlib.sha256(b"wrong").hexdigest() in sentence
    assert debs[1].sha256 in sentence


@pytest.mark.parametrize("target", TARGETS)
def test_the_shipped_locks_have_exactly_the_packages_that_are_listed(target: str) -> None:
    listed = wanted((lock_directory() / f"{target}.debs.in").read_text())
    lock = read_deb_lock(lock_directory() / f"{target}.debs.json")
    assert [(d.name, d.build) for d in lock.packages] == listed
    assert all(re.fullmatch("[0-9a-f]{64}", d.sha256) for d in lock.packages)
    assert len({d.file_name for d in lock.packages}) == len(lock.packages)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "Invalid JSON"),
        (json.dumps({"locked_at": "x", "packages": [{"name": "a"}]}), "packages.0.version"),
        (json.dumps({"locked_at": "x", "packages": [], "more": 1}), "more"),
    ],
)
def test_a_malformed_lock_is_one_line_with_file_and_key(
    tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "cpu.debs.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_deb_lock(path)
    assert str(path) in caught.value.message
    assert says in caught.value.message


def test_a_missing_lock_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cpu\.debs\.json: No such file"):
        read_deb_lock(tmp_path / "cpu.debs.json")
