"""Runs the checks: all of them, each for itself, never stopping at the first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from dsctl.errors import ConfigError, DsctlError
from dsctl.model.finding import Finding, Report, report
from dsctl.planning.knobs import did_you_mean
from dsctl.preflight import checks
from dsctl.preflight.outcome import Outcome
from dsctl.preflight.registry import CHECKS, CheckContext, apply

if TYPE_CHECKING:
    from dsctl.model.plan import Plan

checks.load()


def run_checks(context: CheckContext, ignore: Iterable[str] = ()) -> Report:
    """The report of all checks; an ignored id turns its fail into a warn.

    Raises:
        ConfigError: `ignore` names no check.
    """
    ignored = tuple(ignore)
    for name in ignored:
        if name not in CHECKS:
            raise ConfigError(f"--ignore {name}: no such check", remedy=did_you_mean(name, CHECKS))
    findings = [_finding(name, apply(one, context)) for name, one in sorted(CHECKS.items())]
    return report(context.profile.id, findings, ignored)


def _finding(name: str, outcome: Outcome) -> Finding:
    return Finding(
        id=name,
        status=outcome.status,
        summary=outcome.summary,
        detail=outcome.detail,
        remedy=outcome.remedy,
    )


def with_plan(context: CheckContext) -> CheckContext:
    """The context with the planner's budget, where it can make one."""
    return replace(context, plan=_plan(context))


def _plan(context: CheckContext) -> Plan | None:
    from dsctl.planning.machine import machine_for, machine_from_facts
    from dsctl.planning.plan import make_plan
    from dsctl.preflight.sources import pack_path

    facts = context.facts
    machine = machine_from_facts(facts, path=pack_path(context))
    if len(machine.cards) < context.ranks:
        # What the host must have does not depend on cards that are missing here.
        machine = machine.model_copy(update={"cards": machine_for(context.profile).cards})
    try:
        return make_plan(context.profile, machine)
    except DsctlError:
        return None
