"""What /proc and the control groups say, as the kernel writes it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsctl.engine.identity import identify
from dsctl.supervise.samplers.memory import (
    find_cgroup,
    parse_stall,
    parse_vmstat,
    read_cgroup,
    read_host,
)
from dsctl.supervise.samplers.proc import (
    CgroupTree,
    ProcessReader,
    SessionTree,
    parse_process,
    parse_stat,
)
from dsctl.supervise.samplers.reader import Unreadable

GIB = 1 << 30
STAT = (
    b"711 (VLLM::Wor (0)) D 32607 32231 32231 0 -1 4194304 5 6 32 0 1500 22 0 0 20 0 52 0 987654 "
    b"1 2 3\n"
)
STATUS = b"""Name:	VLLM::Worker
State:	S (sleeping)
VmPin:	    1024 kB
VmLck:	    2048 kB
VmRSS:	 1000000 kB
RssAnon:	  700000 kB
RssFile:	  200000 kB
RssShmem:	  100000 kB
VmSwap:	      12 kB
Threads:	52
"""
IO = b"rchar: 5000\nwchar: 1\nread_bytes: 4096\nwrite_bytes: 512\ncancelled_write_bytes: 0\n"


def test_a_name_with_spaces_and_parentheses_does_not_shift_the_fields() -> None:
    stat = parse_stat(STAT)
    assert stat is not None
    assert (stat.state, stat.session, stat.major_faults, stat.start_ticks) == (
        "D",
        32231,
        32,
        987654,
    )
    assert stat.cpu_s == pytest.approx(1522 / os.sysconf("SC_CLK_TCK"))
    assert parse_stat(b"") is None


def test_sizes_are_bytes_and_pinned_memory_counts_as_locked() -> None:
    stat = parse_stat(STAT)
    assert stat is not None
    found = parse_process(711, stat, STATUS, IO)
    assert found.name == "VLLM::Worker"
    assert found.anonymous_bytes == 700_000 << 10
    assert found.file_bytes == 200_000 << 10
    assert found.shared_bytes == 100_000 << 10
    assert found.locked_bytes == 3072 << 10
    assert found.swapped_bytes == 12 << 10
    assert (found.read_chars, found.read_bytes, found.write_bytes) == (5000, 4096, 512)
    assert parse_process(711, stat, STATUS, None).read_chars is None


def test_a_session_is_found_with_its_children_and_without_anybody_else() -> None:
    code = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "input()\n"
        "child.communicate(b'\\n')\n"
    )
    leader = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert leader.stdout is not None
    try:
        child = int(leader.stdout.readline())
        reader = ProcessReader(SessionTree(identify(leader.pid)))
        found = reader()
        assert {p.pid for p in found} == {leader.pid, child}
        assert all(p.resident_bytes > 1 << 20 for p in found)
        assert all(p.cpu_s > 0 or p.state in "SR" for p in found)
        assert set(reader.pids) == {leader.pid, child}
    finally:
        leader.communicate(b"\n")
    assert reader() == ()


def test_vmstat_and_pressure() -> None:
    assert parse_vmstat(b"nr_free 1\npswpin 5\npswpout 6\npgmajfault 7\noom_kill 1\n") == {
        "swapped_in": 5,
        "swapped_out": 6,
        "major_faults": 7,
        "oom_kills": 1,
    }
    stall = parse_stall(
        b"some avg10=12.34 avg60=1.00 avg300=0.10 total=1\n"
        b"full avg10=3.21 avg60=0.00 avg300=0.00 total=1\n"
    )
    assert stall is not None
    assert (stall.some, stall.full) == (12.34, 3.21)
    assert parse_stall(b"") is None
    assert parse_stall(None) is None


def test_a_recorded_host_reads_like_a_live_one() -> None:
    root = Path(__file__).parents[4] / "tests" / "hosts" / "swapping"
    found = read_host(str(root))
    assert found.total_bytes > GIB
    assert found.swapped_out_bytes is not None
    assert found.memory_stall is not None
    live = read_host()
    assert 0 < live.available_bytes <= live.total_bytes
    with pytest.raises(Unreadable, match="meminfo"):
        read_host("/nonexistent")


def tree(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_a_unified_control_group_with_the_tightest_limit_above(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/system.slice/docker-1.scope"
    root = tree(
        tmp_path,
        {
            "proc/7/cgroup": "0::/system.slice/docker-1.scope\n",
            f"{group}/memory.current": "3000000000\n",
            f"{group}/memory.max": "max\n",
            f"{group}/memory.stat": "anon 1000\nfile 2000\nshmem 30\n",
            f"{group}/memory.events": "low 0\nhigh 0\nmax 4\noom 1\noom_kill 2\n",
            f"{group}/memory.swap.current": "77\n",
            f"{group}/cgroup.procs": "7\n8\n",
            "sys/fs/cgroup/system.slice/memory.max": "5000000000\n",
            "sys/fs/cgroup/system.slice/cgroup.procs": "",
        },
    )
    version, directory = find_cgroup(7, root)
    assert version == 2
    found = read_cgroup(version, directory)
    assert found.current_bytes == 3_000_000_000
    assert found.limit_bytes == 5_000_000_000
    assert (found.anonymous_bytes, found.file_bytes, found.shared_bytes) == (1000, 2000, 30)
    assert (found.swap_bytes, found.limit_hits, found.oom_kills) == (77, 4, 2)
    assert CgroupTree(directory)() == [7, 8]


def test_a_hybrid_machine_counts_memory_in_the_first_version(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/docker/abc"
    root = tree(
        tmp_path,
        {
            "proc/7/cgroup": "9:name=systemd:/x\n4:memory:/docker/abc\n0::/x\n",
            f"{group}/memory.usage_in_bytes": "3000\n",
            f"{group}/memory.limit_in_bytes": "9223372036854771712\n",
            f"{group}/memory.stat": "cache 1\nrss 2\ntotal_cache 10\ntotal_rss 20\ntotal_shmem 3\n"
            "total_swap 4\n",
            f"{group}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
            f"{group}/memory.failcnt": "6\n",
        },
    )
    version, directory = find_cgroup(7, root)
    assert version == 1
    found = read_cgroup(version, directory)
    assert found.limit_bytes is None
    assert (found.anonymous_bytes, found.file_bytes, found.shared_bytes) == (20, 10, 3)
    assert (found.swap_bytes, found.limit_hits, found.oom_kills) == (4, 6, 1)


def test_a_group_that_is_gone_has_a_reason(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="names no memory control group"):
        find_cgroup(7, str(tmp_path))
    with pytest.raises(Unreadable, match="is gone"):
        read_cgroup(2, tmp_path)
    with pytest.raises(Unreadable, match=r"cgroup\.procs"):
        CgroupTree(tmp_path)()
