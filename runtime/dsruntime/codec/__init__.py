"""Routed experts in two parts: a 2-bit base, and a correction that restores FP4 bit for bit.

`fp4` the source format and the conversions; `layout` how one expert lies in a row; `sources` other
checkpoint formats brought to FP4; `bits` and `loops` the arithmetic. NumPy and, where it is there,
numba; never torch. `docs/packs.md` has the layout for those who write kernels.
"""

CODEC_ID = "sym4-e8m0x32/1"
"""Names the base code {-4, -1, +1, +4}, the split remainder and the plane order. A pack built with
another id is another pack."""
