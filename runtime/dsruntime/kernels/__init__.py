"""The routed experts on a GPU: Triton kernels over the pack's own planes.

* `expand`: codes to values in registers; the codec's formulas as device functions.
* `grouped`: the kernels: grouping, gate-up with the clamp, down, combine.
* `launch`: which tiles, and the arguments of each launch.
* `moe`: one layer's routed sum in torch, with static shapes.
* `aot`: what the compiler makes of the kernels for a card, without a card.

Verified in Triton's interpreter and by ahead-of-time compilation for sm_120; never run on a card.
`docs/kernels.md` has the figures. Importing this package imports neither torch nor Triton.
"""
