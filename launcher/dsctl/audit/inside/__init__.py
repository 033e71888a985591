"""Runs inside the engine's container: standard library alone, sent there module by module."""
