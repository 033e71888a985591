"""A scripted stand-in for the engine: the real engine's log lines and API, and known ways to fail.

`python tests/support/engine/run.py CHECKPOINT [vLLM's flags]` behaves as the JSON in the variable
`SCRIPTED_ENGINE` says (`Script`). A profile puts it in the place of `vllm serve` by `program`.
"""

from tests.support.engine.profile import write_profile
from tests.support.engine.script import PHASES, Script

__all__ = ["PHASES", "Script", "write_profile"]
