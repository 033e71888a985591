"""Random experts as a device holds them, and their routed sum in float64 from the codec."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from dsruntime.codec import fp4
from dsruntime.codec.layout import Correction, ExpertShape
from dsruntime.kernels.launch import Planes
from dsruntime.kernels.moe import LayerPlanes

Doubles = npt.NDArray[np.float64]
TYPICAL_SCALES = (116, 123)
"""e8m0 bytes that bring gate and up to the size where the clamp of 10 cuts some of them."""


@dataclass
class Experts:
    """One layer: its bytes, and each expert's matrices in both tiers."""

    layer: LayerPlanes
    memory: torch.Tensor
    full: list[tuple[Doubles, Doubles]]
    coarse: list[tuple[Doubles, Doubles]]

    def correct(self, slots: dict[int, int]) -> None:
        """Give experts slots: changes the table that the kernels read, nothing else."""
        self.layer.slots.fill_(-1)
        for expert, slot in slots.items():
            self.layer.slots[expert] = slot


def random_experts(
    count: int, shape: ExpertShape, coding: Correction, seed: int, slot_of: dict[int, int]
) -> Experts:
    """`count` experts, with the corrections of those in `slot_of` in the pool; the rest is 0xFF."""
    random = np.random.default_rng(seed)
    planes = Planes(shape, coding)
    base = np.zeros((count, shape.base.size_bytes), np.uint8)
    pool = np.full((max(slot_of.values(), default=0) + 1, planes.slot.size_bytes), 0xFF, np.uint8)
    full, coarse = [], []
    for expert in range(count):
        row = shape.base.views(base[expert])
        slot = planes.slot.views(pool[slot_of[expert]]) if expert in slot_of else None
        tiers: list[tuple[Doubles, Doubles]] = []
        for part, n, k in (
            ("13", 2 * shape.intermediate, shape.hidden),
            ("2", shape.hidden, shape.intermediate),
        ):
            codes = random.integers(0, 256, (n, k // 2), dtype=np.uint8)
            scales = random.integers(*TYPICAL_SCALES, (n, k // 32), dtype=np.uint8)
            row["codes" + part][:] = fp4.encode_base(codes)
            row["scales" + part][:] = scales
            if slot is not None and coding is Correction.SPLIT:
                slot["low" + part][:], slot["high" + part][:] = fp4.encode_split(codes)
            elif slot is not None:
                slot["fp4_" + part][:] = codes
            tiers.append(
                (fp4.decode_fp4(codes, scales), fp4.decode_base(row["codes" + part], scales))
            )
        full.append((tiers[0][0], tiers[1][0]))
        coarse.append((tiers[0][1], tiers[1][1]))
    memory = torch.from_numpy(pool)
    layer = LayerPlanes(
        planes,
        torch.from_numpy(base),
        base_rows=torch.arange(count, dtype=torch.int32),
        slots=torch.full((count,), -1, dtype=torch.int32),
        uses=torch.zeros(count, dtype=torch.int32),
        pool=torch.tensor([memory.data_ptr()]),
    )
    return Experts(layer, memory, full, coarse)


def routed_sum(
    experts: Experts, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, limit: float | None
) -> Doubles:
    """Weight by weight from the definition, in float64."""
    slots, rows = experts.layer.slots, experts.layer.base_rows
    out = np.zeros(x.shape)
    for token, (values, chosen) in enumerate(zip(x.double().numpy(), ids.tolist(), strict=True)):
        for weight, expert in zip(weights[token].tolist(), chosen, strict=True):
            if expert < 0 or rows[expert] < 0:
                continue
            tier = experts.full if slots[expert] >= 0 else experts.coarse
            gate, up = np.split(tier[expert][0] @ values, 2)
            if limit is not None:
                gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
            out[token] += weight * (tier[expert][1] @ (gate / (1 + np.exp(-gate)) * up))
    return out


def relative_error(got: torch.Tensor, want: Doubles) -> float:
    """|got - want| / |want|; NaN anywhere is NaN."""
    return float(np.linalg.norm(got.double().numpy() - want) / np.linalg.norm(want))
