#!/usr/bin/env python3
"""Make `NAME.debs.json` from NAME.debs.in: every Debian package with version and sha256.

Runs on a Debian 12 machine after `apt-get update`: what apt would install now is what is locked,
security updates included. The lists are explicit on purpose: a dependency that an image gains is a
line somebody wrote.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

LOCKS = Path(__file__).resolve().parent.parent / "launcher" / "dsctl" / "data" / "locks"


def wanted(text: str) -> list[tuple[str, bool]]:
    """Package names of a list, and whether each is only for building (`build: NAME`)."""
    lines = (line.split("#", 1)[0].strip() for line in text.splitlines())
    return [(s.removeprefix("build:").strip(), s.startswith("build:")) for s in lines if s]


def record(name: str) -> dict[str, str]:
    """The fields apt has for the version of a package that it would install."""
    command = ["apt-cache", "show", "--no-all-versions", f"{name}:amd64"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    if shown.returncode != 0 or not shown.stdout:
        sys.exit(f"{name}: apt does not know it: {shown.stderr.strip()}")
    pairs = (line.split(": ", 1) for line in shown.stdout.split("\n\n")[0].splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def locked(name: str, *, build: bool) -> dict[str, object]:
    """One entry of the lock."""
    fields = record(name)
    archive = "debian-security" if "/updates/" in fields["Filename"] else "debian"
    entry: dict[str, object] = {
        "name": name,
        "version": fields["Version"],
        "sha256": fields["SHA256"],
        "size_bytes": int(fields["Size"]),
        "path": f"{archive}/{fields['Filename']}",
    }
    return entry | ({"build": True} if build else {})


def main() -> None:
    """Lock the lists that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = sorted(p.name.removesuffix(".debs.in") for p in LOCKS.glob("*.debs.in"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(known)}")
    parser.add_argument("--to", type=Path, default=LOCKS, help="directory that gets the locks")
    arguments = parser.parse_args()
    for name in arguments.names or known:
        packages = [
            locked(package, build=build)
            for package, build in wanted((LOCKS / f"{name}.debs.in").read_text())
        ]
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        text = json.dumps({"locked_at": now, "packages": packages}, indent=1) + "\n"
        (arguments.to / f"{name}.debs.json").write_text(text)
        total = sum(int(str(p["size_bytes"])) for p in packages)
        print(f"{name}: {len(packages)} packages, {total / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
