"""Runs one step of the model over the tiers: again until it missed nobody, and again when unsure.

Why whole steps are repeated, and not a layer waits for its experts: on a GPU a decode step is one
captured graph, from the embedding to the last layer. Inside it nothing can wait for the host, so a
layer that misses an expert can only go on without and note it; when the graph has ended the misses
are read, fetched in one batch, and the graph is launched again over the same inputs. A CPU could
wait within a layer, and does for prompts, which no graph covers. Decode steps take the way of the
graph here too, so that the tables and the order of events that a GPU needs are those that are
tested.

Repeating a step is safe because a pass of DeepSeek-V4 only *sets* state, at places that depend on
the step's positions alone: keys, values, compressor states and index keys of the step's tokens go
to their slots, each layer writes before it reads, and reads of earlier tokens' slots meet what
earlier steps left. Nothing is added to, rotated or counted. So the last pass leaves exactly what a
single pass with all experts resident would have left, bit for bit.

A step converges in at most one pass per layer when the cache can hold what it needs: up to the
first layer that misses, all is right, so its misses are true ones, and after fetching them the next
pass is right up to a later layer. A step that needs more experts than the cache holds cannot
converge; it is run once more in stream mode, layer by layer (on a GPU: without its graph). So a
small cache is slow and never wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from dsruntime.tiers.agreement import Ranks
from dsruntime.tiers.base_settings import BaseSettings
from dsruntime.tiers.gate import Allowance
from dsruntime.tiers.passes import Mode
from dsruntime.tiers.snapshot import BaseSnapshot
from dsruntime.tiers.store import TierStore

logger = logging.getLogger("dsruntime.tiers")
T = TypeVar("T")
GATE_ROUNDS = 3
"""Corrected experts change the routing of later layers, whose new experts may want correcting."""
FAILURES_TOLD = 4
"""Rows named in the log of one step."""


@dataclass(frozen=True)
class StepReport:
    """What a step's result is worth, by the number of the token in the batch.

    Attributes:
        wrong: tokens for which an expert could not be read; their result must not be used.
        left_out: experts that an approximate step went without.
        why: the first of the errors behind ``wrong``.
    """

    wrong: frozenset[int] = frozenset()
    left_out: tuple[tuple[int, int], ...] = ()
    why: str = ""


class Steps:
    """Belongs to the thread that runs the model."""

    def __init__(self, store: TierStore[Any], settings: BaseSettings, ranks: Ranks) -> None:
        self._store = store
        self._bases = store.bases
        self._settings = settings
        self._ranks = ranks
        self._allowance = Allowance(settings.gate_percent)
        self._decode = False
        self._tokens = 0
        self.counted = BaseSnapshot()

    @property
    def gated(self) -> bool:
        """Whether this step's surety is wanted."""
        return self._decode and self._settings.gate_threshold is not None

    def begin(self, tokens: int, *, decode: bool) -> None:
        """A step of so many tokens; ``decode``: none is a prompt's (such a step may be a graph)."""
        self._decode = decode
        self._tokens = tokens
        self._bases.begin(Mode.STREAM)

    def run(self, forward: Callable[[], T], surety: Callable[[T], float]) -> T:
        """The step's output: of one pass for a prompt, of as many as it takes for a decode step.

        Args:
            forward: one pass over the step's inputs; repeating it is safe (see above).
            surety: of its output, to compare with the gate's threshold; called on all ranks.
        """
        output = self._settled(forward)
        return self._gate(output, forward, surety) if self.gated else output

    def end(self) -> StepReport:
        """The step is over; what became of it."""
        passing, counted = self._bases.current, self.counted
        if self._decode and self._bases.cache is not None:
            counted.decode_steps += 1
            self._bases.cache.step_done()
        left_out = tuple(sorted(passing.left_out.items()))
        if left_out:
            counted.degraded_steps += 1
            counted.left_out += sum(1 for key in passing.missing if key not in passing.unreadable)
        counted.unreadable += len(passing.unreadable)
        for key, error in list(passing.unreadable.items())[:FAILURES_TOLD]:
            logger.error("%s: %s", self._store.name(key), error)
        why = next((str(error) for error in passing.unreadable.values()), "")
        self._decode = False
        return StepReport(self._wrong_anywhere(passing.wrong), left_out, why)

    def snapshot(self) -> BaseSnapshot:
        """Everything counted, as of now."""
        found = replace(self.counted, mapped_layers=len(self._bases.mapped))
        cache = self._bases.cache
        if cache is None:
            return found
        arena = cache.arena
        return replace(
            found,
            fetched_rows=cache.fetched_rows + cache.streamed_rows,
            streamed_rows=cache.streamed_rows,
            moved_bytes=(cache.fetched_rows + cache.streamed_rows) * cache.slots.slot_bytes,
            arena_hits=arena.counters.hits,
            arena_misses=arena.counters.misses,
            pack_bytes=arena.counters.read_bytes,
            slots=cache.slots.slots,
            arena_rows=len(arena.memory.rows),
            arena_kind=arena.memory.kind,
        )

    def _pass(self, forward: Callable[[], T], mode: Mode) -> T:
        self._bases.begin(mode)
        self._store.begin_pass()
        return forward()

    def _settled(self, forward: Callable[[], T]) -> T:
        """The output of a pass that counts."""
        cache, counted = self._bases.cache, self.counted
        if cache is None or not self._decode:
            return self._pass(forward, Mode.STREAM)
        unreadable: dict[int, Exception] = {}
        for number in range(self._settings.replay_rounds + 1):
            output = self._pass(forward, Mode.REPLAY)
            passing = self._bases.current
            passing.unreadable |= {
                key: error for key, error in unreadable.items() if key in passing.missing
            }
            missing = [key for key in passing.missing if key not in unreadable]
            counted.replays += number > 0
            counted.replayed_steps += number == 0 and bool(missing)
            counted.misses += len(missing)
            most = self._most(len(missing))
            if not most:
                return output
            fetched = cache.fetch(missing)
            unreadable |= fetched.errors
            if self._tolerates(most):
                return output
            if self._most(fetched.homeless):
                break
        counted.rescues += 1
        counted.replays += 1
        return self._pass(forward, Mode.STREAM)

    def _tolerates(self, missing: int) -> bool:
        approximate = self._settings.replay == "approximate"
        return approximate and missing <= self._settings.replay_tolerance

    def _gate(self, output: T, forward: Callable[[], T], surety: Callable[[T], float]) -> T:
        counted, settings = self.counted, self._settings
        assert settings.gate_threshold is not None
        self._allowance = self._allowance.after_step()
        counted.gate_checks += 1
        if not self._most(int(surety(output) < settings.gate_threshold)):
            return output
        counted.gate_fires += 1
        if not self._allowance.allows:
            counted.gate_refused += 1
            return output
        spent = 0
        for _ in range(GATE_ROUNDS):
            left = settings.gate_budget - spent if settings.gate_budget else None
            corrected = self._most(self._store.correct_used(left))
            if not corrected:
                break
            spent += corrected
            output = self._settled(forward)
        if spent:
            counted.gate_redone += 1
            counted.gate_corrections += spent
            self._allowance = self._allowance.after_redone()
        return output

    def _wrong_anywhere(self, wrong: frozenset[int]) -> frozenset[int]:
        """Tokens that are wrong on any rank; one exchange a token, but only when there are any."""
        if self._ranks.count == 1 or not self._most(len(wrong)):
            return wrong
        return frozenset(token for token in range(self._tokens) if self._most(int(token in wrong)))

    def _most(self, value: int) -> int:
        """The greatest of all ranks' values, so that all run the same number of passes."""
        return value if self._ranks.count == 1 else -self._ranks.least(-value)
