#!/usr/bin/env python3
"""Make `launcher/dsctl/data/locks/NAME.lock` from NAME.in (needs uv, pip and the network).

uv resolves and writes every wheel's sha256: `cpu` for all supported Pythons at once, `cuda` and
`tools` (what builds images) for the Python of our images. Three packages that vLLM's CPU wheel asks
for are left out, because their PyPI builds break the import of transformers beside the CPU build of
torch. torch's CPU wheels are not on PyPI, so their hashes are given here.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

LOCKS = Path(__file__).resolve().parent.parent / "launcher" / "dsctl" / "data" / "locks"
PYTHONS = ("3.11", "3.12", "3.13")
#: Debian 12's Python and C library, of which our images are made.
IMAGE_PYTHON, IMAGE_PLATFORM = "3.11", "x86_64-manylinux_2_36"
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec")
#: sha256 of torch-2.13.0+cpu-cp3XX-cp3XX-manylinux_2_28_x86_64.whl on PyTorch's CPU index.
TORCH_HASHES = {
    "3.11": "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
    "3.12": "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",
    "3.13": "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6",
}


def resolve(source: Path, find_links: str | None) -> str:
    """uv's resolution of `source` as text."""
    everywhere = source.stem == "cpu"
    with tempfile.TemporaryDirectory() as scratch:
        overrides = Path(scratch, "overrides.txt")
        overrides.write_text("".join(f"{n} ; sys_platform == 'never'\n" for n in LEFT_OUT))
        out = Path(scratch, "out.lock")
        command = [
            *("uv", "pip", "compile", str(source), "-o", str(out), "-q", "--generate-hashes"),
            *("--no-annotate", "--no-header", "--python-version", IMAGE_PYTHON),
        ]
        if everywhere:
            command += ["--universal", "--override", str(overrides)]
        else:
            command += ["--python-platform", IMAGE_PLATFORM]
        if find_links:
            command += ["--find-links", find_links]
        subprocess.run(command, check=True)
        return out.read_text()


def tidy(text: str, torch_hashes: dict[str, str]) -> str:
    """Drop what no supported machine installs, and give torch the hashes that are not on PyPI."""
    kept = []
    for block in re.split(r"(?<!\\)\n", text):
        head = block.split("\\\n", 1)[0]
        if not head.strip() or re.search(r"== 'never'|== 'win32'|== 'darwin'|== 'Windows'", head):
            continue
        if head.startswith("torch==") and torch_hashes:
            hashes = " \\\n".join(f"    --hash=sha256:{h}" for h in torch_hashes.values())
            block = f"{head.strip()} \\\n{hashes}"
        kept.append(block)
    return "\n".join(kept) + "\n"


def measure(lock: Path) -> tuple[int, int]:
    """Bytes downloaded and bytes installed on this Python."""
    with tempfile.TemporaryDirectory() as scratch:
        wheels, environment = Path(scratch, "wheels"), Path(scratch, "venv")
        pip = [sys.executable, "-m", "pip"]
        options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "-r", str(lock)]
        subprocess.run([*pip, "download", "-q", "-d", str(wheels), *options], check=True)
        venv.create(environment, with_pip=True)
        offline = ["--no-index", "--find-links", str(wheels)]
        python = environment / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "-q", *offline, *options], check=True)
        return tree_bytes(wheels), tree_bytes(environment)


def tree_bytes(root: Path) -> int:
    """Sum of the sizes of all regular files below `root`."""
    return sum(f.stat().st_size for f in root.rglob("*") if f.is_file() and not f.is_symlink())


def main() -> None:
    """Resolve, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "name", choices=sorted(p.stem for p in LOCKS.glob("*.in") if "." not in p.stem)
    )
    parser.add_argument("--find-links", help="directory with torch's CPU wheel")
    parser.add_argument(
        "--sizes",
        nargs=2,
        type=int,
        metavar=("FETCHED", "INSTALLED"),
        help="bytes known from a fetch and a build, instead of measuring again",
    )
    arguments = parser.parse_args()
    pythons = PYTHONS if arguments.name == "cpu" else (IMAGE_PYTHON,)
    hashes = TORCH_HASHES if arguments.name == "cpu" else {}
    body = tidy(resolve(LOCKS / f"{arguments.name}.in", arguments.find_links), hashes)
    lock = LOCKS / f"{arguments.name}.lock"
    lock.write_text(body)
    download_bytes, installed_bytes = arguments.sizes or measure(lock)
    header = (
        f"# Made by tools/lock.py from {arguments.name}.in; do not edit.\n"
        f"# pythons: {' '.join(pythons)}\n"
        f"# download-bytes: {download_bytes}\n"
        f"# installed-bytes: {installed_bytes}\n"
    )
    lock.write_text(header + body)
    print(
        f"{lock}: {download_bytes / 1e6:.0f} MB to fetch, {installed_bytes / 1e9:.2f} GB installed"
    )


if __name__ == "__main__":
    main()
