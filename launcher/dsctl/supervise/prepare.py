"""What is settled before anything is started: profile, facts, checks, plan, where and what."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dsctl.errors import ConfigError, DsctlError, KnobError, NotGoodError
from dsctl.model.endpoint import Endpoint
from dsctl.model.event import Phase
from dsctl.paths import Paths
from dsctl.progress import human_bytes
from dsctl.supervise.journal import Journal

if TYPE_CHECKING:
    from dsctl.model.deployment import Deployment
    from dsctl.model.facts import Facts
    from dsctl.model.finding import Report
    from dsctl.model.plan import Plan
    from dsctl.model.profile import Profile


#: The name that stands for the best profile of the machine.
AUTO = "auto"


@dataclass(frozen=True)
class Request:
    """What the person asked for."""

    profile: str
    overrides: dict[str, str] = field(default_factory=dict)
    engine: str | None = None
    timeout_s: float | None = None
    ignore: tuple[str, ...] = ()
    metrics: str | None = None


#: Overrides that name files or directories.
_PATHS = ("checkpoint", "pack_dir", "tls_dir")


def checked(request: Request) -> Request:
    """The request as it is kept: relative paths made absolute, so that `restart` works anywhere.

    Raises:
        ConfigError: a time-out that is none, an unknown engine, an empty path.
    """
    timeout_s = request.timeout_s
    if timeout_s is not None and not (math.isfinite(timeout_s) and timeout_s > 0):
        raise ConfigError(f"--timeout {timeout_s:g} is no time-out", remedy="give seconds above 0")
    if request.engine not in (None, "process", "docker"):
        raise ConfigError(
            f"--engine {request.engine}: unknown", remedy="`--engine process` or `docker`"
        )
    if request.metrics is not None:
        from dsctl.supervise.gauges import where_of

        where_of(request.metrics)
    overrides = dict(request.overrides)
    for key in _PATHS:
        if key in overrides:
            if not overrides[key]:
                raise ConfigError(f"--set {key}= is empty", remedy=f"e.g. `--set {key}=DIR`")
            overrides[key] = _absolute(overrides[key])
    named = request.profile
    profile = _absolute(named) if "/" in named or named.endswith((".yaml", ".yml")) else named
    return replace(request, profile=profile, overrides=overrides)


def same_again(deployment: Deployment, changes: dict[str, str]) -> Request:
    """The request that starts the very profile of a deployment, with some knobs changed.

    A profile that was given as a file is that file; what `auto` took is taken by its name.
    """
    named = deployment.requested if "/" in deployment.requested else deployment.profile
    overrides = deployment.overrides | changes
    return Request(named, overrides, deployment.engine, deployment.timeout_s, deployment.ignore)


def _absolute(text: str) -> str:
    """A path that is there from here, made absolute; another (a shipped one) as it is."""
    path = Path(text).expanduser()
    return str(path.absolute()) if path.exists() else text


@dataclass(frozen=True)
class Prepared:
    """All that is known before anything is started.

    `others`: why `--profile auto` did not take the other profiles, by id; `engine_why`: why the
    engine is a process, or containers.
    """

    profile: Profile
    facts: Facts
    report: Report
    plan: Plan | None
    endpoint: Endpoint
    checkpoint: Path
    engine: str
    others: dict[str, str] = field(default_factory=dict)
    engine_why: str = ""


def prepare(request: Request, paths: Paths) -> Prepared:
    """Profile, facts, checks and plan; nothing is started or written.

    Raises:
        ConfigError: the profile or an override is bad.
    """
    from dsctl.engine.containers import guarded, refuse_open_process
    from dsctl.host.collect import collect
    from dsctl.planning.catalog import load_profile
    from dsctl.planning.choose import choose
    from dsctl.planning.machine import machine_from_facts
    from dsctl.planning.packs import with_pack
    from dsctl.preflight.registry import CheckContext
    from dsctl.preflight.run import run_checks
    from dsctl.supervise.selection import checkpoint_of, endpoint_of, engine_of

    others: dict[str, str] = {}
    if request.profile == AUTO:
        facts = collect()
        best, *rest = choose(machine_from_facts(facts), request.overrides)
        profile, others = best.profile, {c.profile.id: c.lost_because for c in rest}
    else:
        profile = load_profile(request.profile, request.overrides)
        facts = collect()
    checkpoint = checkpoint_of(profile)
    profile = with_pack(profile, checkpoint, paths)
    plan = _plan(profile, facts, checkpoint)
    choice = engine_of(profile, request.engine, facts)
    context = CheckContext(facts, profile, plan, files=Path("/"), paths=paths, engine=choice.kind)
    endpoint = endpoint_of(profile)
    if choice.kind == "docker":
        endpoint = guarded(endpoint, profile, paths)
    else:
        refuse_open_process(profile)
    return Prepared(
        profile=profile,
        facts=facts,
        report=run_checks(context, request.ignore),
        plan=plan,
        endpoint=endpoint,
        checkpoint=checkpoint,
        engine=choice.kind,
        others=others,
        engine_why=choice.why,
    )


def _plan(profile: Profile, facts: Facts, checkpoint: Path) -> Plan | None:
    """The budget, or None for a checkpoint that cannot be read: a check says what is wrong."""
    from dsctl.planning.machine import machine_from_facts
    from dsctl.planning.plan import make_plan

    there = checkpoint if (checkpoint / "config.json").is_file() else None
    try:
        return make_plan(profile, machine_from_facts(facts), checkpoint=there)
    except KnobError:
        raise  # the engine would say the same, half a minute later
    except DsctlError:
        return None


def judge(prepared: Prepared, journal: Journal) -> None:
    """Tell what the checks and the plan found.

    Raises:
        NotGoodError: a check failed, the plan does not fit, or it cannot be started at all.
    """
    from dsctl.model.finding import Status
    from dsctl.supervise.selection import refuse_what_cannot_start

    if prepared.others:
        journal.say(
            Phase.PREFLIGHT,
            "chosen",
            f"auto: takes {prepared.profile.id}; `dsctl plan --profile auto` says why",
            others=prepared.others,
        )
    where = {"docker": "containers", "process": "a process"}[prepared.engine]
    journal.say(
        Phase.PREFLIGHT, "engine", f"runs in {where}: {prepared.engine_why}", engine=prepared.engine
    )
    for finding in prepared.report.findings:
        if finding.status in (Status.FAIL, Status.WARN):
            journal.say(
                Phase.PREFLIGHT,
                f"finding-{finding.status}",
                f"{finding.id}: {finding.summary}",
                id=finding.id,
                remedy=finding.remedy,
            )
    refuse_what_cannot_start(prepared.profile)
    failed = [f for f in prepared.report.findings if f.status is Status.FAIL]
    if failed:
        raise NotGoodError(
            f"preflight failed for {prepared.profile.id}: {failed[0].id}: {failed[0].summary}"
            + (f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""),
            remedy=failed[0].remedy,
        )
    journal.say(Phase.PREFLIGHT, "preflight", f"checked: {prepared.report.verdict}")
    plan = prepared.plan
    if plan is None:
        return
    refuse_what_does_not_fit(plan)
    need = human_bytes(plan.host.load_peak_bytes)
    journal.say(
        Phase.PREFLIGHT,
        "plan",
        f"planned: {plan.verdict}, up to {need} of host memory, "
        f"{plan.kv.tokens:,} tokens of KV cache",
        plan=plan.model_dump(mode="json"),
    )


def refuse_what_does_not_fit(plan: Plan) -> None:
    """Say what is missing.

    Raises:
        NotGoodError: the plan does not fit this machine.
    """
    if not plan.fits:
        raise NotGoodError(
            f"{plan.profile} does not fit this machine: {'; '.join(plan.reasons)}",
            remedy=f"see `dsctl plan --profile {plan.profile}`; it says what would fit",
        )
