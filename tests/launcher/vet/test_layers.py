"""A saved image is read once, as it streams by, and seen as the engine would lay it out."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dsctl.errors import DsctlError
from dsctl.vet.layers import Merged, capability_names, merge, read_saved
from dsctl.vet.policy import read_policy
from dsctl.vet.scan import Chunks
from dsctl.vet.values import Mark
from tests.launcher.vet.saved import File, legacy, oci

POLICY = read_policy(Path(__file__).resolve().parents[3] / "hardening" / "vet-policy.yaml")
FORMS = pytest.mark.parametrize("form", [legacy, oci])
Form = Callable[..., io.BytesIO]


def image(form: Form, *layers: list[File]) -> Merged:
    return merge(read_saved(form(*layers), POLICY.files))


def marks(found: Merged) -> set[tuple[str, Mark, bool]]:
    return {(f.path, f.mark, f.buried) for f in found.files}


@FORMS
def test_modes_attributes_and_nodes_are_marked(form: Form) -> None:
    capability = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0).decode("latin-1")
    found = image(
        form,
        [
            File("./usr/bin/helper", mode=0o4755),
            File("usr/bin/wall", mode=0o2755),
            File("opt/open", mode=0o777, type=tarfile.DIRTYPE),
            File("tmp", mode=0o1777, type=tarfile.DIRTYPE),
            File("opt/link", mode=0o777, type=tarfile.SYMTYPE),
            File("dev/odd", mode=0o666, type=tarfile.CHRTYPE),
            File("usr/bin/ping", pax={"SCHILY.xattr.security.capability": capability}),
            File("etc/motd"),
        ],
    )
    assert marks(found) == {
        ("usr/bin/helper", Mark.SETUID, False),
        ("usr/bin/wall", Mark.SETGID, False),
        ("opt/open", Mark.WORLD_WRITABLE, False),
        ("dev/odd", Mark.DEVICE, False),
        ("usr/bin/ping", Mark.CAPABILITY, False),
    }
    assert next(f.detail for f in found.files if f.mark is Mark.CAPABILITY) == "net_raw"


@FORMS
def test_what_a_later_layer_hides_is_buried(form: Form) -> None:
    found = image(
        form,
        [File(path, mode=0o4755) for path in ("a/replaced", "b/deleted", "c/x/gone", "d/emptied")],
        [
            File("a/replaced", mode=0o755),
            File("b/.wh.deleted"),
            File(".wh.c"),
            File("d/.wh..wh..opq"),
            File("d/new", mode=0o4755),
        ],
    )
    assert marks(found) == {
        ("a/replaced", Mark.SETUID, True),
        ("b/deleted", Mark.SETUID, True),
        ("c/x/gone", Mark.SETUID, True),
        ("d/emptied", Mark.SETUID, True),
        ("d/new", Mark.SETUID, False),
    }


@FORMS
def test_package_lists_are_those_of_the_last_layer_that_has_them(form: Form) -> None:
    status = "var/lib/dpkg/status"
    gone = "opt/venv/lib/python3.12/site-packages/old-1.dist-info/METADATA"
    found = image(
        form,
        [File(status, b"Package: a\n"), File(gone, b"Name: old\n")],
        [
            File(status, b"Package: a\n\nPackage: b\n"),
            File(Path(gone).parent.parent.as_posix() + "/.wh.old-1.dist-info"),
        ],
        [File("usr/local/cuda-13.0/lib64/libnccl.so.2.28.3", b"\x7fELF")],
    )
    assert found.texts == {status: "Package: a\n\nPackage: b\n"}
    assert found.libraries == [("libnccl", "2.28.3")]


@FORMS
def test_files_by_rule_are_found_and_read_only_where_content_matters(form: Form) -> None:
    found = image(
        form,
        [
            File("root/.netrc", b"machine x"),
            File("opt/topo.xml", b"<system version='1'>"),
            File("opt/graph.xml", b"<svg/>"),
            File("root/.cache/vllm/gpu_p2p_access_cache_for_0,1.json", b"{}"),
            File("usr/lib/python3/dist-packages/x.pth", b"import os; os.system('x')\n"),
            File("usr/lib/python3/dist-packages/y.pth", b"../y\n"),
        ],
        [File("root/.wh..netrc")],
    )
    assert {(f.path, f.detail, f.buried) for f in found.files} == {
        ("root/.netrc", "files.secrets", True),
        ("opt/topo.xml", "files.topology", False),
        ("root/.cache/vllm/gpu_p2p_access_cache_for_0,1.json", "files.peer-access", False),
        ("usr/lib/python3/dist-packages/x.pth", "files.startup-code", False),
    }


@pytest.mark.parametrize("length", [0, 700, 2500, 6000])
def test_a_torn_image_is_one_error(length: int) -> None:
    whole = legacy([File("a", b"x" * 3000)]).getvalue()
    with pytest.raises(DsctlError, match=r"cannot be read|ended early"):
        read_saved(io.BytesIO(whole[:length]), POLICY.files)


def test_capabilities_beyond_the_first_32_have_names() -> None:
    value = struct.pack("<IIIII", 0x02000000, 0, 0, 1 << (39 - 32), 0)
    assert capability_names(value) == "bpf"
    assert capability_names(b"") == "unreadable"


def test_chunks_read_as_one_file_and_tell_how_far_they_are() -> None:
    told: list[int] = []
    chunks = Chunks([b"abc", b"", b"defg", b"h"], told.append)
    assert [chunks.read(2), chunks.read(0), chunks.read(4)] == [b"ab", b"", b"cdef"]
    assert [chunks.read(), chunks.read(5)] == [b"gh", b""]
    assert told == [3, 3, 7, 8]
