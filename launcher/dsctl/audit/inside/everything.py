"""Tries everything and prints it.

Asked, as JSON in the first argument: {"listeners": [[address, port], …] of the host, "gpus": cards
that are ours, "writable": directories that may be written, "read_only": directories that may not,
"calls": {id: {"promise", "calls": {name: [number, arguments…]}}} of system calls}. Prints a JSON
list of {"id", "promise", "how", "held", "evidence"}. Nothing that is tried does harm where it
works: system calls get arguments that fail behind the permission check, files are removed again.
"""

from __future__ import annotations

import json
from typing import Any

from dsctl.audit.inside.files import files
from dsctl.audit.inside.neighbours import neighbours
from dsctl.audit.inside.network import network
from dsctl.audit.inside.rights import calls, privileges
from dsctl.audit.inside.tries import RESULTS


def try_everything(asked: dict[str, Any]) -> None:
    """Every promise that can be tried from inside."""
    network(asked["listeners"])
    files(asked["writable"], asked["read_only"])
    privileges()
    calls(asked["calls"])
    neighbours(asked["gpus"])
    print(json.dumps(RESULTS))
