"""Ends the requests whose step could not be computed, and marks those that were approximated.

A worker that raises ends the engine with all its requests. vLLM (0.32) has one way to fail a single
request from the model's side, a connector's `invalid_block_ids`, and refuses it for models with
several groups of KV cache, as DeepSeek-V4 is. So the worker says what went wrong on its step's
output (an attribute, which travels to the engine's process with it), and this scheduler, named in
the configuration (``--scheduler-cls``, an interface that vLLM calls not public), acts on it:

* failed: the request ends with finish reason "error", which the server answers with status 500
  ("Internal server error": its text is fixed in vLLM; the cause is in the engine's log). Its blocks
  leave the prefix cache, for vLLM puts them there when a step is scheduled, before it is computed,
  and every request of the step that shares such a block fails with it.
* degraded: the finished request carries ``{"dsruntime": {...}}`` in ``kv_transfer_params``, the
  only free field that vLLM passes from a scheduler to a response body (not to a streamed one).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import RequestStatus

from dsruntime.tiers.verdict import ATTRIBUTE, Verdict

logger = init_logger("vllm.dsruntime")


@dataclass
class _Degraded:
    """What was left out of one request so far."""

    steps: int = 0
    experts: int = 0


class HeedsVerdicts:
    """Mixed into a scheduler of vLLM's."""

    def update_from_output(
        self, scheduler_output: Any, model_runner_output: Any
    ) -> dict[int, EngineCoreOutputs]:
        """As ever, after the failed have been ended; the degraded are marked."""
        verdict: Verdict | None = getattr(model_runner_output, ATTRIBUTE, None)
        ended = self._end(verdict, scheduler_output) if verdict and verdict.failed else []
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(  # type: ignore[misc]
            scheduler_output, model_runner_output
        )
        for client, output in ended:
            outputs.setdefault(client, EngineCoreOutputs()).outputs.append(output)
        self._mark(verdict, outputs)
        return outputs

    def _end(self, verdict: Verdict, scheduler_output: Any) -> list[tuple[int, EngineCoreOutput]]:
        scheduler: Any = self
        scheduled: dict[str, int] = scheduler_output.num_scheduled_tokens
        failed, blocks = self._reach(verdict.failed, scheduled)
        scheduler.kv_cache_manager.evict_blocks(blocks)
        requests = scheduler.finish_requests(failed, RequestStatus.FINISHED_ERROR)
        logger.error(
            "dsruntime: %d request(s) end with an error, the engine goes on: %s. Requests: %s",
            len(requests),
            verdict.why,
            ", ".join(sorted(request.request_id for request in requests)),
        )
        return [
            (
                request.client_index,
                EngineCoreOutput(
                    request_id=request.request_id,
                    new_token_ids=[],
                    finish_reason=request.get_finished_reason(),
                    events=request.take_events(),
                    trace_headers=request.trace_headers,
                ),
            )
            for request in requests
        ]

    def _reach(
        self, failed: frozenset[str], scheduled: dict[str, int]
    ) -> tuple[set[str], set[int]]:
        """The requests that failed ones reach through shared blocks; the blocks to forget."""
        written = {name: self._written(name, count) for name, count in scheduled.items()}
        held = {name: self._held(name) for name in scheduled}
        reached, blocks = set(failed), set[int]()
        while True:
            blocks = set().union(*(written.get(name, set()) for name in reached))
            grown = reached | {name for name, ids in held.items() if ids & blocks}
            if grown == reached:
                return reached, blocks
            reached = grown

    def _written(self, name: str, count: int) -> set[int]:
        """Blocks that hold tokens from this step on."""
        scheduler: Any = self
        request = scheduler.requests.get(name)
        if request is None:
            return set()
        first = max(0, request.num_computed_tokens - count)
        groups = scheduler.kv_cache_config.kv_cache_groups
        ids = scheduler.kv_cache_manager.get_block_ids(name)
        return {
            block
            for group, blocks in zip(groups, ids, strict=True)
            for block in blocks[first // group.kv_cache_spec.block_size :]
            if block  # block 0 stands for "none"
        }

    def _held(self, name: str) -> set[int]:
        scheduler: Any = self
        if name not in scheduler.requests:
            return set()
        ids = scheduler.kv_cache_manager.get_block_ids(name)
        return {block for blocks in ids for block in blocks if block}

    def _mark(self, verdict: Verdict | None, outputs: dict[int, EngineCoreOutputs]) -> None:
        so_far = self.__dict__.setdefault("_degraded", {})
        for name, experts in (verdict.degraded if verdict else {}).items():
            seen = so_far.setdefault(name, _Degraded())
            seen.steps += 1
            seen.experts += experts
        for output in (output for group in outputs.values() for output in group.outputs):
            if output.finished and (seen := so_far.pop(output.request_id, None)):
                told = {"degraded_steps": seen.steps, "experts_left_out": seen.experts}
                output.kv_transfer_params = {**(output.kv_transfer_params or {}), "dsruntime": told}
        for name in [name for name in so_far if name not in self.__dict__["requests"]]:
            del so_far[name]  # aborted: nobody waits for its mark


class TieredScheduler(HeedsVerdicts, Scheduler):  # type: ignore[misc]  # vLLM is untyped to us
    """vLLM's scheduler, which heeds verdicts."""


class TieredAsyncScheduler(HeedsVerdicts, AsyncScheduler):  # type: ignore[misc]
    """The one that plans a step ahead."""
