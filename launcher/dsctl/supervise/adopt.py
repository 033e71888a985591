"""Takes up an engine that runs: from its record and what was kept beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dsctl.background import Background
from dsctl.engine.base import Engine
from dsctl.engine.select import engine_for
from dsctl.engine.state import StateDirectory
from dsctl.errors import DsctlError
from dsctl.model.deployment import Deployment
from dsctl.model.sample import ContainerEvent
from dsctl.paths import user_paths
from dsctl.supervise.attempt import Attempt
from dsctl.supervise.journal import Journal
from dsctl.supervise.observer import Observer
from dsctl.supervise.shell import Shell
from dsctl.supervise.situation import Situation, read_situation
from dsctl.supervise.watch import Watch


def attempt_for(
    deployment: Deployment, state: StateDirectory, journal: Journal, shell: Shell
) -> Attempt | None:
    """What watches (or starts again) the recorded engine; None where nothing is known of it."""
    situation = read_situation(state) or _situation_again(deployment)
    if situation is None:
        return None
    return make_attempt(deployment, situation, state, journal, shell)


def _situation_again(deployment: Deployment) -> Situation | None:
    """The situation from the profile as it is today, where none was kept."""
    from dsctl.supervise.prepare import prepare, same_again
    from dsctl.supervise.situation import situation_of
    from dsctl.supervise.start import texts

    try:
        request = same_again(deployment, texts(deployment.changes))
        return situation_of(prepare(request, user_paths()))
    except DsctlError:
        return None


def make_attempt(
    deployment: Deployment,
    situation: Situation,
    state: StateDirectory,
    journal: Journal,
    shell: Shell,
) -> Attempt:
    """An attempt with everything that its watch needs."""
    engine = engine_for(deployment.engine, state)

    def watch_for(running: Deployment, age_s: float) -> Watch:
        return _watch(running, age_s, situation, state, journal, shell, engine)

    return Attempt(engine, state, journal, shell, situation, watch_for)


def _watch(
    deployment: Deployment,
    age_s: float,
    situation: Situation,
    state: StateDirectory,
    journal: Journal,
    shell: Shell,
    engine: Engine,
) -> Watch:
    from dsctl.supervise.probes import probes_of
    from dsctl.supervise.readiness import Readiness
    from dsctl.supervise.selection import timeout_of
    from dsctl.supervise.server import HttpServer

    asked = deployment.timeout_s
    timeout_s = asked if asked is not None else timeout_of(situation.profile)
    observer = observer_for(deployment, situation, state, journal, engine)
    if observer is not None:
        observer.start(deployment.phase)
    return Watch(
        engine=engine,
        state=state,
        journal=journal,
        readiness=Readiness(
            server=HttpServer(deployment.endpoint, patience_s=timeout_s),
            model=deployment.model,
            probes=probes_of(situation.profile),
        ),
        clock=shell.clock,
        wait=shell.wait,
        deadline=shell.clock() + timeout_s - age_s,
        observer=observer,
        engine_age_s=age_s,
    )


def observer_for(
    deployment: Deployment,
    situation: Situation,
    state: StateDirectory,
    journal: Journal,
    engine: Engine,
) -> Observer | None:
    """The eyes on a deployment, with the rules that judge what they see."""
    from dsctl.engine.identity import is_alive
    from dsctl.supervise.past import key_of
    from dsctl.supervise.rules.context import Context, limits_of
    from dsctl.supervise.samplers.history import read_history
    from dsctl.supervise.samplers.sampling import Sampling, Subject
    from dsctl.supervise.selection import checkpoint_of

    process = deployment.engine_process
    if process is None:
        return None
    profile, history = situation.profile, read_history(state.history_file)
    key = key_of(profile)
    expected = history.expected_s(key)
    pack = profile.value("pack_dir")
    context = Context(
        phase_began=0.0,
        plan=situation.plan,
        limits=limits_of(profile),
        expected_s=expected,
        expected_from="history" if expected else "",
        acceptance=history.acceptance(key),
        peer_to_peer=profile.value("peer_to_peer", "on") != "off",
    )
    subject = Subject(
        engine=process,
        endpoint=deployment.endpoint,
        log=engine.log_path(deployment),
        checkpoint=(checkpoint_of(profile), *((Path(pack),) if pack else ())),
        container=deployment.engine == "docker",
        gpus=_cards(situation),
    )
    return Observer(
        eyes=Sampling(subject, events=_container_events(deployment, state)),
        alive=lambda: is_alive(process),
        context=context,
        journal=journal,
        file=state.samples_file,
        background=Background(user_paths().background),
    )


def _cards(situation: Situation) -> frozenset[int] | None:
    """Indices of the engine's cards; None: all there are."""
    from dsctl.planning.cards import chosen

    taken = chosen(situation.profile.hardware, situation.facts.gpus)
    return frozenset(gpu.index for gpu in taken) or None


def _container_events(
    deployment: Deployment, state: StateDirectory
) -> Callable[[], list[ContainerEvent]] | None:
    if deployment.engine != "docker":
        return None
    from dsctl.engine.docker import project_of
    from dsctl.engine.docker_events import DockerEvents

    return DockerEvents(project_of(state))
