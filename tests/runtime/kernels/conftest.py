"""Without torch and Triton there is nothing here to test."""

from __future__ import annotations

import importlib.util

if any(importlib.util.find_spec(name) is None for name in ("torch", "triton")):
    collect_ignore_glob = ["test_*.py"]
