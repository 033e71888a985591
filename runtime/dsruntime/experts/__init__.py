"""Routed experts, in three parts that know nothing of each other's insides.

* `method`: what vLLM sees: parameters to load into, and one opaque operator per layer.
* `weights`: where an expert's matrices come from (FP4 codes, decoded and kept while memory lasts).
* `compute`: the sum over a token's experts, given something that hands out matrices.

Another tier is another `weights.ExpertWeights`; neither the method nor the math changes.
"""
