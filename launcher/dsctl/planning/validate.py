"""Proves a profile's flags: the pinned engine's own parser and configuration code resolve them.

The engine is asked in its own Python (`profiles/contract/engine_probe.py`), never imported here.
CPU profiles run against the engine's environment as it is. CUDA profiles run against the unpacked
CUDA wheel of the same version on a faked SM120 platform, with the environment's torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from dsctl.engine.command import engine_command
from dsctl.errors import ConfigError, DsctlError
from dsctl.files import exclusive
from dsctl.model.base import Value
from dsctl.model.endpoint import Endpoint
from dsctl.model.profile import Profile, Status
from dsctl.paths import make_writable, shipped, user_paths
from dsctl.progress import Progress, Reporter

#: vLLM's CUDA build, FlashInfer (whose dispatch tables it reads) and b12x at the versions it pins:
#: the very files, for their code is run here.
CUDA_WHEELS = {
    "vllm==0.32.0": "5e2ecdc5b0baf72921c288486417ca82778456a448e4fe60b62ee43c0dfc8611",
    "flashinfer-python==0.7.0.post1": (
        "c7adf826568d61fc1b7d3aadd4cae387a35a138bfc08e2deca2f34ecfa280716"
    ),
    "b12x==1.5.1": "8731e23571d8d45db26d78e7699ec0b23e7ba20b52487adf8c1063c8d8b53a3d",
}
_TIMEOUT_S = 300.0


class Proof(Value):
    """What the engine said to one profile."""

    profile: str
    outcome: Literal["pass", "fail", "skip"]
    summary: str
    faults: tuple[str, ...] = ()
    resolved: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """Where the engine is asked: its Python, and what goes before its own packages."""

    python: Path
    path: tuple[Path, ...]


Ask = Callable[[Profile, dict[str, Any]], dict[str, Any]]


def prove(profiles: Sequence[Profile], *, wheel: Path | None, report: Reporter) -> list[Proof]:
    """Ask the engine about every profile.

    Raises:
        DsctlError: the engine's environment or the CUDA wheel cannot be had.
    """
    proofs = []
    for profile in profiles:
        report(Progress(f"asking the engine about {profile.id}"))
        if profile.status is Status.UNSUPPORTED:
            proofs.append(Proof(profile=profile.id, outcome="skip", summary="unsupported: not run"))
            continue
        asked = _asked_for(profile, wheel, report)
        proofs.append(judge(profile, ask(asked, request_for(profile))))
    return proofs


def request_for(
    profile: Profile, *, kv_bytes: Sequence[int] = (), checkpoint: Path | None = None
) -> dict[str, Any]:
    """The question about a profile; with `kv_bytes` also its KV cache at those sizes."""
    checkpoint = checkpoint or Path("@checkpoint")  # the probe makes a stand-in
    command = engine_command(profile, endpoint=Endpoint(port=8000), checkpoint=checkpoint)
    serve = command.argv.index("serve")
    return {
        "argv": list(command.argv[serve:]),
        "env": command.env,
        "platform": profile.hardware.device,
        "config": str(shipped("profiles", "geometry", f"{profile.model.geometry}.config.json")),
        "kv": {"bytes": list(kv_bytes)} if kv_bytes else None,
    }


def judge(profile: Profile, answer: dict[str, Any]) -> Proof:
    """The proof in an answer. Pure.

    What an `external` image alone knows is no fault of its profile: the image's own parser decides
    about it (`dsctl image vet`). It is listed all the same.
    """
    faults = [f"the engine does not know {name}" for name in answer["unknown_env"]]
    faults += [f"{e['stage']}: {_one_line(e['text'])}" for e in answer["errors"]]
    resolved = answer.get("resolved", {})
    if not answer["errors"]:
        faults += _differences(profile, resolved)
    version = answer.get("version", "?").partition("+")[0]
    if version != profile.engine.version:
        faults.append(f"this is vLLM {version}; the profile is for {profile.engine.version}")
    if profile.engine.external:
        summary = f"external: {len(faults)} thing(s) that stock vLLM {version} does not know"
        return Proof(profile=profile.id, outcome="skip", summary=summary, faults=tuple(faults))
    if faults:
        summary = f"refused by vLLM {version}"
        return Proof(profile=profile.id, outcome="fail", summary=summary, faults=tuple(faults))
    return Proof(
        profile=profile.id,
        outcome="pass",
        summary=f"resolved by vLLM {version} as {resolved['architecture']}",
        resolved=resolved,
    )


def _differences(profile: Profile, resolved: dict[str, Any]) -> list[str]:
    """Knobs that the engine took and then set to something else."""
    found = []
    for key in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"):
        want = profile.value(key)
        if want is not None and resolved.get(key) != want:
            found.append(f"{key}={want} became {resolved.get(key)}")
    draft = resolved.get("draft") or {}
    if draft.get("tokens", 0) != profile.value("draft_tokens", 0):
        found.append(
            f"draft_tokens={profile.value('draft_tokens', 0)} became {draft or 'no draft'}"
        )
    return found


def _one_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith(("Value error", "Assertion"))] or lines
    return said[0].partition(" [type=")[0][:300]


def ask(asked: Asked, request: dict[str, Any], *, timeout_s: float = _TIMEOUT_S) -> dict[str, Any]:
    """Run the probe once.

    Raises:
        DsctlError: it did not answer; the message has its last words.
    """
    contract = shipped("profiles", "contract")
    caches = user_paths().cache / "contract"  # compiled modules, inspected architectures
    with tempfile.TemporaryDirectory(prefix="dsctl-probe-") as scratch:
        env = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": scratch,
            "PYTHONPATH": os.pathsep.join(str(p) for p in (contract, *asked.path)),
            "PYTHONPYCACHEPREFIX": str(caches / "bytecode"),
            "XDG_CACHE_HOME": str(caches),
            "DSCTL_ANSWER": str(Path(scratch, "answer.json")),
        }
        try:
            done = subprocess.run(
                [str(asked.python), str(contract / "engine_probe.py")],
                input=json.dumps(request),
                capture_output=True,
                text=True,
                env=env,
                cwd=scratch,
                timeout=timeout_s,
                check=False,
            )
            answer: dict[str, Any] = json.loads(Path(scratch, "answer.json").read_text())
        except subprocess.TimeoutExpired:
            raise DsctlError(f"the engine did not answer within {timeout_s:.0f} s") from None
        except (OSError, ValueError):
            last = done.stderr.strip().splitlines()[-1:] or ["no output"]
            raise DsctlError(
                f"the engine could not be asked: {last[0]}",
                remedy="run `dsctl env build`, then try again",
            ) from None
    return answer


def _asked_for(profile: Profile, wheel: Path | None, report: Reporter) -> Asked:
    from dsctl.engine.environment import ensure_environment
    from dsctl.engine.lockfile import read_lock
    from dsctl.engine.runtime import ensure_runtime

    paths = user_paths()
    environment = ensure_environment(read_lock("cpu"), paths, report)
    runtime = (ensure_runtime(environment, paths),) if profile.engine.runtime else ()
    if profile.hardware.device == "cpu":
        return Asked(environment.python, runtime)
    unpacked = wheel or cuda_wheel(environment.python, report)
    if not (unpacked / "vllm" / "__init__.py").is_file():
        raise ConfigError(
            f"--wheel {unpacked}: holds no vllm package",
            remedy="unpack the wheel there, e.g. `unzip vllm-0.32.0-*.whl -d DIR`",
        )
    return Asked(environment.python, (unpacked, *runtime))


def cuda_wheel(python: Path, report: Reporter) -> Path:
    """The unpacked CUDA build, fetched once into the cache (330 MB, 800 MB unpacked).

    Raises:
        DsctlError: it cannot be fetched.
    """
    root = make_writable(user_paths().cache / "contract", "contract cache")
    target = root / next(iter(CUDA_WHEELS)).replace("==", "-")
    with exclusive(root / ".lock", wait=True):
        if (target / ".complete").is_file():
            return target
        report(Progress(f"fetching {', '.join(CUDA_WHEELS)} to ask them"))
        with tempfile.TemporaryDirectory(dir=root) as wheels:
            command = [str(python), "-m", "pip", "download", "--no-deps", "-q", "-d", wheels]
            command += ["--disable-pip-version-check", "--only-binary=:all:"]
            command += ["--platform", "manylinux_2_28_x86_64", "--python-version", "3.11"]
            wanted = Path(wheels, "requirements.txt")
            lines = [f"{name} --hash=sha256:{digest}" for name, digest in CUDA_WHEELS.items()]
            wanted.write_text("\n".join(lines) + "\n")
            command += ["--require-hashes", "-r", str(wanted)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["no output"])[-1]
                raise DsctlError(
                    f"the CUDA build cannot be fetched: {last}",
                    remedy="fetch it elsewhere and name its directory with --wheel",
                )
            for path in Path(wheels).glob("*.whl"):
                with zipfile.ZipFile(path) as archive:
                    archive.extractall(target)
        (target / ".complete").touch()
    return target
