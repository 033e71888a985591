"""Alive is progress: iterations while requests run, not `/health`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dsctl.model.event import Phase
from dsctl.model.sample import Action, EngineMetrics, Level, Verdict, Window
from dsctl.supervise.rules import Context
from dsctl.supervise.rules.alive import acceptance, acceptance_collapse, alive, learn, recovered
from tests.support.samples import log, metrics, process, sample, spinning, window

SERVING = Context(phase_began=0.0)


def judged(seconds: float, parts: Any, phase: Phase = Phase.READY) -> Verdict | None:
    return alive(window(seconds, parts, phase=phase, every_s=5.0), SERVING)


def frozen(t: float) -> dict[str, Any]:
    return {"metrics": metrics(running=2.0, waiting=3.0), "http_ok": True}


def test_requests_run_and_no_iteration_for_the_grace_is_stalled() -> None:
    found = judged(130, frozen)
    assert found is not None
    assert (found.cause, found.level) == ("engine.stalled", Level.ACT)
    assert "2 running and 3 waiting requests, and not one iteration for 2 min 00 s" in found.summary
    assert found.advice is not None
    assert found.advice.action is Action.RESTART


@pytest.mark.parametrize(
    ("what", "parts"),
    [
        ("it iterates", lambda t: {"metrics": metrics(running=2.0, iterations=t)}),
        ("it iterates slowly", lambda t: {"metrics": metrics(running=2.0, iterations=t // 60)}),
        ("nobody asks", lambda t: {"metrics": metrics()}),
        ("they have just come", lambda t: {"metrics": metrics(running=float(t > 60))}),
        ("there is no counter", lambda t: {"metrics": metrics(running=2.0, iterations=None)}),
        ("nobody can tell", lambda t: {"metrics": None}),
    ],
)
def test_it_is_well_when(what: str, parts: Any) -> None:
    assert judged(130, parts) is None, what


def test_before_the_grace_is_over_nothing_is_said() -> None:
    assert judged(60, frozen) is None


def test_a_start_is_none_of_this_rule() -> None:
    assert judged(130, frozen, Phase.WARMING) is None


def test_cards_that_spin_say_why_it_stalls() -> None:
    found = judged(130, lambda t: frozen(t) | {"gpus": (spinning(0), spinning(1))})
    assert found is not None
    assert found.cause == "comm.allreduce-spin"


CORE = process(pid=11, name="VLLM::EngineCor")
WORKERS = (process(pid=12), process(pid=13))
API = process(pid=10, name="vllm")


@pytest.mark.parametrize(
    ("after", "dead"),
    [
        ((API, CORE, *WORKERS), False),
        ((API, *WORKERS), True),
        ((API, CORE, WORKERS[0]), True),
        ((API, CORE.model_copy(update={"state": "Z"}), *WORKERS), True),
        ((API,), True),
    ],
)
def test_a_core_that_is_gone_behind_an_api_that_answers(after: Any, dead: bool) -> None:
    def parts(t: float) -> dict[str, Any]:
        return {"http_ok": True, "processes": after if t > 20 else (API, CORE, *WORKERS)}

    found = judged(40, parts)
    assert (found.cause if found else None) == ("engine.dead-behind-healthy-api" if dead else None)


def test_an_api_that_does_not_answer_is_not_healthy() -> None:
    def parts(t: float) -> dict[str, Any]:
        return {"http_ok": False, "processes": (API,) if t > 20 else (API, CORE)}

    assert judged(40, parts) is None
    found = judged(140, lambda t: {"http_ok": False})
    assert found is not None
    assert found.cause == "engine.stalled"


def test_an_engine_without_cores_of_that_name_is_left_alone() -> None:
    assert judged(40, lambda t: {"http_ok": True, "processes": (API,)}) is None


def test_it_has_recovered_when_it_iterates_or_has_nothing_to_do() -> None:
    def two(before: EngineMetrics, now: EngineMetrics) -> Window:
        return window(5, lambda t: {"metrics": now if t else before}, every_s=5.0)

    busy = metrics(running=1.0, iterations=5.0)
    assert recovered(two(busy, metrics(running=1.0, iterations=6.0)))
    assert recovered(two(busy, metrics(running=0.0, iterations=5.0)))
    assert not recovered(two(busy, busy))


def drafting(share: float, drafts_per_s: float = 40.0) -> Window:
    def parts(t: float) -> dict[str, Any]:
        drafts = t * drafts_per_s
        told = metrics(drafts=drafts, draft_tokens=5 * drafts, accepted_tokens=5 * drafts * share)
        return {"metrics": told, "log": log(news_at=1000.0 + t)}

    return window(60, parts, phase=Phase.READY, every_s=5.0)


@pytest.mark.parametrize(("share", "warned"), [(0.35, False), (0.2, False), (0.1, True)])
def test_acceptance_is_held_against_its_own_baseline(share: float, warned: bool) -> None:
    found = acceptance_collapse(drafting(share), replace(SERVING, acceptance=0.35))
    assert (found is not None) is warned
    if found is not None:
        assert found.level is Level.WARN
        assert "10%" in found.summary
        assert "35%" in found.summary


def test_a_few_drafts_say_nothing() -> None:
    few = drafting(0.05, drafts_per_s=2.0)
    assert acceptance(few, 300) is None
    assert acceptance_collapse(few, replace(SERVING, acceptance=0.35)) is None


def test_the_baseline_learns_but_never_a_collapse() -> None:
    assert learn(None, drafting(0.4), SERVING) == pytest.approx(0.4)
    assert learn(0.3, drafting(0.4), SERVING) == pytest.approx(0.3002)
    assert learn(0.4, drafting(0.1), SERVING) == 0.4
    assert learn(0.4, window(60, phase=Phase.READY), SERVING) == 0.4


def test_a_slide_over_minutes_is_noticed_though_the_baseline_learns_all_the_while() -> None:
    accepted, baseline, warned = 0.0, None, False
    samples = []
    for look in range(400):
        share = max(0.05, 0.4 - look * 0.002)  # from 40 % to 5 % within a quarter of an hour
        accepted += 5 * 100 * share
        told = metrics(drafts=100.0 * look, draft_tokens=500.0 * look, accepted_tokens=accepted)
        samples.append(sample(5.0 * look, Phase.READY, metrics=told))
        seen = Window(samples=tuple(samples[-120:]))
        context = replace(SERVING, acceptance=baseline)
        warned = warned or acceptance_collapse(seen, context) is not None
        baseline = learn(baseline, seen, context)
    assert warned
