"""The parsers: text as a kernel writes it in, values out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsctl.host.cpu import parse_cpuinfo
from dsctl.host.disks import rotational
from dsctl.host.docker_info import default_memlock, engine_address, parse_docker
from dsctl.host.memory import parse_list, parse_meminfo, parse_pressure, parse_swaps
from dsctl.host.net import parse_tcp
from dsctl.host.pci import acs_redirect, parse_resource, parse_speed, parse_width
from dsctl.host.root import AbsentError, Root
from dsctl.host.system import (
    kernel_release,
    parse_limits,
    parse_module,
    parse_os_release,
    wsl_version,
)
from dsctl.model.facts import DockerState, SwapKind

GIB = 1 << 30


def test_meminfo_is_in_bytes_and_counts_stay_counts() -> None:
    values = parse_meminfo("MemTotal:  8 kB\nHugePages_Total:   3\nActive(anon):  2 kB\n")
    assert values == {"MemTotal": 8192, "HugePages_Total": 3, "Active(anon)": 2048}


def test_a_nodes_meminfo_has_the_node_before_each_line() -> None:
    assert parse_meminfo("Node 1 MemTotal:       97832564 kB\n")["MemTotal"] == 97832564 * 1024


def test_swaps_tell_file_partition_and_zram_apart() -> None:
    text = (
        "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
        "/swap\\040file                           file\t\t8388604\t\t1024\t\t-2\n"
        "/dev/zram0                              partition\t8388604\t0\t\t100\n"
        "/dev/sda2                               partition\t2097148\t0\t\t-3\n"
    )
    found = parse_swaps(text)
    assert [d.kind for d in found] == [SwapKind.FILE, SwapKind.ZRAM, SwapKind.PARTITION]
    assert found[0].path == "/swap file"
    assert found[0].used_bytes == 1 << 20


def test_pressure_of_a_kernel_without_psi_is_absent_not_zero() -> None:
    with pytest.raises(AbsentError):
        parse_pressure("")


@given(st.sets(st.integers(min_value=0, max_value=300), min_size=1))
def test_the_kernels_list_form_round_trips(numbers: set[int]) -> None:
    ordered = sorted(numbers)
    assert parse_list(",".join(map(str, ordered))) == tuple(ordered)
    first, last = ordered[0], ordered[-1]
    assert parse_list(f"{first}-{last}") == tuple(range(first, last + 1))


def test_cpuinfo_counts_sockets_cores_and_threads() -> None:
    block = (
        "processor\t: {}\nmodel name\t: X\nphysical id\t: {}\ncore id\t\t: {}\nflags\t\t: avx2\n"
    )
    text = "\n".join(block.format(n, n % 2, (n // 2) % 2) for n in range(8))
    found = parse_cpuinfo(text)
    assert (found.sockets, found.cores, found.threads) == (2, 4, 8)
    assert found.features == ("avx2",)


@pytest.mark.parametrize(
    ("version", "wsl"),
    [
        ("Linux version 6.6.87.2-microsoft-standard-WSL2 (root@x) (gcc)", 2),
        ("Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com)", 1),
        ("Linux version 5.15.90.1-microsoft-standard (oe-user@oe-host)", 2),
        ("Linux version 6.14.0-33-generic (buildd@lcy02)", None),
    ],
)
def test_wsl_is_told_by_the_kernels_name(version: str, wsl: int | None) -> None:
    assert wsl_version(kernel_release(version), version) == wsl


def test_os_release_values_lose_their_quotes() -> None:
    found = parse_os_release('ID=debian\nPRETTY_NAME="Debian GNU/Linux 13 (trixie)"\n# no\n')
    assert found == {"ID": "debian", "PRETTY_NAME": "Debian GNU/Linux 13 (trixie)"}


def test_limits_know_unlimited() -> None:
    found = parse_limits(
        "Max stack size            8388608              unlimited            bytes     \n"
        "Max open files            1024                 524288               files     \n"
        "Max locked memory         unlimited            unlimited            bytes     \n"
    )
    assert found.memlock.hard is None
    assert found.stack.soft == 8 << 20
    assert found.nofile.hard == 524288


@pytest.mark.parametrize(
    ("line", "version", "is_open"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  610.43.03  Release Build",
            "610.43.03",
            True,
        ),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.105.08  Wed Oct",
            "580.105.08",
            False,
        ),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  565.57  Thu", "565.57", False),
    ],
)
def test_the_module_tells_version_and_flavour(line: str, version: str, is_open: bool) -> None:
    found = parse_module(f"{line}\nGCC version: gcc version 13.3.0\n")
    assert (found.version, found.is_open) == (version, is_open)


def test_link_files() -> None:
    assert parse_speed("16.0 GT/s PCIe") == 16.0
    assert parse_speed("Unknown") is None
    assert parse_width("16") == 16
    assert parse_width("255") is None
    resource = "0x00000000a0000000 0x00000000a3ffffff 0x0000000000040200\n" + (
        "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
    )
    assert parse_resource(resource) == (64 << 20, 0)


def _config(control: int) -> bytes:
    config = bytearray(4096)
    config[0x100:0x104] = (0x0001 | 1 << 16 | 0x200 << 20).to_bytes(4, "little")
    config[0x200:0x204] = (0x000D | 1 << 16).to_bytes(4, "little")
    config[0x206:0x208] = control.to_bytes(2, "little")
    return bytes(config)


@pytest.mark.parametrize(
    ("config", "redirects"),
    [
        (_config(0x1D), True),  # SrcValid ReqRedir CmpltRedir UpstreamFwd, as Linux sets it
        (_config(0x01), False),  # SrcValid alone redirects nothing
        (_config(0x00), False),
        (bytes(4096), False),  # no capability at all
        (_config(0x1D)[:64], None),  # what others than root can read
    ],
)
def test_acs_redirect_is_read_from_configuration_space(
    config: bytes, redirects: bool | None
) -> None:
    assert acs_redirect(config) is redirects


@given(st.lists(st.tuples(st.integers(0, 1023), st.binary(min_size=4, max_size=4)), max_size=40))
def test_any_configuration_space_ends_the_walk(words: list[tuple[int, bytes]]) -> None:
    config = bytearray(4096)
    for at, word in words:
        config[4 * at : 4 * at + 4] = word
    assert acs_redirect(bytes(config)) in (True, False)


def test_listening_ports_only() -> None:
    text = (
        "  sl  local_address rem_address   st\n"
        "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000\n"
        "   1: 00000000:0016 00000000:0000 0A 00000000:00000000\n"
        "   2: 0100007F:C350 0100007F:1F40 01 00000000:00000000\n"
    )
    assert [(x.port, x.address) for x in parse_tcp(text)] == [(8000, "127.0.0.1"), (22, "*")]


@pytest.mark.parametrize(
    ("error", "state"),
    [
        ("('Connection aborted.', PermissionError(13, 'Permission denied'))", "no-permission"),
        ("('Connection aborted.', FileNotFoundError(2, 'No such file'))", "not-installed"),
        (
            "('Connection aborted.', ConnectionRefusedError(111, 'Connection refused'))",
            "not-running",
        ),
        ("UnixHTTPConnectionPool: Read timed out. (read timeout=5)", "no-answer"),
        ("500 Server Error: Internal Server Error", "error"),
    ],
)
def test_the_ways_docker_fails_are_told_apart(error: str, state: str, tmp_path: Path) -> None:
    found = parse_docker({"error": error}, Root(tmp_path, recorded=True))
    assert found.state is DockerState(state)


def test_the_first_socket_that_is_there_is_dockers() -> None:
    rootless = {"HOME": "/home/u", "XDG_RUNTIME_DIR": "/run/user/1000"}
    there = {Path("/run/user/1000/docker.sock")}
    assert engine_address(rootless, there.__contains__) == "unix:///run/user/1000/docker.sock"
    assert engine_address(rootless, lambda _: False) is None
    assert engine_address({"DOCKER_HOST": "tcp://h:1"}, lambda _: True) == "tcp://h:1"


def test_daemon_json_may_be_anything() -> None:
    assert default_memlock('{"default-ulimits": {"memlock": {"Hard": -1, "Soft": -1}}}') == -1
    assert default_memlock("{") is None
    assert default_memlock('{"default-ulimits": []}') is None
    assert default_memlock(None) is None


def test_a_partition_spins_when_its_disk_does(tmp_path: Path) -> None:
    for name, value in (("sda", 1), ("nvme0n1", 0)):
        directory = tmp_path / "sys" / "block" / name / "queue"
        directory.mkdir(parents=True)
        (directory / "rotational").write_text(f"{value}\n")
    root = Root(tmp_path, recorded=True)
    assert rotational(root, "/dev/sda2") is True
    assert rotational(root, "/dev/nvme0n1p3") is False
    assert rotational(root, "tmpfs") is None


def test_a_link_out_of_the_recorded_tree_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "secret").write_text("x")
    (tmp_path / "host" / "leak").symlink_to(tmp_path / "secret")
    with pytest.raises(AbsentError, match="leads out"):
        Root(tmp_path / "host", recorded=True).text("leak")
