"""The proving run: real all-reduces with values checked, and a control arm without peer access.

The driver's word on peer access has been wrong both ways, so the only proof is traffic. The script
runs in the engine's own Python (it needs torch); dsctl only starts it, watches the clock, and tells
the ends apart.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dsctl.errors import NotGoodError
from dsctl.model.facts import Facts
from dsctl.paths import Paths
from dsctl.preflight.proofs import Proof, ProofVerdict, fingerprint, keep_proof
from dsctl.progress import Progress, Reporter

#: A healthy pair of cards is through in a few seconds; torch alone takes up to 20 to import.
DEADLINE_S = 60.0
SCRIPT = Path(__file__).with_name("p2p_collective.py")
_GRACE_S = 1.0

#: As the profiles have it: peer copies across the root complex too, which NCCL leaves by itself.
_ON = {"NCCL_P2P_LEVEL": "SYS"}
#: The control arm: nobody uses peer access.
_OFF = {"NCCL_P2P_DISABLE": "1", "VLLM_SKIP_P2P_CHECK": "1"}
_COMMON = {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}


@dataclass(frozen=True)
class Arm:
    """How one arm ended: `ok`, `hang`, `wrong data`, `failed`; `said` is its last words."""

    ended: str
    said: str


def run_arm(
    python: Path,
    *,
    peers: bool,
    backend: str = "nccl",
    ranks: int = 2,
    deadline_s: float = DEADLINE_S,
    extra: tuple[str, ...] = (),
    cards: str = "",
) -> Arm:
    """One arm in a process group of its own, which is ended at the deadline.

    `cards`: which are used, as CUDA_VISIBLE_DEVICES in the order of the PCI bus.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("NCCL_")} | _COMMON
    env |= _ON if peers else _OFF
    if cards:
        env |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": cards}
    process = subprocess.Popen(
        [str(python), str(SCRIPT), "--backend", backend, "--ranks", str(ranks), *extra],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        return Arm("hang", f"no end within {deadline_s:g} s")
    finally:
        # A rank that hangs in a driver call may survive even this; nobody waits for it.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    last = said.strip().splitlines()[-1] if said.strip() else ""
    match process.returncode:
        case 0:
            return Arm("ok", last)
        case 3:
            return Arm("wrong data", last)
        case code:
            return Arm("failed", last or f"exit code {code}")


def judge(on: Arm, off: Arm) -> ProofVerdict:
    """The verdict of both arms. Without a control arm that works nothing is proven at all."""
    if off.ended != "ok":
        return "inconclusive"
    if on.ended == "ok":
        return "healthy"
    if on.ended == "hang":
        return "hang"
    return "wrong data" if on.ended == "wrong data" else "inconclusive"


def largest_pair(facts: Facts) -> str:
    """Indices of the two cards with the most memory: not that of a display beside them."""
    by_size = sorted(facts.gpus, key=lambda gpu: (-(gpu.memory_total_bytes or 0), gpu.index))
    return ",".join(str(index) for index in sorted(gpu.index for gpu in by_size[:2]))


def prove_and_keep(
    facts: Facts, paths: Paths, report: Reporter, python: Path | None = None
) -> Proof:
    """Runs both arms, remembers the verdict for this hardware.

    Raises:
        NotGoodError: there are not two cards, or no engine environment to run it in.
    """
    if len(facts.gpus) < 2:
        raise NotGoodError(
            f"--prove-p2p needs two GPUs, the driver names {len(facts.gpus)}",
            remedy="leave --prove-p2p away on this machine",
        )
    python = python or _engine_python(paths)
    report(Progress("control arm: all-reduce without peer access"))
    cards = largest_pair(facts)
    off = run_arm(python, peers=False, cards=cards)
    report(Progress(f"control arm: {off.ended}; now with peer access"))
    on = run_arm(python, peers=True, cards=cards) if off.ended == "ok" else Arm("failed", "not run")
    report(Progress(f"with peer access: {on.ended} ({on.said})"))
    proof = Proof(
        verdict=judge(on, off),
        fingerprint=fingerprint(facts),
        when=time.strftime("%Y-%m-%d %H:%M", time.localtime()),
    )
    if proof.verdict == "inconclusive":
        report(Progress(f"inconclusive: {off.said if off.ended != 'ok' else on.said}"))
    else:
        keep_proof(proof, paths)
    return proof


def _engine_python(paths: Paths) -> Path:
    """The Python of the engine's CUDA environment."""
    for marker in sorted(paths.environments.glob("cuda-*/bin/python")):
        return marker
    raise NotGoodError(
        "the proving run needs the engine's CUDA environment, which is not made yet",
        remedy="`dsctl env build --lock cuda`; or run it with any Python that has torch for CUDA: "
        f"`python {SCRIPT}`",
    )
