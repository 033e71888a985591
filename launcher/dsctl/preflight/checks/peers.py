"""Two cards that talk: IOMMU, ACS, and who believes the driver's word on peer access."""

from __future__ import annotations

from dsctl.model.facts import Gpu
from dsctl.preflight.outcome import Outcome, SkipError, fail, good, warn
from dsctl.preflight.proofs import proof_for
from dsctl.preflight.registry import CheckContext, check

PROVE = "`dsctl preflight --prove-p2p`"
_ON = "`--set peer_to_peer=on`"
_OFF = "`--set peer_to_peer=off` (which turns off both who use it)"


def nccl_p2p_off(context: CheckContext) -> bool:
    """Whether NCCL is told not to use peer access."""
    if context.value("peer_to_peer") == "off":
        return True
    return context.env("NCCL_P2P_DISABLE") in ("1", "True", "true")


def custom_all_reduce_off(context: CheckContext) -> bool:
    """Whether the engine's own all-reduce, which trusts the driver alone, is off."""
    if context.value("peer_to_peer") == "off":
        return True
    return bool(context.value("disable_custom_all_reduce", False))


def _safe(context: CheckContext) -> bool:
    """Nobody relies on peer access, or it has been proven on this very hardware."""
    if nccl_p2p_off(context) and custom_all_reduce_off(context):
        return True
    proof = proof_for(context.facts, context.paths)
    return proof is not None and proof.healthy


def _danger(context: CheckContext, summary: str, remedy: str, detail: str) -> Outcome:
    if _safe(context):
        return warn(summary, remedy, f"{detail}; this start does not rely on it")
    return fail(summary, remedy, detail)


@check("pcie.iommu", needs=("iommu",), device="cuda", min_gpus=2)
def iommu(context: CheckContext) -> Outcome:
    """An IOMMU that translates turns peer writes into nothing, while they report success."""
    found, system = context.facts.iommu, context.facts.system
    assert found is not None
    options = " ".join(system.iommu_options) if system is not None else ""
    said = f" (kernel: {options})" if options else ""
    if not found.types:
        return good(f"the IOMMU is off{said}")
    groups = _gpu_groups(context)
    kinds = {found.types.get(g, "unknown") for g in groups} if groups else set(found.types.values())
    if not any(kind.upper().startswith("DMA") for kind in kinds):
        return good(f"the IOMMU passes through ({', '.join(sorted(kinds))}){said}")
    vendor = context.facts.cpu.vendor if context.facts.cpu is not None else ""
    off = "amd_iommu=off" if vendor == "AuthenticAMD" else "intel_iommu=off"
    return _danger(
        context,
        f"the IOMMU translates the cards' traffic ({', '.join(sorted(kinds))}){said}",
        f"add `iommu=pt` (or `{off}`) to GRUB_CMDLINE_LINUX in /etc/default/grub, "
        f"`sudo update-grub`, reboot, then {PROVE}",
        "the first collective can hang for ever, or deliver wrong data, while "
        "`nvidia-smi topo -p2p r` says OK",
    )


def _gpu_groups(context: CheckContext) -> set[int]:
    pcie = context.facts.pcie
    if pcie is None:
        return set()
    return {d.iommu_group for d in pcie.gpus if d.iommu_group is not None}


@check("pcie.acs", needs=("pcie",), device="cuda", min_gpus=2)
def acs(context: CheckContext) -> Outcome:
    """ACS redirect sends peer traffic up to the root instead of straight across."""
    pcie, found = context.facts.pcie, context.facts.iommu
    assert pcie is not None
    path = {d.bdf: d for gpu in pcie.gpus for d in pcie.path(gpu.bdf)[1:]}
    redirecting = sorted(bdf for bdf, d in path.items() if d.acs_redirect)
    remedy = (
        "turn ACS off in the BIOS; or until the next boot: "
        "`sudo setpci -s {} ECAP_ACS+6.w=0000` for each port named here"
    )
    if redirecting:
        return _danger(
            context,
            f"ACS redirects peer requests at {', '.join(redirecting)}",
            remedy.format(redirecting[0]),
            "with a translating IOMMU the first collective can hang for ever",
        )
    if path and all(d.acs_redirect is False for d in path.values()):
        return good("no port redirects peer requests")
    groups = _gpu_groups(context)
    if found is not None and found.translates and len(groups) > 1:
        bridges = sorted(path) or ["BDF"]
        return _danger(
            context,
            "each card is in an IOMMU group of its own: the kernel has ACS redirect on",
            remedy.format(bridges[0]),
            "inferred from the groups; `sudo dsctl facts` reads the registers themselves",
        )
    if found is not None and not found.types:
        return good("no IOMMU, so the kernel turns no ACS redirect on", "the BIOS still may")
    raise SkipError(
        "the ACS registers are readable for root only: `sudo dsctl preflight` looks at them"
    )


@check("pcie.p2p", needs=("nvml",), device="cuda", min_gpus=2)
def p2p(context: CheckContext) -> Outcome:
    """The driver's word on peer access is no proof: both who believe it are off until proven."""
    nvml = context.facts.nvml
    assert nvml is not None
    used = context.used_gpus
    cells = [nvml.p2p[a.index][b.index] for a in used for b in used if _known(context, a, b)]
    if not any(cells):
        raise SkipError("the driver says nothing about peer access")
    granted = all(cell == "ok" for cell in cells)
    word = "OK" if granted else ", ".join(sorted({str(c) for c in cells if c != "ok"}))
    nccl, custom = nccl_p2p_off(context), custom_all_reduce_off(context)
    proof = proof_for(context.facts, context.paths)
    if proof is not None and not proof.healthy:
        if nccl and custom:
            return warn(
                f"the proving run found peer access unusable ({proof.verdict}); it stays off",
                "mend what pcie.iommu and pcie.acs name, then prove again: " + PROVE,
            )
        return fail(
            f"the proving run found peer access unusable ({proof.verdict})",
            f"turn it off: {_OFF}",
        )
    off = nccl and custom
    if proof is not None:
        text = f"peer access is proven on this hardware ({proof.when})"
        return good(f"{text}, and off", f"{_ON} makes it faster") if off else good(text)
    if off:
        return good(
            "peer access is off for both who use it, until it is proven here",
            _whether_to_prove(context, word, granted=granted),
        )
    if nccl != custom:
        missing = "--disable-custom-all-reduce" if nccl else "NCCL_P2P_DISABLE=1"
        return fail(
            f"only one user of peer access is off; {missing} is missing",
            f"{_OFF}, or prove it first: {PROVE}",
            "one of them alone moves the hang to a later moment",
        )
    if not granted:
        return fail(
            f"the driver says {word} for peer access, and the profile relies on it",
            f"turn it off: {_OFF}",
        )
    return fail(
        "peer access is on, and nobody has proven it here",
        f"{PROVE} (under a minute), or turn it off: {_OFF}",
        "the driver's OK has been wrong: hangs, and wrong data without an error",
    )


def _whether_to_prove(context: CheckContext, word: str, *, granted: bool) -> str:
    """What it costs to leave it off, and whether a proving run is worth its minute."""
    if not granted:
        return f"the driver says {word}, so there is nothing to prove"
    iommu, pcie = context.facts.iommu, context.facts.pcie
    redirected = pcie is not None and any(d.acs_redirect for d in pcie.devices)
    if redirected or (iommu is not None and iommu.translates):
        return f"pcie.iommu or pcie.acs speak against it: mend those first, then {PROVE}"
    return (
        f"the driver says OK, which has been wrong; {PROVE} (under a minute) finds out, and "
        f"once it is healthy {_ON} is faster (see `dsctl plan`)"
    )


def _known(context: CheckContext, a: Gpu, b: Gpu) -> bool:
    matrix = context.facts.nvml.p2p if context.facts.nvml is not None else ()
    return a.index != b.index and a.index < len(matrix) and b.index < len(matrix[a.index])


@check("pcie.p2p-verdict", needs=("p2p_verdicts",), device="cuda", min_gpus=2)
def p2p_verdict(context: CheckContext) -> Outcome:
    """vLLM's own verdict on disk outlives the hardware it was made on."""
    verdicts = context.facts.p2p_verdicts or ()
    system = context.facts.system
    if not verdicts:
        return good("vLLM keeps no verdict on peer access")
    booted = system.booted_at_s if system is not None else None
    if booted is None:
        raise SkipError("the time of the last boot is not known")
    stale = [v for v in verdicts if v.modified_at_s < booted]
    if not stale:
        return good(f"{len(verdicts)} verdict(s), made since the last boot")
    first = stale[0]
    says = "grants" if first.grants else "denies"
    return warn(
        f"a verdict from before the last boot {says} peer access between cards {first.devices}",
        f"remove it, vLLM makes a new one: `rm {first.path}` (`dsctl preflight --fix` does)",
        "it is keyed by the cards' numbers alone: a changed BIOS, driver, memory or slot does not "
        "make it new",
    )
