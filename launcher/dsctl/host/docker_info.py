"""The container engine: its `/info` through the SDK, daemon.json, and CDI specifications."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dsctl.host.root import AbsentError, Root
from dsctl.model.facts import Docker, DockerState

_IMAGES, _IMAGE_IDS, _IMAGE_LABELS = "DsctlImages", "DsctlImageIds", "DsctlImageLabels"


def ask_docker(deadline_s: float) -> dict[str, Any]:
    """The engine's `/info`, or `{"error": …}`; every request has the deadline."""
    address = engine_address(os.environ, Path.exists)
    if address is None:  # no socket, no engine: not worth the import of an SDK
        return {"error": "not installed or not running: there is no Docker socket"}
    import docker
    from docker.errors import DockerException

    try:
        client = docker.DockerClient(base_url=address, timeout=max(1, round(deadline_s)))
        try:
            answer: dict[str, Any] = client.info()
            answer |= _images(client.api.images())
        finally:
            client.close()
    except DockerException as error:
        return {"error": str(error)}
    except OSError as error:  # requests' own errors are OSErrors
        return {"error": str(error)}
    return answer


def _images(listed: list[dict[str, Any]]) -> dict[str, Any]:
    """Of every image its names, the content each stands for, and the labels that are ours."""
    ids: dict[str, str] = {}
    labels: dict[str, dict[str, str]] = {}
    for image in listed:
        own = {k: v for k, v in (image.get("Labels") or {}).items() if k.startswith("dsctl.")}
        for name in (*(image.get("RepoTags") or []), *(image.get("RepoDigests") or [])):
            ids[name] = str(image["Id"])
            if own:
                labels[name] = own
    return {_IMAGES: sorted(ids), _IMAGE_IDS: ids, _IMAGE_LABELS: labels}


def engine_address(environment: Mapping[str, str], exists: Callable[[Path], bool]) -> str | None:
    """Where the engine listens: DOCKER_HOST, else the first socket of system, rootless, Desktop."""
    named = environment.get("DOCKER_HOST")
    if named:
        return named
    home = Path(environment.get("HOME", "/root"))
    candidates = [Path("/var/run/docker.sock")]
    if environment.get("XDG_RUNTIME_DIR"):
        candidates.append(Path(environment["XDG_RUNTIME_DIR"]) / "docker.sock")
    candidates.append(home / ".docker" / "desktop" / "docker.sock")
    return next((f"unix://{path}" for path in candidates if exists(path)), None)


def parse_docker(answer: Any, root: Root) -> Docker:
    """The value of a `docker.json`, with what daemon.json and the CDI specifications add.

    Raises:
        AbsentError: it does not have the form of an `/info` answer.
    """
    if not isinstance(answer, dict):
        raise AbsentError("docker.json is not an object")
    if "error" in answer:
        error = str(answer["error"])
        return Docker(state=_state(error), error=error)
    if "ServerVersion" not in answer:
        raise AbsentError("docker.json is not an /info answer: ServerVersion is missing")
    system = str(answer.get("OperatingSystem") or "")
    security = [str(s) for s in answer.get("SecurityOptions") or []]
    directory = str(answer.get("DockerRootDir") or "")
    devices = {str(d.get("ID")) for d in answer.get("DiscoveredDevices") or [] if d.get("ID")}
    spec_devices, spec_driver = cdi_specifications(root)
    return Docker(
        state=DockerState.OK,
        version=str(answer["ServerVersion"]),
        operating_system=system,
        cgroup_driver=answer.get("CgroupDriver"),
        cgroup_version=str(answer.get("CgroupVersion") or "") or None,
        runtimes=tuple(sorted(answer.get("Runtimes") or {})),
        default_runtime=answer.get("DefaultRuntime"),
        cdi_devices=tuple(sorted(devices | spec_devices)),
        cdi_spec_driver=spec_driver,
        rootless=any("rootless" in s for s in security),
        snap="/snap/" in directory,
        desktop="Docker Desktop" in system,
        root_directory=directory or None,
        default_memlock_bytes=default_memlock(root.text_or("etc/docker/daemon.json")),
        images=tuple(answer[_IMAGES]) if _IMAGES in answer else None,
        image_ids=answer.get(_IMAGE_IDS),
        image_labels=answer.get(_IMAGE_LABELS),
    )


def _state(error: str) -> DockerState:
    text = error.lower()
    if "permission denied" in text or "permissionerror" in text:
        return DockerState.NO_PERMISSION
    if "timed out" in text or "no answer" in text:
        return DockerState.SILENT
    if "no such file" in text or "filenotfounderror" in text or "not installed" in text:
        return DockerState.NOT_INSTALLED
    if "connection refused" in text or "cannot connect" in text or "connection aborted" in text:
        return DockerState.NOT_RUNNING
    return DockerState.ERROR


def default_memlock(daemon_json: str | None) -> int | None:
    """The memlock limit that daemon.json gives to every container (-1 is unlimited)."""
    try:
        value = json.loads(daemon_json or "{}")["default-ulimits"]["memlock"]
        return int(value.get("Hard", value.get("Soft")))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def cdi_specifications(root: Root) -> tuple[set[str], str | None]:
    """NVIDIA devices that CDI specifications on this host name, and the driver they were made for.

    The toolkit writes the driver's version into the library paths; that is how a stale one shows.
    """
    devices: set[str] = set()
    driver = None
    for directory in ("etc/cdi", "var/run/cdi"):
        for name in root.names(directory):
            text = root.text_or(f"{directory}/{name}") or ""
            if "nvidia.com/gpu" not in text:
                continue
            found = re.findall(r"^\s*(?:-\s+)?name:\s*[\"']?([\w.:-]+)", text, re.M)
            found += re.findall(r'"name"\s*:\s*"([\w.:-]+)"', text)
            devices |= {f"nvidia.com/gpu={n}" for n in found}
            version = re.search(r"libcuda\.so\.(\d{3}\.\d+(?:\.\d+)?)", text)
            driver = version[1] if version else driver
    return devices, driver
