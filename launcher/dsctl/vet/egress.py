"""What a run tried to reach, judged. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence

from dsctl.model.finding import Finding
from dsctl.vet.policy import Policy
from dsctl.vet.values import Attempt, Run
from dsctl.vet.weigh import finding


def egress_findings(runs: Sequence[Run], policy: Policy) -> Iterable[Finding]:
    """Look-ups, connections, group traffic, and what the trap could not see."""
    tried = [(run, a) for run in runs for a in run.attempts if not allowed(a, policy)]
    names = [(r, a) for r, a in tried if a.protocol == "dns"]
    group = [(r, a) for r, a in tried if a.protocol != "dns" and is_group(a)]
    rest = [(r, a) for r, a in tried if a.protocol != "dns" and not is_group(a)]
    seconds = sum(run.watched_s for run in runs)
    quiet = f"in {seconds:.0f} s of {len(runs)} run(s)"
    for name, found, what in (
        ("egress.names", names, "looked up"),
        ("egress.connections", rest, "tried to reach"),
        ("egress.multicast", group, "spoke to groups:"),
    ):
        places = sorted({where(a) for _, a in found})
        bad = f"it {what} {', '.join(places[:3])}" if places else ""
        bad += f" and {len(places) - 3} more" if len(places) > 3 else ""
        lines = [f"{run.kind}: {told(a)}" for run, a in found]
        yield finding(name, policy.weights[name], bad, f"none {quiet}", lines)
    unseen = [
        f"{run.kind}: IPv{family}: {run.missing.get(str(family), 'not caught by the trap')}"
        for run in runs
        for family in (4, 6)
        if family not in run.families
    ]
    unseen += [
        f"{run.kind}: {run.lost} tries that could not be told apart" for run in runs if run.lost
    ]
    weight = policy.weights["egress.uncaught"]
    bad = f"not everything could be watched: {unseen[0]}" if unseen else ""
    yield finding("egress.uncaught", weight, bad, "IPv4 and IPv6 were watched", unseen)


def allowed(attempt: Attempt, policy: Policy) -> bool:
    """Whether a pattern of the policy fits it, as `PROTOCOL NAME-OR-ADDRESS:PORT`."""
    text = f"{attempt.protocol} {where(attempt)}"
    return any(re.search(pattern, text) for pattern in policy.allowed_egress)


def is_group(attempt: Attempt) -> bool:
    """Whether it spoke to whoever listens: multicast, broadcast."""
    address = ipaddress.ip_address(attempt.address)
    return address.is_multicast or str(address) == "255.255.255.255"


def where(attempt: Attempt) -> str:
    """Name or address, and port: `telemetry.example.org:443`, `[2001:db8::1]:80`."""
    if attempt.protocol == "dns":
        return attempt.name or "(a name)"
    place = attempt.name or attempt.address
    if attempt.port is None:
        return place
    return f"[{place}]:{attempt.port}" if ":" in place else f"{place}:{attempt.port}"


def told(attempt: Attempt) -> str:
    """One try in a line: when, how, where, what was said, how often."""
    text = f"after {attempt.at_s:.1f} s {attempt.protocol} {where(attempt)}"
    if attempt.protocol == "dns":
        text += f" ({attempt.said}, asked of {attempt.address})"
    elif attempt.said:
        text += f" ({attempt.said})"
    return text + (f", {attempt.count} times" if attempt.count > 1 else "")
