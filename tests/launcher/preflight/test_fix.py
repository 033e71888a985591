"""--fix: what is shown is what runs, and a failure in the middle leaves nothing behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dsctl.host.collect import collect
from dsctl.model.facts import Facts, P2pVerdict
from dsctl.planning.catalog import load_profile
from dsctl.preflight.fix import Fix, FixFailedError, Step, carry_out, fixes_for, swap_size
from dsctl.preflight.registry import CheckContext
from dsctl.preflight.run import run_checks, with_plan

HOSTS = Path(__file__).parents[2] / "hosts"
GIB = 1 << 30


def context_for(facts: Facts, name: str = "dual96-native") -> CheckContext:
    return with_plan(CheckContext(facts, load_profile(name)))


def test_a_host_without_swap_is_offered_a_swap_file_on_its_ssd() -> None:
    facts = collect(HOSTS / "workstation-dual-healthy")
    memory = facts.memory
    assert memory is not None
    bare = facts.model_copy(
        update={"swap": (), "memory": memory.model_copy(update={"available_bytes": 8 * GIB})}
    )
    context = context_for(bare)
    (fix,) = [f for f in fixes_for(context, run_checks(context)) if f.finding == "host.swap"]
    texts = [step.text for step in fix.steps]
    assert texts[0].endswith("install -m 600 /dev/null /swapfile-dsctl")  # never readable by others
    assert texts[-1].endswith("swapon /swapfile-dsctl")
    assert "swapoff /swapfile-dsctl && " in fix.undo_text
    assert fix.undo_text.endswith("rm -f /swapfile-dsctl")


def test_a_swap_file_never_fills_the_disk() -> None:
    context = context_for(collect(HOSTS / "swapping"))
    assert swap_size(context, 30 * GIB) is None
    size = swap_size(context, 200 * GIB)
    assert size is not None
    assert size % GIB == 0


def test_a_healthy_host_has_nothing_to_fix() -> None:
    context = context_for(collect(HOSTS / "workstation-dual-healthy"))
    assert fixes_for(context, run_checks(context)) == []


def test_a_stale_verdict_is_set_aside_for_real_and_comes_back(tmp_path: Path) -> None:
    verdict = tmp_path / "gpu_p2p_access_cache_for_0,1.json"
    verdict.write_text("{}")
    facts = collect(HOSTS / "workstation-dual-iommu").model_copy(
        update={
            "p2p_verdicts": (
                P2pVerdict(path=str(verdict), modified_at_s=1.0, devices="0,1", grants=True),
            )
        }
    )
    context = context_for(facts)
    (fix,) = [f for f in fixes_for(context, run_checks(context)) if "verdict" in f.finding]
    carry_out(fix)
    assert not verdict.exists()
    (step,) = fix.steps
    assert step.undo is not None
    carry_out(Fix("x", "undo", (Step(step.undo),)))
    assert verdict.read_text() == "{}"


class Recorder:
    """Runs nothing; fails the command that begins with `failing`."""

    def __init__(self, failing: str) -> None:
        self.failing = failing
        self.ran: list[str] = []

    def __call__(self, argv: Sequence[str], text_in: str | None) -> tuple[int, str]:
        self.ran.append(" ".join(argv))
        if self.ran[-1].startswith(self.failing):
            if self.failing == "interrupt":
                raise KeyboardInterrupt
            return 1, "no space"
        return 0, ""


FIX = Fix(
    "host.swap",
    "t",
    (
        Step(("make",), undo=("rm", "file")),
        Step(("fill",)),
        Step(("on",), undo=("off",)),
    ),
)


def test_a_step_that_fails_undoes_what_came_before_it_in_reverse() -> None:
    run = Recorder("on")
    with pytest.raises(FixFailedError, match="no space; all is as before"):
        carry_out(FIX, run)
    assert run.ran == ["make", "fill", "on", "rm file"]


def test_a_first_step_that_fails_half_way_is_removed_too() -> None:
    run = Recorder("make")
    with pytest.raises(FixFailedError):
        carry_out(FIX, run)
    assert run.ran == ["make", "rm file"]


def test_an_interrupt_undoes_as_well() -> None:
    run = Recorder("interrupt")
    interrupted = Fix("x", "t", (FIX.steps[0], Step(("interrupt",)), FIX.steps[2]))
    with pytest.raises(KeyboardInterrupt):
        carry_out(interrupted, run)
    assert run.ran == ["make", "interrupt", "rm file"]


def test_what_could_not_be_undone_is_said() -> None:
    class Stubborn(Recorder):
        def __call__(self, argv: Sequence[str], text_in: str | None) -> tuple[int, str]:
            super().__call__(argv, text_in)
            return (1, "no") if argv[0] in ("on", "rm") else (0, "")

    with pytest.raises(FixFailedError, match="NOT undone: rm file"):
        carry_out(FIX, Stubborn(""))


def test_commands_that_are_not_there_fail_in_words() -> None:
    with pytest.raises(FixFailedError, match="not found"):
        carry_out(Fix("x", "t", (Step(("no-such-command-here",)),)))
