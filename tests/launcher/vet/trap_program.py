"""The trap's modules, which run outside dsctl and are no package."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "hardening" / "trap"))

import answers
import packets

__all__ = ["answers", "packets"]
