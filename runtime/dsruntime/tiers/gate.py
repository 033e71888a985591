"""The confidence gate: which decode steps were too unsure and are redone in better precision. Pure.

A 2-bit expert costs most where the model hesitates: there the error decides the token. So a step
whose least sure token is below a threshold is run again with its experts corrected. What that costs
is bounded twice: by corrections a step may bring in, and by the share of steps that may be redone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Signal = Literal["max_prob", "margin"]
WINDOW_STEPS = 100
"""Over which the share of redone steps is kept."""


def surety(logits: torch.Tensor, signal: Signal) -> float:
    """Of the least sure of [T, vocabulary] logits; infinite for T = 0.

    ``max_prob``: probability of the likeliest token, 0 to 1. ``margin``: logit of the best over the
    second best, which is the difference of their log-probabilities in nats.
    """
    if not logits.shape[0]:
        return float("inf")
    wide = logits.float()
    if signal == "margin":
        best = wide.topk(2, dim=-1).values
        return float((best[:, 0] - best[:, 1]).min())
    return float((wide.amax(dim=-1) - wide.logsumexp(dim=-1)).min().exp())


@dataclass(frozen=True)
class Allowance:
    """Redone steps that may still be spent: a share of each step, saved up to one window's worth.

    Attributes:
        percent: of steps that may be redone in the long run; 100: all.
        saved: redone steps that may be had at once.
    """

    percent: float
    saved: float = 1.0

    def after_step(self) -> Allowance:
        """One more step has been looked at."""
        gain = self.percent / 100
        return Allowance(self.percent, min(self.saved + gain, max(1.0, gain * WINDOW_STEPS)))

    @property
    def allows(self) -> bool:
        """Whether a step may be redone now."""
        return self.percent >= 100 or self.saved >= 1

    def after_redone(self) -> Allowance:
        """One has been redone."""
        return Allowance(self.percent, max(0.0, self.saved - 1))
