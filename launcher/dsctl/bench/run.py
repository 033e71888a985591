"""Runs the grid of a benchmark; every cell is stored when it is done, and kept on resume."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from dsctl.bench.engine_metrics import draft_stats, fetch_counters
from dsctl.bench.figures import summarise
from dsctl.bench.power import PowerMeter
from dsctl.bench.prompts import PromptMaker, messages
from dsctl.bench.schema import BenchResult, Cell, Round, Sample, Spec, Summary
from dsctl.bench.store import load_bench, save_bench
from dsctl.client import Client, Completion
from dsctl.client.http import Recording
from dsctl.errors import ConfigError, EngineError
from dsctl.measure.subject import Subject

_CHAT = "/v1/chat/completions"


class Observer(Protocol):
    """Sees cells begin and end."""

    def cell_begins(self, cell: Cell) -> None:
        """A cell is about to be measured."""

    def cell_ends(self, cell: Cell, summary: Summary) -> None:
        """A cell is measured."""


def run_bench(
    spec: Spec,
    subject: Subject,
    out: Path | None = None,
    *,
    command: str = "",
    observer: Observer | None = None,
    now: Callable[[], float] = time.time,
) -> BenchResult:
    """Measure every cell of the grid that `out` does not hold yet.

    Raises:
        ConfigError: `out` holds another benchmark.
        EngineError: not a single request of a cell came back.
    """
    with Client(subject.target) as client:
        maker = PromptMaker(client, subject.model, spec.corpus, spec.seed)
        result = _begin(spec, subject, out, maker, command, now)
        done = {cell.key: cell for cell in result.cells}
        bench = Bench(client, subject.model, spec, maker)
        bench.warm_up()
        for plan in grid(spec):
            if plan.key in done:
                continue
            if observer:
                observer.cell_begins(plan)
            cell = bench.cell(plan, subject.conditions.max_model_len)
            summary = summarise(cell)
            if cell.rounds and summary.ttft_s is None:
                raise EngineError(
                    f"no request came back: {'; '.join(summary.failures) or 'no token arrived'}",
                    remedy="see `dsctl status` and `dsctl logs`; run it again to go on from here",
                )
            result = result.model_copy(update={"cells": (*result.cells, cell)})
            if out is not None:
                save_bench(result, out)
            if observer:
                observer.cell_ends(cell, summary)
    return result


def grid(spec: Spec) -> Iterator[Cell]:
    """All cells, cheap ones first."""
    for depth in spec.depths:
        for prefill in spec.prefill:
            for decode in spec.decode:
                for concurrency in spec.concurrency:
                    for cache in spec.caches:
                        if cache == "warm" and not depth:
                            continue  # nothing there to be warm
                        yield Cell(
                            prefill=prefill,
                            decode=decode,
                            depth=depth,
                            concurrency=concurrency,
                            cache=cache,
                            rounds=(),
                        )


def _begin(
    spec: Spec,
    subject: Subject,
    out: Path | None,
    maker: PromptMaker,
    command: str,
    now: Callable[[], float],
) -> BenchResult:
    fresh = BenchResult(
        created=now(),
        command=command,
        conditions=subject.conditions,
        spec=spec,
        token_counts=maker.counts,
        cells=(),
    )
    if out is None or not out.exists():
        return fresh
    there = load_bench(out)
    if there.spec != spec or there.conditions.digest != subject.conditions.digest:
        raise ConfigError(
            f"{out} holds a benchmark of something else",
            remedy="give another --out; results of different things are never mixed",
        )
    return there


class Bench:
    """Measures cells with one client."""

    def __init__(self, client: Client, model: str, spec: Spec, maker: PromptMaker) -> None:
        self._client, self._model, self._spec, self._maker = client, model, spec, maker
        self._meter = PowerMeter()

    def warm_up(self) -> None:
        """One short request, so that connections and lazy parts of the engine exist."""
        self._client.measure(_CHAT, self._body(messages("", "Say something."), 8))

    def latency_s(self) -> float:
        """The shortest of three empty requests: network and server without any work."""
        times = []
        for _ in range(3):
            began = time.perf_counter()
            self._client.models()
            times.append(time.perf_counter() - began)
        return min(times)

    def cell(self, plan: Cell, window: int | None) -> Cell:
        """A cell measured, or skipped with the reason."""
        needs = plan.depth + plan.prefill + plan.decode + 64
        if window is not None and needs > window:
            why = f"needs {needs} tokens, the window is {window}"
            return plan.model_copy(update={"skipped": why})
        rounds = tuple(self._round(plan) for _ in range(self._spec.runs))
        return plan.model_copy(update={"rounds": rounds})

    def _round(self, plan: Cell) -> Round:
        asks = [self._prompt(plan) for _ in range(plan.concurrency)]
        if plan.cache == "warm":
            for context, _ in asks:
                self._client.measure(_CHAT, self._body(messages(context, "."), 1))
        bodies = [self._body(messages(*ask), plan.decode) for ask in asks]
        latency = self.latency_s()
        before = fetch_counters(self._client)
        self._meter.start()
        samples = at_once(self._client, bodies)
        power = self._meter.stop()
        after = fetch_counters(self._client)
        draft = draft_stats(before, after) if before is not None and after is not None else None
        return Round(samples=tuple(samples), latency_s=latency, power=power, draft=draft)

    def _prompt(self, plan: Cell) -> tuple[str, str]:
        context = self._maker.text(plan.depth, self._maker.fresh_seed())
        return context, self._maker.text(plan.prefill, self._maker.fresh_seed())

    def _body(self, said: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": said,
            "max_tokens": tokens,
            "return_token_ids": True,
        }
        if self._spec.exact:
            body |= {"min_tokens": tokens, "ignore_eos": True}
        return body


def at_once(client: Client, bodies: list[dict[str, Any]]) -> list[Sample]:
    """Send all requests at the same moment, one thread each; samples in their order."""
    if len(bodies) == 1:
        return [sample_of(client.measure(_CHAT, bodies[0]), 0.0)]
    found: list[tuple[Recording, float] | None] = [None] * len(bodies)
    gate = threading.Barrier(len(bodies))
    origin = time.perf_counter()

    def one(index: int) -> None:
        gate.wait()
        began = time.perf_counter() - origin
        found[index] = client.record(_CHAT, bodies[index]), began

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [sample_of(r.completion(), began) for r, began in filter(None, found)]


def sample_of(done: Completion, began_s: float) -> Sample:
    """A completion as a sample."""
    return Sample(
        began_s=began_s,
        ttfr_s=done.ttfr_s,
        total_s=done.total_s,
        prompt_tokens=done.usage.prompt_tokens if done.usage else None,
        cached_tokens=done.usage.cached_tokens if done.usage else None,
        tokens=done.tokens,
        arrivals=tuple((round(t, 6), n) for t, n in done.arrivals),
        usage_doubt=done.usage_doubt,
        failure=f"{done.failure.kind}: {done.failure.message}" if done.failure else None,
    )
