"""The command line: one module per command. Each parses, calls one function, and prints.

Nothing heavy is imported here or at the top of a command module, so that `--help` of any command
answers in under 0.3 s (measured in `benchmarks/cli.py`).
"""

from __future__ import annotations

import gc
import sys

from dsctl.cli.app import build_app, run


def main() -> None:
    """Entry point of the `dsctl` script."""
    # Imports make some 100,000 objects that stay; looking for cycles among them took a tenth of
    # the time of a short command.
    gc.set_threshold(50_000, 20, 20)
    sys.exit(run(build_app(), sys.argv[1:]))
