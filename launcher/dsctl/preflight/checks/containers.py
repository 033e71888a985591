"""The container engine: matters when the engine runs in it, and is then asked for its faults."""

from __future__ import annotations

from dsctl.model.facts import Docker, DockerState
from dsctl.preflight.outcome import Outcome, SkipError, fail, good, warn
from dsctl.preflight.registry import CheckContext, check

_REMEDIES = {
    DockerState.NOT_INSTALLED: (
        "Docker is not installed, or not running",
        "install Docker Engine from its own repository (https://docs.docker.com/engine/install), "
        "or run with `--engine process`",
    ),
    DockerState.NOT_RUNNING: (
        "Docker does not run",
        "`sudo systemctl start docker`, or run with `--engine process`",
    ),
    DockerState.NO_PERMISSION: (
        "you may not talk to Docker",
        "`sudo usermod -aG docker $USER`, then log in again (that group is as good as root), or "
        "run with `--engine process`",
    ),
    DockerState.SILENT: (
        "Docker does not answer",
        "`sudo systemctl restart docker`; `journalctl -u docker -n 50` says why",
    ),
    DockerState.ERROR: (
        "Docker answers with an error",
        "`docker info` shows it; `journalctl -u docker -n 50` says why",
    ),
}


def needs_docker(context: CheckContext) -> bool:
    """Whether this start cannot do without a container engine."""
    return context.engine == "docker" or context.profile.engine.external


def _engine(context: CheckContext) -> Docker:
    """The engine, if it answers.

    Raises:
        SkipError: it does not (docker.engine says so), or nobody needs it.
    """
    docker = context.facts.docker
    if docker is None:
        raise SkipError(context.facts.why_absent("docker"))
    if docker.state is not DockerState.OK:
        raise SkipError(f"{_REMEDIES[docker.state][0]} (see docker.engine)")
    return docker


def _gravity(context: CheckContext, summary: str, remedy: str, detail: str = "") -> Outcome:
    """A fault of Docker stops a start in a container; without one it is worth knowing."""
    if needs_docker(context):
        return fail(summary, remedy, detail)
    return warn(summary, remedy, f"{detail}{'; ' if detail else ''}this start needs no container")


@check("docker.engine", needs=("docker",))
def engine(context: CheckContext) -> Outcome:
    """Whether it answers, and if not, which of the reasons."""
    docker = context.facts.docker
    assert docker is not None
    if docker.state is DockerState.OK:
        return good(f"Docker {docker.version} on {docker.operating_system}")
    summary, remedy = _REMEDIES[docker.state]
    if needs_docker(context):
        return fail(summary, remedy, docker.error or "")
    return good(f"{summary}; the engine runs as a plain process and does not need it")


@check("docker.gpu-runtime", needs=("docker",), device="cuda")
def gpu_runtime(context: CheckContext) -> Outcome:
    """A way to bring GPUs into a container, made for the driver that runs."""
    docker = _engine(context)
    cdi = [d for d in docker.cdi_devices if d.startswith("nvidia.com/gpu")]
    install = (
        "install nvidia-container-toolkit, then `sudo nvidia-ctk runtime configure "
        "--runtime=docker && sudo systemctl restart docker`"
    )
    nvml = context.facts.nvml
    driver = nvml.driver_version if nvml is not None else None
    if cdi and docker.cdi_spec_driver and driver and docker.cdi_spec_driver != driver:
        return _gravity(
            context,
            f"the CDI specification was made for driver {docker.cdi_spec_driver}, {driver} runs",
            "`sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`",
        )
    if "nvidia" in docker.runtimes or cdi:
        ways = ["runtime nvidia"] * ("nvidia" in docker.runtimes) + [f"CDI ({len(cdi)})"] * bool(
            cdi
        )
        return good(f"GPUs come into containers through {' and '.join(ways)}")
    return _gravity(context, "Docker cannot bring GPUs into containers", install)


@check("docker.cgroup-driver", needs=("docker",), device="cuda")
def cgroup_driver(context: CheckContext) -> Outcome:
    """With systemd's driver and the runtime hook, `daemon-reload` takes the GPUs away."""
    docker = _engine(context)
    if docker.cgroup_driver != "systemd":
        return good(f"cgroup driver {docker.cgroup_driver}")
    if any(d.startswith("nvidia.com/gpu") for d in docker.cdi_devices):
        return good("cgroup driver systemd, and CDI devices, which survive a daemon-reload")
    return warn(
        "containers lose their GPUs at the next `systemctl daemon-reload`",
        "use CDI: `sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`; or set "
        '"exec-opts": ["native.cgroupdriver=cgroupfs"] in /etc/docker/daemon.json',
        "package upgrades reload systemd; inside, NVML then says `Unknown Error`",
    )


@check("docker.packaging", needs=("docker",))
def packaging(context: CheckContext) -> Outcome:
    """Docker from snap, Docker Desktop and rootless Docker each break GPUs their own way."""
    docker = _engine(context)
    cuda = context.profile.hardware.device == "cuda"
    official = "install Docker Engine from https://docs.docker.com/engine/install"
    if docker.snap:
        return _gravity(
            context,
            "Docker comes from snap, which cannot see the driver",
            f"`sudo snap remove docker`, then {official}",
        )
    if docker.desktop and cuda and not context.facts.wsl:
        return _gravity(
            context,
            "this is Docker Desktop, whose virtual machine has no GPU",
            f"{official}, then `docker context use default`",
        )
    if docker.rootless and cuda:
        return warn(
            "Docker runs rootless: no device rules, and locked memory is limited",
            "set `no-cgroups = true` in /etc/nvidia-container-runtime/config.toml, and raise "
            "LimitMEMLOCK of user@.service",
        )
    return good(f"Docker Engine on {docker.operating_system}")
