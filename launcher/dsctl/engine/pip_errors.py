"""What pip's last words mean: a hash that differs, a full disk, an index out of reach."""

from __future__ import annotations

import re

from dsctl.engine.subprocesses import ProgramFailedError
from dsctl.errors import ConfigError, DsctlError

#: A directory of wheels brought by hand, for machines without a network.
WHEELHOUSE_VARIABLE = "DSCTL_WHEELHOUSE"


def explain_pip(failure: ProgramFailedError, doing: str, lock: str) -> DsctlError:
    """The error for a failed pip run; `doing` begins its message, `lock` is the name of the
    environment's lock."""
    output = failure.output
    if "DO NOT MATCH THE HASHES" in output or "HashMismatch" in output:
        return DsctlError(
            f"{doing}: not the sha256 that the lock names: {_other_hash(output)}",
            remedy="empty pip's cache (`pip cache purge`) and the wheelhouse, then try again; if "
            "it persists, do not install from that index",
        )
    if "No space left on device" in output:
        return ConfigError(f"{doing}: the disk is full", remedy="free some space and try again")
    if any(sign in output for sign in _NO_NETWORK):
        return DsctlError(
            f"{doing}: the package index cannot be reached, or lacks a wheel: {_culprit(output)}",
            remedy=f"on a machine with a network run `dsctl env fetch --lock {lock} --to DIR`, "
            f"bring DIR here, and run `{WHEELHOUSE_VARIABLE}=DIR dsctl up` (first install only)",
        )
    end = " | ".join(line.strip() for line in output.splitlines()[-4:] if line.strip())
    return DsctlError(
        f"{doing} failed: {_culprit(output)}",
        remedy=f"pip's last words were: {end[-600:]}",
    )


_NO_NETWORK = (
    "Temporary failure in name resolution",
    "Failed to establish a new connection",
    "Network is unreachable",
    "Max retries exceeded",
    "Could not find a version that satisfies",
    "No matching distribution found",
    "Read timed out",
    "ResolutionImpossible",
    "conflicting dependencies",
)


def _culprit(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    network = [line for line in lines if any(sign in line for sign in _NO_NETWORK[:5])]
    if network:
        return network[-1].removeprefix("ERROR: ").removeprefix("WARNING: ")[:300]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no output"])[-1].removeprefix("ERROR: ")[:300]


def _other_hash(output: str) -> str:
    """The wheels that pip lists below its words about hashes."""
    named = re.findall(r"^ +(\S+==\S+|\S+) from (\S+)", output, re.M)
    return ", ".join(f"{name} from {place.split('#')[0].rstrip(':')}" for name, place in named)
