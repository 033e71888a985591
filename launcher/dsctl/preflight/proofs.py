"""What a proving run found, kept with a fingerprint of the hardware it was made on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from dsctl.files import write_atomically
from dsctl.model.base import Value
from dsctl.model.facts import Facts
from dsctl.paths import Paths

ProofVerdict = Literal["healthy", "hang", "wrong data", "inconclusive"]


class Proof(Value):
    """The verdict of one proving run, and where it holds."""

    verdict: ProofVerdict
    fingerprint: str
    when: str

    @property
    def healthy(self) -> bool:
        """Whether peer access delivered right values in time."""
        return self.verdict == "healthy"


def fingerprint(facts: Facts) -> str:
    """Everything that has been seen to change peer access: driver, BIOS, slots, IOMMU, memory."""
    system, memory, pcie = facts.system, facts.memory, facts.pcie
    parts = {
        "driver": facts.nvml.driver_version if facts.nvml is not None else None,
        "kernel": system.kernel if system is not None else None,
        "cmdline": system.iommu_options if system is not None else None,
        "bios": system.bios_version if system is not None else None,
        "memory": memory.total_bytes >> 30 if memory is not None else None,
        "gpus": [(g.name, g.pci_bus_id) for g in facts.gpus],
        "tree": [
            (d.bdf, d.link_width, d.acs_redirect)
            for d in (pcie.devices if pcie is not None else ())
        ],
        "iommu": sorted(set(facts.iommu.types.values())) if facts.iommu is not None else None,
    }
    text = json.dumps(parts, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _file(paths: Paths) -> Path:
    return paths.state / "p2p-proof.json"


def proof_for(facts: Facts, paths: Paths | None) -> Proof | None:
    """The proof made on this hardware; one of other hardware counts for nothing."""
    if paths is None or facts.source != "live":
        return None
    try:
        proof = Proof.model_validate_json(_file(paths).read_text())
    except (OSError, ValidationError):
        return None
    return proof if proof.fingerprint == fingerprint(facts) else None


def keep_proof(proof: Proof, paths: Paths) -> None:
    """Remember a proving run."""
    paths.state.mkdir(parents=True, exist_ok=True)
    write_atomically(_file(paths), proof.model_dump_json() + "\n")
