"""Reads what the supervisor decides on: `Sampling(Subject(...)).sample(phase)` is a `Sample`.

Each reader is cheap, runs apart from the others, and may fail or hang without taking anything
with it. `pagecache.drop` carries out `Action.DROP_PAGE_CACHE`; `history` remembers past starts.
"""
