"""Following a log: late files, rotation, floods, broken text."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsctl.engine.keeper import RotatingLog
from dsctl.supervise.logtail import LogTail


def test_a_file_that_does_not_exist_yet_has_no_lines(tmp_path: Path) -> None:
    tail = LogTail(tmp_path / "log")
    assert tail.poll() == []
    (tmp_path / "log").write_text("first\nsec")
    assert tail.poll() == ["first"]
    with (tmp_path / "log").open("a") as file:
        file.write("ond\n")
    assert tail.poll() == ["second"]


def test_an_unfinished_last_line_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("one\nthe last words")
    assert LogTail(tmp_path / "log").drain() == ["one", "the last words"]


def test_undecodable_bytes_and_carriage_returns_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"caf\xe9\r\n")
    assert LogTail(tmp_path / "log").poll() == ["caf\ufffd"]


def test_a_truncated_file_is_read_from_its_new_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a long first line\n")
    tail = LogTail(path)
    assert tail.poll() == ["a long first line"]
    path.write_text("new\n")
    assert tail.poll() + tail.poll() == ["new"]


def test_a_line_without_end_is_handed_on_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 200_000)
    tail = LogTail(path, max_bytes=100_000)
    pieces = tail.drain()
    assert "".join(pieces) == "x" * 200_000


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    chunks=st.lists(st.integers(1, 20), min_size=1, max_size=30),
    max_bytes=st.integers(200, 400),
)
def test_no_line_is_lost_or_doubled_across_rotations(
    tmp_path_factory: object, chunks: list[int], max_bytes: int
) -> None:
    """Law: polled once per rotation or more often, the tail sees each line exactly once."""
    path = tmp_path_factory.mktemp("rotation") / "log"  # type: ignore[attr-defined]
    log, tail, seen, number = RotatingLog(path, max_bytes, keep=2), LogTail(path), [], 0
    written = []
    for count in chunks:
        for _ in range(count):
            text = f"line {number}"
            number += 1
            written.append(text)
            log.write(text.encode() + b"\n")
            seen += tail.poll()
    seen += tail.drain()
    assert seen == written


def test_a_reader_that_must_keep_up_skips_what_a_flood_has_put_before_the_end(
    tmp_path: Path,
) -> None:
    """All but the newest part is left out and counted; it begins with a whole line again."""
    log = tmp_path / "log"
    log.write_text("first\n")
    tail = LogTail(log, max_bytes=100, most_behind=1000)
    assert tail.poll() == ["first"]
    with log.open("a") as file:
        file.writelines(f"line {n:04d}\n" for n in range(1000))
    lines = tail.drain()
    assert lines[-1] == "line 0999"
    assert 5 <= len(lines) <= 10
    assert all(len(line) == len("line 0000") for line in lines)
    assert tail.skipped_bytes == 10_000 - len(lines) * 10
    assert tail.poll() == []


def test_a_reader_that_is_not_far_behind_skips_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {n:04d}\n" for n in range(100)))
    tail = LogTail(log, max_bytes=100, most_behind=1000)
    assert len(tail.drain()) == 100
    assert tail.skipped_bytes == 0
