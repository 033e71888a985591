"""`--fix`: what is safe and reversible, as exact commands, undone when one of them fails."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsctl.errors import DsctlError
from dsctl.model.finding import Report, Status
from dsctl.preflight.outcome import gib
from dsctl.preflight.registry import CheckContext

_GIB = 1 << 30
#: Room that a swap file must leave on its disk.
_LEAVE_BYTES = 20 * _GIB
_SWAP_FILE = "/swapfile-dsctl"
_MEMLOCK_FILE = "/etc/security/limits.d/90-dsctl.conf"


@dataclass(frozen=True)
class Step:
    """One command; `text_in` goes to its standard input; `undo` takes it back."""

    argv: tuple[str, ...]
    text_in: str | None = None
    undo: tuple[str, ...] | None = None

    @property
    def text(self) -> str:
        """As a person would type it."""
        command = shlex.join(self.argv)
        if self.text_in is None:
            return command
        return f"printf %s {shlex.quote(self.text_in)} | {command}"


@dataclass(frozen=True)
class Fix:
    """What mends one finding."""

    finding: str
    title: str
    steps: tuple[Step, ...]

    @property
    def undo_text(self) -> str:
        """The commands that take all of it back, last step first."""
        undo = [shlex.join(s.undo) for s in reversed(self.steps) if s.undo is not None]
        return " && ".join(undo) or "nothing to undo"


def fixes_for(context: CheckContext, report: Report) -> list[Fix]:
    """What can be mended of a report; pure but for looking whether files are there already."""
    bad = {f.id for f in report.findings if f.status in (Status.FAIL, Status.WARN)}
    makers: dict[str, Callable[[CheckContext], Fix | None]] = {
        "host.swap": _swap,
        "host.memlock": _memlock,
        "pcie.p2p-verdict": _verdicts,
    }
    made = [make(context) for id_, make in makers.items() if id_ in bad]
    return [fix for fix in made if fix is not None]


def _sudo(*argv: str) -> tuple[str, ...]:
    return argv if os.geteuid() == 0 else ("sudo", *argv)


def swap_size(context: CheckContext, free_bytes: int) -> int | None:
    """Bytes of a swap file: what the peak lacks and 8 GiB, at least 16, in whole GiB; None where
    the disk has no room for it."""
    memory = context.facts.memory
    if memory is None:
        return None
    lacking = max(0, context.host_peak_bytes - memory.available_bytes)
    size = -(-max(16 * _GIB, lacking + 8 * _GIB) // _GIB) * _GIB
    return size if free_bytes - size >= _LEAVE_BYTES else None


def _swap(context: CheckContext) -> Fix | None:
    disk = context.facts.disk_of(_SWAP_FILE)
    if disk is None or disk.fstype not in ("ext4", "xfs", "btrfs") or disk.rotational:
        return None
    if Path(_SWAP_FILE).exists() or any(d.path == _SWAP_FILE for d in context.facts.swap or ()):
        return None
    size = swap_size(context, disk.free_bytes)
    if size is None:
        return None
    remove = _sudo("rm", "-f", _SWAP_FILE)
    if disk.fstype == "btrfs":
        make = Step(
            _sudo("btrfs", "filesystem", "mkswapfile", "--size", f"{size // _GIB}g", _SWAP_FILE),
            undo=remove,
        )
        steps: tuple[Step, ...] = (make,)
    else:
        # Not fallocate: xfs makes holes that swapon refuses.
        fill = ("dd", "if=/dev/zero", f"of={_SWAP_FILE}", "bs=1M", f"count={size >> 20}")
        steps = (
            Step(_sudo("install", "-m", "600", "/dev/null", _SWAP_FILE), undo=remove),
            Step(_sudo(*fill, "status=none")),
            Step(_sudo("mkswap", _SWAP_FILE)),
        )
    on = Step(_sudo("swapon", _SWAP_FILE), undo=_sudo("swapoff", _SWAP_FILE))
    return Fix("host.swap", f"make and enable a swap file of {gib(size)}", (*steps, on))


def _memlock(context: CheckContext) -> Fix | None:
    if Path(_MEMLOCK_FILE).exists():
        return None
    write = Step(
        _sudo("tee", _MEMLOCK_FILE),
        text_in="* - memlock unlimited\n",
        undo=_sudo("rm", "-f", _MEMLOCK_FILE),
    )
    return Fix("host.memlock", "let users lock memory (from the next login on)", (write,))


def _verdicts(context: CheckContext) -> Fix | None:
    system = context.facts.system
    booted = system.booted_at_s if system is not None else None
    stale = [
        Path(v.path)
        for v in context.facts.p2p_verdicts or ()
        if booted is not None and v.modified_at_s < booted
    ]
    if not stale:
        return None
    steps = tuple(
        Step(
            ("mv", str(path), f"{path}.stale"),
            undo=("mv", f"{path}.stale", str(path)),
        )
        for path in stale
    )
    return Fix("pcie.p2p-verdict", "set the stale verdict on peer access aside", steps)


class FixFailedError(DsctlError):
    """A step failed; what was done before it has been undone."""


Runner = Callable[[Sequence[str], str | None], "tuple[int, str]"]


def run_step(argv: Sequence[str], text_in: str | None) -> tuple[int, str]:
    """Runs a command; its exit code and what it said."""
    if shutil.which(argv[0]) is None:
        return 127, f"{argv[0]}: not found"
    done = subprocess.run(list(argv), input=text_in, capture_output=True, text=True, check=False)
    return done.returncode, (done.stderr or done.stdout).strip()


def carry_out(fix: Fix, run: Runner = run_step) -> None:
    """Runs the steps; when one fails or is interrupted, undoes it and those before it.

    Raises:
        FixFailedError: a step failed, everything is as before (or says what is not).
    """
    begun: list[Step] = []
    try:
        for step in fix.steps:
            begun.append(step)
            code, said = run(step.argv, step.text_in)
            if code != 0:
                left = _undo(begun, run)
                raise FixFailedError(
                    f"{fix.finding}: `{step.text}` failed: {said or f'exit code {code}'}"
                    + ("; all is as before" if not left else f"; NOT undone: {left}"),
                    remedy=f"undo by hand: {left}" if left else "run the commands by hand to see",
                )
    except KeyboardInterrupt:
        _undo(begun, run)
        raise


def _undo(begun: list[Step], run: Runner) -> str:
    """Takes steps back, last first; the commands that did not work.

    The step that failed is taken back too, where that is a removal (it may have begun to write).
    """
    failed = []
    for number, step in enumerate(reversed(begun)):
        if step.undo is None or (number == 0 and not _removes(step.undo)):
            continue
        code, _ = run(step.undo, None)
        if code != 0:
            failed.append(shlex.join(step.undo))
    return " && ".join(failed)


def _removes(argv: Sequence[str]) -> bool:
    return "rm" in argv[:2]
