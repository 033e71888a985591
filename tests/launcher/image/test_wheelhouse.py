"""A wheelhouse is judged by the sha256 of each wheel, whatever its file is called."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from dsctl.engine.lockfile import Lock, _requirements
from dsctl.engine.wheelhouse import DEBIAN_12, take_stock


def lock_of(tmp_path: Path, *texts: str) -> Lock:
    path = tmp_path / "some.lock"
    path.write_text("\n".join(texts) + "\n")
    return Lock(
        name="some",
        path=path,
        requirements=tuple(_requirements(path.read_text())),
        pythons=("3.11",),
        download_bytes=100,
        installed_bytes=100,
    )


def requirement(name: str, version: str, *contents: bytes) -> str:
    hashes = [f"    --hash=sha256:{hashlib.sha256(content).hexdigest()}" for content in contents]
    return " \\\n".join([f"{name}=={version}", *hashes])


@pytest.fixture
def house(tmp_path: Path) -> Path:
    (tmp_path / "house").mkdir()
    return tmp_path / "house"


def test_a_wheel_with_one_of_the_locks_hashes_is_good(tmp_path: Path, house: Path) -> None:
    lock = lock_of(tmp_path, requirement("Some.Name", "1.0", b"for 3.12", b"for 3.11"))
    wheel = house / "some_name-1.0-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(b"for 3.11")
    stock = take_stock(lock, house, "3.11")
    assert list(stock.good.values()) == [wheel]
    assert not stock.missing
    assert not stock.corrupt


def test_a_corrupted_wheel_is_named_with_both_hashes(tmp_path: Path, house: Path) -> None:
    lock = lock_of(tmp_path, requirement("thing", "2.0", b"right"))
    wheel = house / "thing-2.0-py3-none-any.whl"
    wheel.write_bytes(b"wrong")
    (corrupt,) = take_stock(lock, house, "3.11").corrupt
    for part in (str(wheel), *(hashlib.sha256(c).hexdigest() for c in (b"right", b"wrong"))):
        assert part in str(corrupt)


def test_the_noted_hash_is_named_where_the_lock_has_many(tmp_path: Path, house: Path) -> None:
    lock = lock_of(tmp_path, requirement("thing", "2.0", *(b"%d" % n for n in range(9))))
    wheel = house / "thing-2.0-py3-none-any.whl"
    wheel.write_bytes(b"wrong")
    right = hashlib.sha256(b"7").hexdigest()
    (house / "SHA256SUMS").write_text(f"{right}  {wheel.name}\n")
    (corrupt,) = take_stock(lock, house, "3.11").corrupt
    assert f"and not {right}" in str(corrupt)


def test_another_version_is_neither_good_nor_in_the_way(tmp_path: Path, house: Path) -> None:
    lock = lock_of(tmp_path, requirement("thing", "2.0", b"new"))
    (house / "thing-1.0-py3-none-any.whl").write_bytes(b"old")
    stock = take_stock(lock, house, "3.11")
    assert [r.name for r in stock.missing] == ["thing"]
    assert not stock.corrupt


def test_what_another_python_needs_is_not_missed(tmp_path: Path, house: Path) -> None:
    marked = requirement("backport", "1.0", b"x").replace(
        "==1.0", "==1.0 ; python_full_version < '3.11'"
    )
    assert not take_stock(lock_of(tmp_path, marked), house, "3.11").missing


def test_debian_12_takes_wheels_up_to_its_c_library() -> None:
    options = DEBIAN_12.pip_options()
    assert "manylinux_2_36_x86_64" in options
    assert "manylinux_2_37_x86_64" not in options
    assert options[options.index("--python-version") + 1] == "3.11"
