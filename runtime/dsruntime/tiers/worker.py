"""The worker that opens the tiers and does between steps what must not happen within one."""

from __future__ import annotations

from typing import Any

from dsruntime.cpu.worker import DeepseekV4Worker
from dsruntime.experts.method import Fp4ExpertsMethod
from dsruntime.tiers.gate import surety
from dsruntime.tiers.hooks import TierHooks, method_in_place
from dsruntime.tiers.method import TieredExpertsMethod
from dsruntime.tiers.rank import RankTiers
from dsruntime.tiers.settings import read_settings
from dsruntime.tiers.verdict import Verdict, attach, is_decode, verdict_of


class TieredWorker(TierHooks, DeepseekV4Worker):
    """The CPU worker, with experts in tiers: the pool comes last, moves happen between steps."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        settings = read_settings(vllm_config.additional_config)
        self.tiers = RankTiers(settings, vllm_config.model_config.model)
        self._verdict: Verdict | None = None
        super().__init__(vllm_config, *args, **kwargs)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """As always, with our method in the place of the FP4 one."""
        from vllm.models.deepseek_v4.quant_config import DeepseekV4FP8Config

        def choose(original: Any, config: Any, layer: Any, prefix: str) -> Any:
            method = original(config, layer, prefix)
            if isinstance(method, Fp4ExpertsMethod):
                return TieredExpertsMethod(layer.moe_config, method.dtype, self.tiers)
            return method

        with method_in_place(DeepseekV4FP8Config, choose):
            super().load_model(*args, **kwargs)
        self._repeat_where_needed(self.model_runner)

    def execute_model(self, scheduler_output: Any) -> Any:
        """One step, as often as it takes, then the pool's moves; they are not waited for."""
        steps, store = self.tiers.steps, self.tiers.store
        if steps is None or store is None:
            return super().execute_model(scheduler_output)
        scheduled: dict[str, int] = scheduler_output.num_scheduled_tokens
        steps.begin(sum(scheduled.values()), decode=is_decode(scheduler_output))
        result = super().execute_model(scheduler_output)
        report = steps.end()
        if report.wrong or report.left_out:
            order = [name for name in self.model_runner.input_batch.req_ids if name in scheduled]
            self._verdict = verdict_of(report, [(name, scheduled[name]) for name in order])
            steps.counted.failed_requests += len(self._verdict.failed)
        self.tiers.after_step()
        return result

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        """The step's tokens; with them goes what the scheduler must know of its requests."""
        output = super().sample_tokens(*args, **kwargs)
        verdict, self._verdict = self._verdict, None
        if verdict and output is not None:
            attach(output, verdict)
        return output

    def _repeat_where_needed(self, runner: Any) -> None:
        """Put `Steps.run` around the runner's forward pass.

        vLLM documents `_model_forward` as a method to override, but a worker cannot choose the
        class of its runner, so the method of this one object is replaced. Around it the inputs,
        the attention metadata and the forward context are all in place and stay there, so a pass
        can be repeated. The newer runner (V2) has no such method: it would have to be wrapped at
        ``model`` and ``cudagraph_manager.run_fullgraph``; it does not run on a CPU.
        """
        original = runner._model_forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            steps = self.tiers.steps
            if steps is None:
                return original(*args, **kwargs)
            return steps.run(lambda: original(*args, **kwargs), surety_of_output)

        def surety_of_output(output: Any) -> float:
            hidden = output[0] if isinstance(output, tuple) else output
            # in a decode step every token's logits are wanted, so these are those of the sampler
            logits = runner.model.compute_logits(hidden)
            return (
                float("inf") if logits is None else surety(logits, self.tiers.settings.gate_signal)
            )

        runner._model_forward = forward
