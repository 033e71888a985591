"""From facts, runs and a policy to findings and a verdict. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dsctl.model.finding import Finding, Status
from dsctl.model.profile import Profile
from dsctl.progress import human_bytes
from dsctl.vet.egress import egress_findings
from dsctl.vet.parser import flag_proof
from dsctl.vet.policy import Policy
from dsctl.vet.scan import HISTORY
from dsctl.vet.values import FlagProof, ImageFacts, Mark, MarkedFile, Parsed, Run, RunKind
from dsctl.vet.weigh import finding


def findings(
    facts: ImageFacts, runs: Sequence[Run], policy: Policy, profile: Profile | None
) -> list[Finding]:
    """Everything that is found about an image, good and bad."""
    found = [*_image(facts, policy), *_environment(facts, policy, profile)]
    found += [*_files(facts, policy), *_packages(facts, policy, profile)]
    found += egress_findings(runs, policy)
    found += [*_runs(runs, policy), *_parser(runs, policy)]
    return found


def flags_of(runs: Sequence[Run]) -> FlagProof | None:
    """What the image's parser said to the profile's flags, where it was asked."""
    asked = next((run for run in runs if run.kind is RunKind.FLAGS), None)
    return None if asked is None else flag_proof(asked)


def _image(facts: ImageFacts, policy: Policy) -> Iterable[Finding]:
    weights = policy.weights
    pinned = facts.asked if facts.pinned else ""
    known = facts.digests[0] if facts.digests else facts.image_id
    yield finding(
        "image.pinned",
        weights["image.pinned"],
        "" if pinned else f"{facts.asked} is a tag; its content is {known}",
        f"{facts.asked} says its content",
    )
    root = facts.user.partition(":")[0] in ("", "0", "root")
    yield finding(
        "image.user",
        weights["image.user"],
        "it runs as root" if root else "",
        f"it runs as {facts.user}",
    )
    for name, what, items in (
        ("image.ports", "port(s) declared", facts.ports),
        ("image.volumes", "volume(s) declared", facts.volumes),
    ):
        bad = f"{len(items)} {what}: {', '.join(items)}" if items else ""
        yield finding(name, weights[name], bad, f"no {what}")
    size = human_bytes(facts.size_bytes)
    summary = f"{size} in {len(facts.layers)} layer(s), {len(facts.packages)} packages"
    yield Finding(id="image.content", status=Status.PASS, summary=summary)


def _environment(facts: ImageFacts, policy: Policy, profile: Profile | None) -> Iterable[Finding]:
    settled = set()
    if profile is not None:
        settled = {*profile.env, *profile.engine.unset_env}
    for rule in policy.env:
        if rule.secret:
            names = list(facts.secrets.get(rule.id, ()))
        else:
            names = [n for n, v in facts.env.items() if v and rule.matches(n, v)]
        open_ = [n for n in names if n not in settled or rule.secret]
        items = [f"{n}={facts.env[n]}" if n in facts.env else n for n in open_] + [
            f"{n}: the profile settles it" for n in names if n not in open_
        ]
        good = "the profile settles all of it" if names else "none of it in the environment"
        bad = f"the image's environment sets {', '.join(open_)}" if open_ else ""
        if open_ == [HISTORY]:
            bad = "a build instruction holds a secret"
        yield finding(rule.id, rule, bad, good, items)


def _files(facts: ImageFacts, policy: Policy) -> Iterable[Finding]:
    weights = policy.weights
    seen = [f for f in facts.files if not f.buried]
    setuid = [f for f in seen if f.mark in (Mark.SETUID, Mark.SETGID)]
    strange = [f for f in setuid if not _usual(f.path, policy.usual_setuid)]
    yield finding(
        "files.setuid",
        weights["files.setuid"],
        _count(strange, "setuid or setgid file(s) that no distribution ships"),
        f"{len(setuid)} setuid or setgid file(s), the usual ones",
        map(_file, strange or setuid),
    )
    for name, mark, what, usual in (
        ("files.capability", Mark.CAPABILITY, "file(s) with capabilities", ()),
        (
            "files.world-writable",
            Mark.WORLD_WRITABLE,
            "place(s) that everybody may write",
            policy.usual_writable,
        ),
        ("files.device", Mark.DEVICE, "device node(s)", policy.usual_devices),
    ):
        marked = [f for f in seen if f.mark is mark and not _usual(f.path, usual)]
        yield finding(name, weights[name], _count(marked, what), f"no {what}", map(_file, marked))
    for rule in policy.files:
        ruled = [f for f in facts.files if f.detail == rule.id and f.mark is Mark.RULE]
        ruled = [f for f in ruled if rule.hidden or not f.buried]
        what = f"file(s): {', '.join(sorted({f.path for f in ruled})[:3])}"
        yield finding(rule.id, rule, _count(ruled, what), "none found", map(_file, ruled))


def _usual(path: str, patterns: Iterable[str]) -> bool:
    return any(re.search(pattern, path) for pattern in patterns)


def _count(items: Sequence[object], what: str) -> str:
    return f"{len(items)} {what}" if items else ""


def _file(file: MarkedFile) -> str:
    notes = [file.detail if file.mark is not Mark.RULE else "", f"layer {file.layer}"]
    notes += ["hidden by a later layer"] if file.buried else []
    return f"{file.mode:04o} /{file.path} ({', '.join(filter(None, notes))})"


def _packages(facts: ImageFacts, policy: Policy, profile: Profile | None) -> Iterable[Finding]:
    versions = {
        "vLLM": facts.version_of("vllm"),
        "torch": facts.version_of("torch"),
        "CUDA": facts.version_of("cuda", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"),
        "NCCL": facts.version_of("nvidia-nccl-cu13", "nvidia-nccl-cu12", "libnccl"),
    }
    told = ", ".join(f"{name} {version or 'not found'}" for name, version in versions.items())
    wanted = profile.engine.version if profile is not None else None
    have = versions["vLLM"]
    bad = ""
    if profile is not None and have is None:
        bad = f"no vLLM among its packages; the profile wants {wanted}"
    elif wanted is not None and have is not None and have.partition("+")[0] != wanted:
        bad = f"vLLM {have}; the profile was written for {wanted}"
    yield finding("packages.engine", policy.weights["packages.engine"], bad, told, [told])
    # A profile that names plugins has chosen them, and no other loads.
    chosen = profile is not None and "VLLM_PLUGINS" in profile.env
    strange = [p for p in facts.plugins if not (chosen or _usual(p, policy.usual_plugins))]
    yield finding(
        "packages.plugins",
        policy.weights["packages.plugins"],
        _count(strange, "plugin(s) that load into every process of the engine"),
        f"{len(facts.plugins)} plugin(s), " + ("chosen by the profile" if chosen else "all known"),
        strange or facts.plugins,
    )


def _runs(runs: Sequence[Run], policy: Policy) -> Iterable[Finding]:
    for run in runs:
        if run.kind not in (RunKind.ENTRYPOINT, RunKind.SERVE):
            continue
        name = f"run.{run.kind}"
        what = "entrypoint" if run.kind is RunKind.ENTRYPOINT else "profile's command"
        bad = ""
        if run.out_of_memory:
            bad = f"the {what} was ended for its memory after {run.watched_s:g} s"
        elif run.exit_code is not None:
            bad = f"the {what} ended by itself after {run.watched_s:g} s, exit code {run.exit_code}"
        good = f"the {what} ran for {run.watched_s:g} s, and was watched all the time"
        ports = sorted({f"{p.port}" for p in run.listeners if not p.loopback})
        listed = [f"it listened on port {', '.join(ports)}"] if ports else []
        listed += [f"| {line}" for line in run.last_lines[-4:]] if bad else []
        yield finding(name, policy.weights[name], bad, good, listed)


def _parser(runs: Sequence[Run], policy: Policy) -> Iterable[Finding]:
    helped = next((run for run in runs if run.kind is RunKind.HELP), None)
    if helped is not None:
        fine = helped.exit_code == 0
        listed = [] if fine else [f"| {line}" for line in helped.last_lines[-4:]]
        bad = "" if fine else f"`{' '.join(helped.argv)}` does not print its help"
        good = f"`{' '.join(helped.argv)}` prints its help"
        yield finding("parser.help", policy.weights["parser.help"], bad, good, listed)
    proof = flags_of(runs)
    if proof is None:
        return
    if proof.outcome is Parsed.UNPROVEN:
        weight = policy.weights["parser.flags-unproven"]
        bad = "whether it knows the profile's flags could not be found out"
        yield finding("parser.flags-unproven", weight, bad, "", [proof.why])
        return
    bad = ""
    if proof.outcome is Parsed.REFUSED:
        named = ", ".join(proof.refused) or proof.why
        bad = f"its parser refuses what the profile says: {named}"
    weight = policy.weights["parser.flags-refused"]
    good = f"its parser takes all {len(proof.flags)} flags of the profile, and no other"
    yield finding("parser.flags-refused", weight, bad, good, [proof.why] if bad else [])
