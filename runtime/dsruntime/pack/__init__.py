"""Packs: routed experts prepared once, checked on every start.

`build` makes one from a checkpoint, `reader` serves its rows, `verify` checks and repairs them,
`generations` finds old ones. `python -m dsruntime.pack` is the command line. See `docs/packs.md`.
"""
