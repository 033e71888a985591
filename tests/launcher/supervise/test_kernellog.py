"""The kernel's log: what is about our engine, and nothing of anybody else's misfortune."""

from __future__ import annotations

from dsctl.supervise.kernellog import kernel_lines

KILL = (
    "6,100,5000000,-;python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0",
    "6,101,5000001,-;oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid=77,uid=0",
    "3,102,5000002,-;Memory cgroup out of memory: Killed process 77 (python) anon-rss:215040kB",
)
XID = "4,103,6000000,-;NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus."
OLD = "4,90,1000000,-;NVRM: Xid (PCI:0000:01:00): 31, pid=1"
NOISE = "6,104,6000001,-;eth0: link up"


def lines(*pids: int) -> tuple[str, ...]:
    return kernel_lines(2.0, pids, lambda: [OLD, *KILL, XID, NOISE])


def test_a_kill_of_ours_is_kept_whole() -> None:
    assert len(lines(77)) == 4


def test_the_kill_of_another_process_is_no_evidence() -> None:
    assert [text for text in lines(1234) if "memory" in text or "oom" in text] == []
    assert [text for text in lines() if "memory" in text or "oom" in text] == []


def test_what_the_cards_say_is_kept_and_what_was_before_the_start_is_not() -> None:
    assert len(lines(1234)) == 1
    assert "Xid" in lines(1234)[0]
    assert ": 79" in lines(1234)[0]
