"""Collects the facts of a machine: live, or from a recorded tree, through the same parsers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dsctl.errors import ConfigError
from dsctl.host import cpu, disks, docker_info, memory, net, nvml, pci, pythons, system, verdicts
from dsctl.host.root import AbsentError, Root
from dsctl.model.facts import FACTS_SCHEMA, DockerState, Facts, Shm, SwapDevice
from dsctl.paths import user_paths

T = TypeVar("T")

#: How long the driver and the container engine may take; both normally answer in under 0.5 s.
DEADLINE_S = 5.0
_SHM = "/dev/shm"


def collect(
    sysroot: Path | None = None,
    *,
    deadline_s: float = DEADLINE_S,
    measure: tuple[Path, ...] = (),
) -> Facts:
    """The facts of this machine, or of the one recorded under `sysroot`.

    A source that cannot be read is `None` in the facts, its reason in `Facts.absent`; a source
    that does not answer is given up after `deadline_s`. `measure` names files whose disks' read
    speed is measured (live only, up to 2 s each).

    Raises:
        ConfigError: `sysroot` is not a directory.
    """
    began = time.monotonic()
    if sysroot is not None and not sysroot.is_dir():
        raise ConfigError(
            f"--sysroot {sysroot}: is not a directory",
            remedy="give the directory of a recorded host (docs/preflight.md says what is in it)",
        )
    root = Root(sysroot or Path("/"), recorded=sysroot is not None)
    answers = _recorded(root) if sysroot is not None else _live(deadline_s)
    facts = _assemble(root, answers)
    for file in measure:
        facts = _with_speed(facts, file)
    return facts.model_copy(update={"elapsed_s": round(time.monotonic() - began, 3)})


def read_facts(text: str, name: str) -> Facts:
    """Facts from their JSON form; `name` is the file's, for errors.

    Raises:
        ConfigError: not JSON, not facts, or of another version; names file and key.
    """
    from pydantic import ValidationError

    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{name}:{error.lineno}: not JSON: {error.msg}",
            remedy="make it with `dsctl facts -o FILE`",
        ) from None
    version = values.get("schema_version") if isinstance(values, dict) else None
    if version != FACTS_SCHEMA:
        raise ConfigError(
            f"{name}: key 'schema_version': {version!r} is not {FACTS_SCHEMA}, the one read here",
            remedy="make it again with `dsctl facts -o FILE` of this version",
        )
    try:
        return Facts.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"{name}: key '{key}': {first['msg']}", remedy="make it with `dsctl facts -o FILE`"
        ) from None


Answer = Callable[[], Any]


def _recorded(root: Root) -> dict[str, Answer]:
    """The answers beside a recorded tree: `nvml.json`, `docker.json`, `disks.json`."""

    def read(name: str) -> Answer:
        def answer() -> Any:
            try:
                return json.loads(root.text(name))
            except json.JSONDecodeError as error:
                raise AbsentError(f"{name}:{error.lineno}: not JSON: {error.msg}") from None

        return answer

    def pythons_unknown() -> Any:
        raise AbsentError("a recorded host does not list its Python interpreters")

    def compilers_unknown() -> Any:
        raise AbsentError("a recorded host does not list its compilers")

    named = {n: read(f"{n}.json") for n in ("nvml", "docker", "disks", "verdicts")}
    return {**named, "pythons": pythons_unknown, "compilers": compilers_unknown}


def _live(deadline_s: float) -> dict[str, Answer]:
    """Asks this machine: everything that may hang starts now, side by side, with a deadline."""
    return {
        "nvml": _later(lambda: nvml.ask_driver(deadline_s), "the driver", deadline_s + 1),
        "docker": _later(lambda: docker_info.ask_docker(deadline_s), "Docker", deadline_s + 1),
        "disks": _later(disks.ask_disks, "a filesystem", deadline_s),
        "verdicts": lambda: verdicts.find_verdicts(_vllm_caches()),
        "pythons": pythons.pythons,
        "compilers": pythons.compilers,
    }


def _vllm_caches() -> list[Path]:
    """Where engines of this user keep verdicts: vLLM's default, and our engines' own caches."""
    own = user_paths().engine_caches
    return [Path.home() / ".cache" / "vllm", *sorted(own.glob("*/vllm"))]


def _later(work: Callable[[], T], who: str, deadline_s: float) -> Callable[[], T]:
    """Starts `work` in a thread that may be left behind; the result is asked for later."""
    done: list[T] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            done.append(work())
        except Exception as error:  # handed to whoever asks for the result
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    until = time.monotonic() + deadline_s
    thread.start()

    def result() -> T:
        thread.join(max(0.0, until - time.monotonic()))
        if done:
            return done[0]
        if failed:
            raise AbsentError(f"asking {who} failed: {failed[0]}")
        raise AbsentError(f"{who} gave no answer within {deadline_s:g} s")

    return result


def _assemble(root: Root, answers: dict[str, Answer]) -> Facts:
    sections: dict[str, Any] = {}
    absent: dict[str, str] = {}

    def section(name: str, read: Callable[[], Any]) -> None:
        try:
            sections[name] = read()
        except AbsentError as error:
            absent[name] = str(error)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            # Text from a foreign kernel: say so, and let the checks that need it skip.
            absent[name] = f"not in the form expected: {type(error).__name__}: {error}"

    section("cpu", lambda: cpu.cpu(root))
    section("memory", lambda: memory.memory(root))
    section("vm", lambda: memory.vm(root))
    section("pressure", lambda: memory.parse_pressure(root.text("proc/pressure/memory")))
    section("numa", lambda: memory.numa(root))
    section("limits", lambda: system.parse_limits(root.text("proc/self/limits")))
    section("system", lambda: system.system(root))
    section("pcie", lambda: pci.pcie(root))
    section("iommu", lambda: pci.iommu(root))
    section("kernel_module", lambda: system.kernel_module(root))
    section("listeners", lambda: net.listeners(root))
    section("disks", lambda: disks.parse_disks(answers["disks"](), root))
    section("swap", lambda: _swap(root, sections))
    section("shm", lambda: _shm(sections, absent))
    section("pythons", lambda: answers["pythons"]())
    section("compilers", lambda: answers["compilers"]())
    section("verdicts", lambda: verdicts.parse_verdicts(answers["verdicts"]()))
    section("nvml", lambda: nvml.parse_nvml(answers["nvml"]()))
    section("docker", lambda: _docker(root, answers["docker"]))
    sections["p2p_verdicts"] = sections.pop("verdicts", None)
    if "verdicts" in absent:
        absent["p2p_verdicts"] = absent.pop("verdicts")
    source = f"recorded: {root.path.name}" if root.recorded else "live"
    return Facts(source=source, absent=absent, **sections)


def _swap(root: Root, sections: dict[str, Any]) -> tuple[SwapDevice, ...]:
    devices = memory.parse_swaps(root.text("proc/swaps"))
    return tuple(disks.with_disks(devices, sections.get("disks") or (), root))


def _shm(sections: dict[str, Any], absent: dict[str, str]) -> Shm:
    for disk in sections.get("disks") or ():
        if disk.path == _SHM:
            return memory.shm_of(disk.total_bytes, disk.free_bytes)
    raise AbsentError(absent.get("disks", f"{_SHM} is not mounted"))


def _docker(root: Root, answer: Answer) -> Any:
    try:
        return docker_info.parse_docker(answer(), root)
    except AbsentError as error:
        if "no answer" not in str(error):
            raise
        from dsctl.model.facts import Docker

        return Docker(state=DockerState.SILENT, error=str(error))


def _with_speed(facts: Facts, file: Path) -> Facts:
    disk = facts.disk_of(str(file.resolve()))
    speed = disks.read_speed(file)
    if disk is None or speed is None:
        return facts
    measured = disk.model_copy(update={"read_bytes_per_s": speed})
    changed = tuple(measured if d is disk else d for d in facts.disks or ())
    return facts.model_copy(update={"disks": changed})
