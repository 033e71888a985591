"""One description, two readers: the Compose file and the Docker engine's request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from docker import APIClient
from typer.testing import CliRunner

from dsctl.cli.app import build_app
from dsctl.compose import policy
from dsctl.compose.deck import Places, deck_of, needs_pack
from dsctl.compose.portable import portable_deck
from dsctl.compose.render import document, render
from dsctl.compose.spec import Deck
from dsctl.engine.docker_request import host_arguments
from dsctl.errors import NotGoodError
from dsctl.image.inside.serve import CACHES
from dsctl.model.profile import Status
from dsctl.planning.catalog import load_profile, profile_names

ROOT = Path(__file__).resolve().parents[3]
PROFILES = [n for n in profile_names() if load_profile(n).status is not Status.UNSUPPORTED]
NO_USER_FILE = Path("/nonexistent/profiles.yaml")


@pytest.fixture(autouse=True)
def _no_settings_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def compose_of(profile: str) -> dict[str, Any]:
    return document(portable_deck(load_profile(profile)))


def resolved(profile: str, **overrides: str) -> Deck:
    loaded = load_profile(profile, overrides)
    return deck_of(
        loaded,
        Places(
            engine_image="engine:1",
            gateway_image="gateway:1",
            model="/models/m",
            pack="/packs/p" if needs_pack(loaded) else None,
            keys="/state/keys",
            hardening=str(ROOT / "hardening"),
            bind="127.0.0.1",
            port="8000",
            monitor_port="0",
            gpus=tuple(f"GPU-{n}" for n in range(loaded.hardware.gpus)),
        ),
    )


@pytest.mark.parametrize("profile", PROFILES)
def test_the_file_that_ships_is_the_one_that_is_printed(profile: str) -> None:
    printed = CliRunner().invoke(build_app(), ["compose", "--profile", profile])
    assert printed.exit_code == 0, printed.output
    shipped = (ROOT / "compose" / f"{profile}.yaml").read_text()
    again = f"dsctl compose --profile {profile} -o compose/{profile}.yaml"
    assert printed.stdout == shipped, f"write it again: {again}"


def test_a_profile_that_nothing_can_run_has_no_file() -> None:
    told = CliRunner().invoke(build_app(), ["compose", "--profile", "hybrid-cpu"])
    assert told.exit_code == 1
    assert isinstance(told.exception, NotGoodError)
    assert "unsupported" in str(told.exception)


def test_no_file_is_left_of_a_profile_that_is_gone() -> None:
    assert sorted(path.stem for path in (ROOT / "compose").glob("*.yaml")) == PROFILES


@pytest.mark.parametrize("profile", PROFILES)
def test_comments_change_nothing_of_the_document(profile: str) -> None:
    deck = portable_deck(load_profile(profile))
    assert yaml.safe_load(render(deck)) == document(deck)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_engine_has_no_way_out_and_the_gateway_the_only_port(profile: str) -> None:
    services = compose_of(profile)["services"]
    engine, gateway = services["engine"], services["gateway"]
    assert engine["network_mode"] == "none"
    assert "ports" not in engine
    assert "networks" not in engine
    assert gateway["networks"] == ["front"]
    assert all(port.startswith(("127.0.0.1:", "${BIND:-127.0.0.1}:")) for port in gateway["ports"])
    for service in (engine, gateway):
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "cap_add" not in service
        assert "privileged" not in service
        assert "no-new-privileges:true" in service["security_opt"]
        assert any(option.startswith("seccomp:") for option in service["security_opt"])
        assert service["ipc"] == "private"
        assert service["memswap_limit"] == service["mem_limit"]
        assert not service["user"].startswith("0")
        assert all("noexec" in line for line in service["tmpfs"] if not line.startswith("/cache:"))


@pytest.mark.parametrize("profile", PROFILES)
def test_only_the_socket_and_the_caches_are_writable(profile: str) -> None:
    engine = compose_of(profile)["services"]["engine"]
    writable = {v["target"] for v in engine["volumes"] if not v.get("read_only")}
    memory = {line.partition(":")[0] for line in engine["tmpfs"]}
    foreign = load_profile(profile).engine.external
    assert writable == ({"/run/engine"} if foreign else {"/run/engine", "/cache"})
    assert memory == ({"/tmp", "/cache"} if foreign else {"/tmp"})
    assert all(v["type"] == "volume" for v in engine["volumes"] if not v.get("read_only"))


@pytest.mark.parametrize("profile", PROFILES)
def test_cards_are_asked_for_one_by_one(profile: str) -> None:
    gpus = load_profile(profile).hardware.gpus
    engine = compose_of(profile)["services"]["engine"]
    if not gpus:
        assert "deploy" not in engine
        return
    (request,) = engine["deploy"]["resources"]["reservations"]["devices"]
    assert len(request["device_ids"]) == gpus
    assert "count" not in request


@pytest.mark.parametrize("profile", PROFILES)
def test_nothing_is_fetched_whatever_the_profile_says(profile: str) -> None:
    environment = compose_of(profile)["services"]["engine"]["environment"]
    for name, value in policy.ENGINE_ENV.items():
        assert environment[name] == value
    assert "VLLM_PLUGINS" in environment


def test_prepared_experts_are_read_where_they_are_mounted() -> None:
    deck = resolved("dual96-w2", pack_dir="/somewhere/on/the/host")
    config = json.loads(deck.engine.command[deck.engine.command.index("--additional-config") + 1])
    assert config["dsruntime"]["pack_dir"] == "/packs"
    assert {m.target: m.source for m in deck.engine.mounts if m.target == "/packs"} == {
        "/packs": "/packs/p"
    }


def test_a_dollar_in_a_value_is_no_variable_in_compose() -> None:
    deck = resolved("cpu-canary", additional_config='{"a": "$HOME"}')
    assert "$HOME" in " ".join(deck.engine.command)
    made = document(deck)["services"]["engine"]["command"]
    assert "$$HOME" in " ".join(made)


def test_somebody_elses_image_loses_the_variables_it_bakes_in() -> None:
    engine = resolved("dual96-community-image").engine
    assert engine.entrypoint[4:7] == ("/usr/bin/env", "-u", "NCCL_GRAPH_FILE")
    assert engine.entrypoint[-1] == "serve"
    assert engine.command[0] == "/model"


def test_somebody_elses_image_is_given_what_ours_brings() -> None:
    deck = resolved("dual96-community-image")
    assert deck.engine.entrypoint[:4] == ("/bin/sh", "-c", 'umask 0007; exec "$@"', "engine")
    assert deck.volumes == {"run": policy.FOREIGN_RUN_OPTIONS}
    assert "uid=10001,gid=10001,mode=0750" in policy.FOREIGN_RUN_OPTIONS["o"]
    (run,) = (m for m in deck.engine.mounts if m.target == "/run/engine")
    assert run.no_copy
    assert ",exec," in next(t for t in deck.engine.tmpfs if t.target == "/cache").options
    for name in CACHES:
        assert deck.engine.env[name].startswith("/cache")
    ours = resolved("dual96-w2")
    assert ours.volumes == {"run": {}, "cache": {}}
    assert ours.engine.entrypoint == ()
    assert not set(CACHES) & set(ours.engine.env)


@pytest.mark.parametrize("role", ["engine", "gateway"])
def test_what_up_asks_for_is_what_the_file_says(role: str) -> None:
    """The SDK's request against the Compose document, key by key."""
    deck = resolved("dual96-w2")
    spec = deck.engine if role == "engine" else deck.gateway
    said = document(deck)["services"][role]
    host = APIClient(version="1.41").create_host_config(**host_arguments(spec))
    assert host["NetworkMode"] == said.get("network_mode", deck.network)
    assert host["ReadonlyRootfs"] is said["read_only"]
    assert host["CapDrop"] == said["cap_drop"]
    assert host["IpcMode"] == said["ipc"]
    assert host["Memory"] == said["mem_limit"]
    assert host["MemorySwap"] == said["memswap_limit"]
    assert host["PidsLimit"] == said["pids_limit"]
    assert host["OomScoreAdj"] == said["oom_score_adj"]
    assert {u["Name"]: u["Hard"] for u in host["Ulimits"]} == said["ulimits"]
    assert host.get("ShmSize") == said.get("shm_size")
    assert [f"{k}:{v}" for k, v in host["Tmpfs"].items()] == said["tmpfs"]
    assert [(m["Source"], m["Target"], m["ReadOnly"]) for m in host["Mounts"]] == [
        (v["source"], v["target"], v.get("read_only", False)) for v in said["volumes"]
    ]
    path = said["security_opt"][1].removeprefix("seccomp:")
    assert host["SecurityOpt"][0] == said["security_opt"][0]
    assert json.loads(host["SecurityOpt"][1].removeprefix("seccomp=")) == json.loads(
        Path(path).read_text()
    )
    if role == "engine":
        (asked,) = said["deploy"]["resources"]["reservations"]["devices"]
        (request,) = host["DeviceRequests"]
        assert request["DeviceIDs"] == asked["device_ids"] == ["GPU-0", "GPU-1"]
        assert request["Count"] == 0
    else:
        assert host["PortBindings"] == {
            "8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8000"}],
            "8001/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}],
        }


FORBIDDEN = [
    "ptrace",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "setns",
    "unshare",
    "init_module",
    "finit_module",
    "delete_module",
    "kexec_load",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "io_uring_setup",
    "io_uring_enter",
    "keyctl",
    "add_key",
    "request_key",
    "open_by_handle_at",
    "process_vm_writev",
    "reboot",
    "swapon",
    "acct",
    "iopl",
    "ioperm",
    "settimeofday",
    "clock_settime",
    "setuid",
    "setgid",
    "setgroups",
    "capset",
    "personality",
    "quotactl",
    "syslog",
    "mknod",
    "fsopen",
]


@pytest.mark.parametrize("name", ["engine", "engine-cuda", "gateway"])
def test_filters_deny_by_default_and_let_nothing_dangerous_through(name: str) -> None:
    found = json.loads((ROOT / "hardening" / f"seccomp-{name}.json").read_text())
    assert found["defaultAction"] == "SCMP_ACT_ERRNO"
    allowed = [c for c in found["syscalls"] if c["action"] == "SCMP_ACT_ALLOW"]
    free = {n for c in allowed if "args" not in c for n in c["names"]}
    assert not free & set(FORBIDDEN)
    assert not free & {"clone", "clone3", "socket", "socketpair"}, "these depend on arguments"
    assert all(c["comment"] for c in found["syscalls"]), "each group says why it is there"


def test_cards_add_to_the_filter_and_nothing_else_changes() -> None:
    plain, cuda = (
        json.loads((ROOT / "hardening" / f"seccomp-{name}.json").read_text())["syscalls"]
        for name in ("engine", "engine-cuda")
    )
    added = [call for call in cuda if call not in plain]
    assert [call for call in plain if call not in cuda] == []
    assert len(added) == 1
    assert "not verified" in added[0]["comment"].lower()


def test_the_memory_limit_is_far_from_what_is_resident() -> None:
    for profile in PROFILES:
        loaded = load_profile(profile)
        limit = resolved(profile).engine.memory_bytes
        assert limit >= 2 * loaded.hardware.host_memory_bytes
