"""Each thing an image can have or do is found, and weighs what the policy says."""

from __future__ import annotations

from typing import Any

import pytest

from dsctl.model.finding import Finding, Status, report
from dsctl.vet.judge import findings
from dsctl.vet.scan import HIDDEN
from dsctl.vet.values import Mark, MarkedFile, Package, RunKind
from tests.launcher.vet.values import POLICY, all_known, attempt, community, facts, run

QUIET = (run(), run(RunKind.HELP, exit_code=0, argv=("vllm", "serve", "--help")))


def judged(image: Any, runs: Any = QUIET, profile: Any = None) -> dict[str, Finding]:
    return {f.id: f for f in findings(image, runs, POLICY, profile)}


def file(path: str, mark: Mark = Mark.SETUID, **more: Any) -> MarkedFile:
    return MarkedFile(path=path, mark=mark, mode=more.pop("mode", 0o4755), **more)


def test_a_clean_image_passes() -> None:
    profile = community()
    runs = (*QUIET, all_known(profile), run(RunKind.SERVE))
    found = report(None, findings(facts(), runs, POLICY, profile))
    assert [f for f in found.findings if f.status is not Status.PASS] == []
    assert found.verdict is Status.PASS


SPOILED: list[tuple[str, Status, dict[str, Any]]] = [
    ("image.pinned", Status.WARN, {"asked": "theirs/vllm:x"}),
    ("image.user", Status.WARN, {"user": ""}),
    ("image.user", Status.WARN, {"user": "0:0"}),
    ("image.user", Status.WARN, {"user": "root"}),
    ("image.volumes", Status.WARN, {"volumes": ("/data",)}),
    ("env.secrets", Status.FAIL, {"secrets": {"env.secrets": ("HF_TOKEN",)}}),
    ("env.secret-values", Status.FAIL, {"secrets": {"env.secret-values": ("history",)}}),
    ("env.topology", Status.WARN, {"env": {"NCCL_TOPO_FILE": "/opt/topo.xml"}}),
    ("env.collectives", Status.WARN, {"env": {"VLLM_ALLREDUCE_USE_SYMM_MEM": "1"}}),
    ("env.collectives", Status.WARN, {"env": {"NCCL_P2P_LEVEL": "SYS"}}),
    ("env.preload", Status.WARN, {"env": {"LD_PRELOAD": "/opt/x.so"}}),
    ("env.proxies", Status.FAIL, {"env": {"https_proxy": "http://proxy.example.org"}}),
    ("env.driver-checks", Status.WARN, {"env": {"NVIDIA_DISABLE_REQUIRE": "1"}}),
    ("env.telemetry", Status.WARN, {"env": {"HF_HUB_OFFLINE": "0"}}),
    ("files.setuid", Status.FAIL, {"files": (file("usr/bin/helper"),)}),
    ("files.capability", Status.WARN, {"files": (file("usr/bin/x", Mark.CAPABILITY),)}),
    ("files.world-writable", Status.WARN, {"files": (file("opt/x", Mark.WORLD_WRITABLE),)}),
    ("files.device", Status.WARN, {"files": (file("opt/null", Mark.DEVICE),)}),
    ("files.secrets", Status.FAIL, {"files": (file("a", Mark.RULE, detail="files.secrets"),)}),
    (
        "files.secrets",
        Status.FAIL,
        {"files": (file("a", Mark.RULE, detail="files.secrets", buried=True),)},
    ),
    ("packages.plugins", Status.WARN, {"plugins": ("vllm.general_plugins: x = y:z",)}),
]


@pytest.mark.parametrize(("id", "status", "changed"), SPOILED, ids=lambda v: str(v)[:60])
def test_what_is_wrong_is_found(id: str, status: Status, changed: dict[str, Any]) -> None:
    found = judged(facts(**changed))
    assert {f.id for f in found.values() if f.status is not Status.PASS} == {id}
    assert found[id].status is status


HARMLESS: list[dict[str, Any]] = [
    {"files": (file("usr/bin/passwd"), file("usr/sbin/unix_chkpwd", Mark.SETGID))},
    {"files": (file("usr/bin/helper", buried=True),)},
    {"files": (file("var/tmp/x", Mark.WORLD_WRITABLE), file("dev/null", Mark.DEVICE))},
    {"files": (file("a", Mark.RULE, detail="files.topology", buried=True),)},
    {"env": {"HF_HUB_OFFLINE": "1", "NCCL_DEBUG": "INFO", "NCCL_GRAPH_FILE": ""}},
    {"ports": ("8000/tcp",)},
    {"plugins": ("vllm.general_plugins: lora_hf_hub_resolver = vllm.plugins.lora:register",)},
]


@pytest.mark.parametrize("changed", HARMLESS, ids=lambda v: str(v)[:60])
def test_what_is_usual_is_no_fault(changed: dict[str, Any]) -> None:
    assert {f.status for f in judged(facts(**changed)).values()} == {Status.PASS}


def test_what_the_profile_sets_or_takes_away_is_settled() -> None:
    env = {"NCCL_GRAPH_FILE": "/opt/graph.xml", "VLLM_ENABLE_PCIE_ALLREDUCE": "1"}
    found = judged(facts(env=env), profile=community())
    assert found["env.topology"].status is Status.PASS
    assert "the profile settles it" in found["env.topology"].detail
    assert found["env.collectives"].status is Status.PASS
    rest = judged(facts(env=env | {"VLLM_ALLREDUCE_USE_SYMM_MEM": "1"}), profile=community())
    assert "VLLM_ALLREDUCE_USE_SYMM_MEM" in rest["env.collectives"].summary
    assert "PCIE" not in rest["env.collectives"].summary


def test_a_secret_is_named_and_never_shown() -> None:
    image = facts(env={"HF_TOKEN": HIDDEN}, secrets={"env.secrets": ("HF_TOKEN",)})
    assert f"HF_TOKEN={HIDDEN}" in judged(image)["env.secrets"].detail


def test_the_engines_version_is_compared_with_the_profiles() -> None:
    local = facts(packages=(Package(manager="python", name="vllm", version="0.32.0+cu130"),))
    assert judged(local, profile=community())["packages.engine"].status is Status.PASS
    old = facts(packages=(Package(manager="python", name="vllm", version="0.24.1"),))
    assert "0.24.1" in judged(old, profile=community())["packages.engine"].summary
    none = judged(facts(packages=()), profile=community())["packages.engine"]
    assert none.status is Status.WARN
    assert judged(facts(packages=()))["packages.engine"].status is Status.PASS


def test_plugins_are_settled_by_a_profile_that_names_those_it_wants() -> None:
    image = facts(plugins=("vllm.general_plugins: x = y:z",))
    assert judged(image, profile=community())["packages.plugins"].status is Status.WARN
    knob = community().env["DO_NOT_TRACK"].model_copy(update={"value": "x"})
    chosen = community().model_copy(update={"env": {"VLLM_PLUGINS": knob}})
    assert judged(image, profile=chosen)["packages.plugins"].status is Status.PASS


TRIED = [
    ("egress.names", Status.FAIL, attempt("dns", "8.8.8.8", port=53, name="a.example.org")),
    ("egress.connections", Status.FAIL, attempt("tcp", "203.0.113.9", port=443)),
    ("egress.connections", Status.FAIL, attempt("tcp", "2001:db8::1", port=443)),
    ("egress.connections", Status.FAIL, attempt("udp", "203.0.113.9", port=8125)),
    ("egress.connections", Status.FAIL, attempt("icmp", "203.0.113.9")),
    ("egress.multicast", Status.WARN, attempt("udp", "224.0.0.251", port=5353)),
    ("egress.multicast", Status.WARN, attempt("udp", "ff02::fb", port=5353)),
]


@pytest.mark.parametrize(("id", "status", "tried"), TRIED, ids=lambda v: str(v)[:50])
@pytest.mark.parametrize("kind", list(RunKind))
def test_whatever_it_tried_to_reach_in_any_run_is_found(
    kind: RunKind, id: str, status: Status, tried: Any
) -> None:
    noisy = run(kind, attempts=(tried,), argv=("vllm",), last_lines=("error: x",))
    found = judged(facts(), (noisy,))
    assert found[id].status is status
    assert f"{kind}: after 1.0 s" in found[id].detail


def test_a_policy_can_allow_a_destination() -> None:
    tried = (attempt("dns", "8.8.8.8", port=53, name="time.example.org"),)
    calm = POLICY.model_copy(update={"allowed_egress": (r"^dns time\.example\.org$",)})
    found = {f.id: f for f in findings(facts(), (run(attempts=tried),), calm, None)}
    assert found["egress.names"].status is Status.PASS


def test_what_the_trap_could_not_see_is_said() -> None:
    half = run(families=(4,), missing={"6": "Operation not supported"})
    assert "IPv6: Operation not supported" in judged(facts(), (half,))["egress.uncaught"].summary
    flooded = judged(facts(), (run(lost=7),))["egress.uncaught"]
    assert flooded.status is Status.WARN


def test_a_start_that_ended_early_was_not_seen_to_serve() -> None:
    died = run(exit_code=1, watched_s=0.4, last_lines=("RuntimeError: no CUDA GPUs",))
    found = judged(facts(), (died,))["run.entrypoint"]
    assert found.status is Status.WARN
    assert "no CUDA GPUs" in found.detail
    assert (
        "memory"
        in judged(facts(), (run(exit_code=137, out_of_memory=True),))["run.entrypoint"].summary
    )
