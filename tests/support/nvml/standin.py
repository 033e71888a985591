"""Builds the stand-in `libnvidia-ml.so.1` and tells it what a recorded `nvml.json` says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("standin.c")
_P2P = {"ok": 0, "chipset-not-supported": 1, "gpu-not-supported": 2, "not-supported": 5}


def build(directory: Path) -> Path:
    """Compiles the library into `directory`, which then belongs on LD_LIBRARY_PATH."""
    library = directory / "libnvidia-ml.so.1"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, "-o", str(library), str(SOURCE)], check=True)
    return library


def environment(library: Path, answers: Path) -> dict[str, str]:
    """What the NVML helper needs in its environment to find the stand-in and its answers."""
    return {"LD_LIBRARY_PATH": str(library.parent), "NVML_STANDIN": str(answers)}


def write_answers(nvml: dict[str, Any], path: Path, **orders: str | int) -> Path:
    """The stand-in's file of an `nvml.json`; `orders`: `hang=FUNCTION`, `fail_FUNCTION=CODE`."""
    lines = [f"{key.replace('fail_', 'fail.', 1)}={value}" for key, value in orders.items()]
    if "error" in nvml:
        lines.append(f"init={nvml['code']}")
    else:
        lines += _system(nvml)
        for index, device in enumerate(nvml["devices"]):
            lines += [f"devices.{index}.{key}={value}" for key, value in _device(device)]
            lines += [f"pid.{p['pid']}={p['name']}" for p in device.get("processes") or []]
        for i, row in enumerate(nvml.get("p2p") or []):
            lines += [f"p2p.{i}.{j}={_P2P[x]}" for j, x in enumerate(row) if x in _P2P]
    path.write_text("\n".join(lines) + "\n")
    return path


def _system(nvml: dict[str, Any]) -> list[str]:
    major, _, minor = str(nvml["cuda_driver_version"]).partition(".")
    return [
        f"driver_version={nvml['driver_version']}",
        f"cuda_driver_version={int(major) * 1000 + int(minor) * 10}",
        f"devices={len(nvml['devices'])}",
    ]


def _device(device: dict[str, Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in device.items():
        if value is None or key == "index":
            continue
        if key == "processes":
            value = ",".join(f"{p['pid']}:{p['used_memory']}" for p in value)
        elif key == "compute_capability":
            value = f"{value[0]}.{value[1]}"
        elif key in ("power_limit_w", "power_draw_w"):
            key, value = key.replace("_w", "_mw"), round(value * 1000)
        elif isinstance(value, bool):
            value = int(value)
        found.append((key, value))
    return found


def read_json(host: Path) -> dict[str, Any]:
    """The `nvml.json` of a recorded host."""
    found: dict[str, Any] = json.loads((host / "nvml.json").read_text())
    return found
