"""From a profile to its two containers. Pure: what differs between machines comes as `Places`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dsctl.compose import policy
from dsctl.compose.spec import ContainerSpec, Deck, Mount, Port, Tmpfs
from dsctl.engine.command import engine_command
from dsctl.model.endpoint import Endpoint
from dsctl.model.profile import Knob, Profile, Source
from dsctl.planning.demand import demand_of
from dsctl.planning.host import shm_bytes

_CUDA_FILTER = "seccomp-engine-cuda.json"
_CPU_FILTER = "seccomp-engine.json"
_GATEWAY_FILTER = "seccomp-gateway.json"


@dataclass(frozen=True)
class Places:
    """What differs between machines: values for `up`, variables for a Compose file.

    `model_inside` is the checkpoint within what is mounted at /model, `hardening` the directory of
    the system call filters. `pack` and `tls` are None where there is none. `gpus` are UUIDs, one
    for each rank. The last three name the network and the volumes.
    """

    engine_image: str
    gateway_image: str
    model: str
    keys: str
    hardening: str
    bind: str
    port: str
    monitor_port: str
    model_inside: str = policy.MODEL
    pack: str | None = None
    tls: str | None = None
    gpus: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    network: str = "front"
    run_volume: str = "run"
    cache_volume: str = "cache"


def deck_of(profile: Profile, places: Places) -> Deck:
    """The deployment of a profile."""
    return Deck(
        profile=profile.id,
        engine=_engine(profile, places),
        gateway=_gateway(places),
        network=places.network,
        run_volume=places.run_volume,
        cache_volume=None if profile.engine.external else places.cache_volume,
        run_options=policy.FOREIGN_RUN_OPTIONS if profile.engine.external else {},
    )


def needs_pack(profile: Profile) -> bool:
    """Whether the engine reads prepared experts."""
    return bool(profile.value("pack_dir") or profile.value("experts", "native") != "native")


def in_container(profile: Profile) -> Profile:
    """The profile as the engine's container sees it: packs where they are mounted."""
    if not needs_pack(profile):
        return profile
    knob = Knob(value=policy.PACKS, source=Source.DERIVED, why="where the container has it")
    return profile.model_copy(update={"knobs": {**profile.knobs, "pack_dir": knob}})


def _engine(profile: Profile, places: Places) -> ContainerSpec:
    command = engine_command(
        in_container(profile),
        endpoint=Endpoint(uds=policy.SOCKET),
        checkpoint=Path(places.model_inside),
    )
    program = len(profile.engine.program) or len(("vllm", "serve"))
    mounts = [Mount("bind", places.model, policy.MODEL)]
    if places.pack is not None:
        mounts.append(Mount("bind", places.pack, policy.PACKS))
    foreign = profile.engine.external
    # what somebody else's image has at that place must not change the owner
    run = Mount("volume", places.run_volume, policy.RUN, read_only=False, no_copy=foreign)
    mounts.append(run)
    scratch = [Tmpfs("/tmp", policy.SCRATCH_BYTES)]
    if foreign:
        scratch.append(policy.FOREIGN_CACHE)
    else:
        mounts.append(Mount("volume", places.cache_volume, policy.CACHE, read_only=False))
    cuda = profile.hardware.device == "cuda"
    surroundings = policy.FOREIGN_ENV if foreign else {}
    env = {"VLLM_PLUGINS": "", **surroundings, **command.env, **policy.ENGINE_ENV}
    return ContainerSpec(
        role="engine",
        image=places.engine_image,
        user=policy.ENGINE_USER,
        entrypoint=_foreign_entrypoint(profile, command.argv[:program]),
        command=command.argv[program:],
        env=dict(sorted(env.items())),
        mounts=tuple(mounts),
        tmpfs=tuple(scratch),
        seccomp=f"{places.hardening}/{_CUDA_FILTER if cuda else _CPU_FILTER}",
        memory_bytes=policy.memory_limit(profile.hardware.host_memory_bytes),
        pids=policy.ENGINE_PIDS,
        shm_bytes=shm_bytes(demand_of(profile)),
        oom_score_adj=policy.ENGINE_OOM_SCORE,
        ulimits=policy.CUDA_ULIMITS if cuda else policy.ENGINE_ULIMITS,
        gpus=places.gpus,
        stop_grace_s=policy.ENGINE_GRACE_S,
        labels=_labels(profile.id, "engine", places),
    )


def _foreign_entrypoint(profile: Profile, program: tuple[str, ...]) -> tuple[str, ...]:
    """Somebody else's image: its program by name, with the umask that ours sets itself, without
    the variables that are to be gone."""
    if not profile.engine.external:
        return ()
    unset = [part for name in profile.engine.unset_env for part in ("-u", name)]
    without = ("/usr/bin/env", *unset) if unset else ()
    return (*policy.FOREIGN_SHELL, *without, *program)


def _gateway(places: Places) -> ContainerSpec:
    mounts = [
        # the engine's side gives the volume its owner; this image must not take it back
        Mount("volume", places.run_volume, policy.RUN, no_copy=True),
        Mount("bind", places.keys, policy.KEYS),
    ]
    if places.tls is not None:
        mounts.append(Mount("bind", places.tls, policy.TLS))
    return ContainerSpec(
        role="gateway",
        image=places.gateway_image,
        user=policy.GATEWAY_USER,
        command=("/etc/gateway/https.conf" if places.tls else "/etc/gateway/http.conf",),
        network=places.network,
        ports=(
            Port(places.bind, places.port, policy.API_PORT),
            Port("127.0.0.1", places.monitor_port, policy.MONITOR_PORT),
        ),
        mounts=tuple(mounts),
        tmpfs=(Tmpfs("/tmp", policy.GATEWAY_SCRATCH_BYTES),),
        seccomp=f"{places.hardening}/{_GATEWAY_FILTER}",
        memory_bytes=policy.GATEWAY_MEMORY_BYTES,
        pids=policy.GATEWAY_PIDS,
        oom_score_adj=policy.GATEWAY_OOM_SCORE,
        ulimits=policy.GATEWAY_ULIMITS,
        stop_grace_s=policy.GATEWAY_GRACE_S,
        labels=_labels("", "gateway", places),
    )


def _labels(profile: str, role: str, places: Places) -> dict[str, str]:
    labels = {"io.dsctl.role": role, **dict(places.labels)}
    return labels | ({"io.dsctl.profile": profile} if profile else {})
