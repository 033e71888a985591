"""A limit of any control group counts, in both versions, and page cache does not."""

from __future__ import annotations

from pathlib import Path

from dsruntime.memory import available_bytes, cgroup_rests

GIB = 1 << 30


def group(root: Path, path: str, **files: str) -> None:
    directory = root / "sys/fs/cgroup" / path
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text + "\n")


def membership(root: Path, *lines: str) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("\n".join(lines) + "\n")


def test_version_1_takes_the_tightest_of_the_groups_above(tmp_path: Path) -> None:
    membership(tmp_path, "5:cpu:/elsewhere", "4:memory:/a/b", "0::/")
    stat = f"total_inactive_file {GIB}\ntotal_active_file {GIB}"
    group(
        tmp_path,
        "memory/a/b",
        memory__limit_in_bytes=str(9 * GIB),
        memory__usage_in_bytes=str(4 * GIB),
        memory__stat=stat,
    )
    group(
        tmp_path,
        "memory/a",
        memory__limit_in_bytes=str(5 * GIB),
        memory__usage_in_bytes=str(4 * GIB),
        memory__stat=stat,
    )
    group(
        tmp_path,
        "memory",
        memory__limit_in_bytes="9223372036854771712",
        memory__usage_in_bytes=str(20 * GIB),
        memory__stat=stat,
    )
    assert sorted(cgroup_rests(tmp_path)) == [3 * GIB, 7 * GIB]


def test_version_2_knows_the_word_max(tmp_path: Path) -> None:
    membership(tmp_path, "0::/a")
    group(tmp_path, "a", memory__max="max", memory__current="1", memory__stat="file 0")
    assert cgroup_rests(tmp_path) == []
    group(tmp_path, "a", memory__max=str(2 * GIB), memory__current=str(3 * GIB))
    group(tmp_path, "a", memory__stat=f"anon 0\nfile {2 * GIB}")
    assert cgroup_rests(tmp_path) == [GIB]
    assert available_bytes(tmp_path) <= GIB


def test_no_control_groups_no_limit(tmp_path: Path) -> None:
    assert cgroup_rests(tmp_path) == []
    assert available_bytes(tmp_path) > 0
