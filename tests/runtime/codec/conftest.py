"""Loops compile on first use, and the machines here are shared: no deadline per example."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
