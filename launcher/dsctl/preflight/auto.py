"""Preflight without a profile: the planner chooses, and the report says what is in the way of more.

There is one ranking, `planning.choose`; this module only adds what a plan cannot know: that a
better profile would be taken once something is mended that needs no new hardware.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dsctl.model.finding import Finding, Report, Status, report
from dsctl.model.profile import Profile
from dsctl.planning.choose import Candidate, rank_on
from dsctl.planning.machine import machine_from_facts, mended
from dsctl.preflight.registry import CheckContext
from dsctl.preflight.run import run_checks, with_plan

RUNNABLE = "profile.runnable"


def preflight_auto(
    profiles: Sequence[Profile], base: CheckContext, ignore: Iterable[str] = ()
) -> Report:
    """The report of the profile that `auto` takes here, with one finding on all the others.

    Where none fits, it is the report of what would be taken once the obstacles are mended.
    """
    ignored = tuple(ignore)
    machine = machine_from_facts(base.facts)
    ranked = rank_on(machine, profiles)
    could_be = mended(machine, base.facts)
    better = ranked[0]
    hopeful = [p for p in profiles if p.hardware.gpus <= len(could_be.cards)]
    if could_be != machine and hopeful:
        better = rank_on(could_be, hopeful)[0]
    taken = ranked[0] if ranked[0].eligible else better
    chosen = run_checks(with_plan(replace(base, profile=taken.profile)), ignored)
    if better.eligible and better.profile.id != ranked[0].profile.id:
        obstacles = chosen
        if better is not taken:
            context = replace(base, profile=better.profile, deep=False)
            obstacles = run_checks(with_plan(context), ignored)
        finding = _stands_in_the_way(ranked, better, obstacles)
    else:
        finding = _what_fits(ranked)
    return report(taken.profile.id, [*chosen.findings, finding], ignored)


def _what_fits(ranked: Sequence[Candidate]) -> Finding:
    fits = [c.profile.id for c in ranked if c.eligible]
    if not fits:
        return Finding(
            id=RUNNABLE,
            status=Status.FAIL,
            summary="no profile can run here",
            detail=_reasons(ranked),
            remedy="`dsctl plan --profile P` says what a machine would need",
        )
    others = f"; these fit too: {', '.join(fits[1:])}" if fits[1:] else ""
    return Finding(
        id=RUNNABLE,
        status=Status.PASS,
        summary=f"auto takes {fits[0]} here ({ranked[0].plan.quality}){others}",
        detail=_reasons(ranked[1:]),
    )


def _stands_in_the_way(
    ranked: Sequence[Candidate], better: Candidate, obstacles: Report
) -> Finding:
    """A better profile would be taken, were it not for things that can be mended."""
    failed = sorted((f for f in obstacles.findings if f.status is Status.FAIL), key=_pain)
    what = "".join(f"{f.summary} ({f.id})" for f in failed[:1])
    if failed[1:]:
        what += f", and {', '.join(f.id for f in failed[1:])}"
    lost = next(c.lost_because for c in ranked if c.profile.id == better.profile.id)
    takes = f"auto takes {ranked[0].profile.id} here" if ranked[0].eligible else "nothing fits now"
    return Finding(
        id=RUNNABLE,
        status=Status.WARN if ranked[0].eligible else Status.FAIL,
        summary=f"{takes}; it would take {better.profile.id} if not for: {what or lost}",
        detail=_reasons(ranked[1:] if ranked[0].eligible else ranked),
        remedy=failed[0].remedy
        if failed
        else f"free what others use, then look again: `dsctl plan --profile {better.profile.id}`",
    )


def _pain(finding: Finding) -> tuple[int, str]:
    """A card that does not answer comes first; a full disk can wait."""
    order = ("gpu", "host", "pcie")
    domain = finding.id.partition(".")[0]
    return order.index(domain) if domain in order else len(order), finding.id


def _reasons(candidates: Sequence[Candidate]) -> str:
    return "\n".join(f"{c.profile.id}: {c.lost_because}" for c in candidates)
