"""A profile that runs the scripted engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.support.engine.script import Script


def write_profile(directory: Path, script: Script, **sections: Any) -> Path:
    """A profile file: the canary's, with the scripted engine in the place of `vllm serve`.

    `sections` replaces or adds sections of the profile (`retry`, `limits`, `knobs`).
    """
    import yaml

    run = Path(__file__).with_name("run.py")
    document = {
        "schema": 1,
        "id": "scripted",
        "extends": "cpu-canary",
        "title": "The scripted engine",
        "summary": "For tests of the supervisor.",
        "verified": "none",
        "engine": {
            "version": "0.32.0",
            "environment": "cpu",
            "runtime": False,
            "program": [sys.executable, str(run)],
        },
        "env": {"SCRIPTED_ENGINE": {"value": script.text(), "source": "choice", "why": "a test"}},
        **sections,
    }
    path = directory / "scripted.yaml"
    path.write_text(yaml.safe_dump(document))
    return path
