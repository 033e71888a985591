"""Routed experts in two tiers: a 2-bit base for all, an FP4 correction for those in the pool.

* `policy`: which experts should hold the pool's slots. Pure: counts in, moves out.
* `pool`: the slots and the table that says who holds them; nothing is visible before it is whole.
* `base`: the 2-bit planes of a layer, resident as they lie in the pack.
* `weights`: hands out an expert's matrices from whichever tier it is in.
* `store`: one rank's tiers together, and what carries out a policy's moves.
* `rank`, `method`, `worker`: the tiers inside vLLM: opened, called by a layer, stepped.

Importing any of these imports no numba (vLLM's kernel registry trips over it); opening a pack does.
"""
