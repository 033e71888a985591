"""Reads a saved image as it streams by: each layer once, in whatever order they come.

The form is that of `docker save`: a tar of layers, themselves tars, and a `manifest.json` that
says their order (OCI image layout since Docker 25, one directory per layer before).
"""

from __future__ import annotations

import json
import re
import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, cast

from dsctl.errors import DsctlError
from dsctl.vet.policy import FileRule
from dsctl.vet.values import Mark, MarkedFile

_BLOCK = 1 << 20
_TEXT_LIMIT = 64 << 20  # the largest package list by far is below 10 MiB
_RULE_LIMIT = 256 << 10
#: Files whose text is kept: package lists, what Python installed, CUDA's version.
_KEPT = re.compile(
    r"^var/lib/dpkg/status(\.d/[^/]+)?$|^lib/apk/db/installed$"
    r"|\.dist-info/(METADATA|entry_points\.txt)$|^usr/local/cuda[^/]*/version\.json$"
)
_LIBRARY = re.compile(r"/(libnccl|libcudart)\.so\.(\d+\.\d+[\d.]*)$")
_CAPABILITY = "SCHILY.xattr.security.capability"
_NAMES = (
    "chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable "
    "net_bind_service net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio "
    "sys_chroot sys_ptrace sys_pacct sys_admin sys_boot sys_nice sys_resource sys_time "
    "sys_tty_config mknod lease audit_write audit_control setfcap mac_override mac_admin syslog "
    "wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore"
)
_CAPABILITIES = _NAMES.split()


@dataclass
class Contents:
    """What one layer holds: every path, what it takes away, marked files and kept texts."""

    paths: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    emptied: set[str] = field(default_factory=set)
    files: list[MarkedFile] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    libraries: dict[str, tuple[str, str]] = field(default_factory=dict)

    def hides(self, path: str) -> bool:
        """Whether a path of the layers below is no longer seen through this one."""
        if path in self.paths or path in self.removed:
            return True
        parents = _parents(path)
        return any(parent in self.removed or parent in self.emptied for parent in parents)


@dataclass
class Merged:
    """The image as a whole: files that are seen and such that are hidden, texts, libraries."""

    files: list[MarkedFile]
    texts: dict[str, str]
    libraries: list[tuple[str, str]]


def read_saved(
    stream: IO[bytes], rules: Iterable[FileRule], on_layer: Callable[[int], None] = lambda n: None
) -> list[Contents]:
    """The layers of a saved image, the base first.

    Raises:
        DsctlError: torn, or compressed in a way that this Python cannot read.
    """
    found: dict[str, Contents] = {}
    aliases: dict[str, str] = {}
    manifest: Any = None
    look = tuple(rules)
    try:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=_BLOCK) as outer:
            for member in outer:
                if member.issym() and member.name.endswith("/layer.tar"):
                    aliases[member.name] = member.linkname.removeprefix("../")
                elif member.name == "manifest.json":
                    manifest = json.loads(_content(outer, member, _TEXT_LIMIT))
                elif member.isreg() and _may_be_layer(member.name):
                    layer = _layer(outer, member, look)
                    if layer is not None:
                        found[member.name] = layer
                        on_layer(len(found))
    except (tarfile.TarError, EOFError, ValueError, struct.error) as error:
        raise DsctlError(
            f"the image cannot be read from Docker: {error}",
            remedy="try again; if it stays so, pull the image anew",
        ) from None
    names = manifest[0]["Layers"] if manifest else []
    names = [aliases.get(name, name) for name in names]
    if not names or any(name not in found for name in names):
        raise DsctlError(
            "Docker's copy of the image ended early", remedy="try again: `docker save` it by hand"
        )
    return [found[name] for name in names]


def merge(layers: list[Contents]) -> Merged:
    """Lay the layers over each other, the base first. Pure.

    A marked file that a later layer hides is still in the image for whoever unpacks it; it is
    kept, marked `buried`.
    """
    files: list[MarkedFile] = []
    texts: dict[str, str] = {}
    libraries: dict[str, tuple[str, str]] = {}
    for number, layer in enumerate(layers):
        files = [
            f.model_copy(update={"buried": True}) if not f.buried and layer.hides(f.path) else f
            for f in files
        ]
        texts = {path: text for path, text in texts.items() if not layer.hides(path)}
        libraries = {path: lib for path, lib in libraries.items() if not layer.hides(path)}
        files += [f.model_copy(update={"layer": number}) for f in layer.files]
        texts |= layer.texts
        libraries |= layer.libraries
    return Merged(files, texts, sorted(set(libraries.values())))


def _may_be_layer(name: str) -> bool:
    return name.endswith("/layer.tar") or name.startswith("blobs/")


class _Peeked:
    """A stream whose first bytes were looked at and are read again."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.head = stream.read(512)
        self._left = self.head

    def read(self, size: int = -1) -> bytes:
        if self._left:
            taken = self._left if size < 0 else self._left[:size]
            self._left = self._left[len(taken) :]
            return taken + (self.read(size - len(taken)) if size > len(taken) else b"")
        return self._stream.read(size)


def _layer(
    outer: tarfile.TarFile, member: tarfile.TarInfo, rules: tuple[FileRule, ...]
) -> Contents | None:
    """The layer in a member; None for what is none (a blob of JSON)."""
    inner = outer.extractfile(member)
    assert inner is not None
    peeked = _Peeked(inner)
    if peeked.head[:1] == b"{":
        return None
    if peeked.head[:4] == b"\x28\xb5\x2f\xfd":
        raise ValueError("a layer is compressed with zstd; `docker pull` it into the classic store")
    contents = Contents()
    with tarfile.open(fileobj=cast(IO[bytes], peeked), mode="r|*", bufsize=_BLOCK) as layer:
        for entry in layer:
            _note(contents, layer, entry, rules)
    return contents


def _note(
    contents: Contents, layer: tarfile.TarFile, entry: tarfile.TarInfo, rules: tuple[FileRule, ...]
) -> None:
    path = entry.name.removeprefix("./").strip("/")
    folder, _, name = path.rpartition("/")
    if name == ".wh..wh..opq":
        contents.emptied.add(folder)
    elif name.startswith(".wh."):
        contents.removed.add(f"{folder}/{name[4:]}".strip("/"))
    else:
        contents.paths.add(path)
        contents.files += marks_of(entry, path)
        if entry.isreg():
            _look_inside(contents, layer, entry, path, rules)


def marks_of(entry: tarfile.TarInfo, path: str) -> Iterator[MarkedFile]:
    """What is remarkable about an entry by its mode and attributes alone. Pure."""

    def marked(mark: Mark, detail: str = "") -> MarkedFile:
        return MarkedFile(path=path, mark=mark, mode=entry.mode & 0o7777, detail=detail)

    if entry.isreg() and entry.mode & 0o4000:
        yield marked(Mark.SETUID, f"owner {entry.uid}")
    if entry.isreg() and entry.mode & 0o2000:
        yield marked(Mark.SETGID, f"group {entry.gid}")
    if entry.ischr() or entry.isblk():
        yield marked(Mark.DEVICE, f"{entry.devmajor}:{entry.devminor}")
    elif entry.mode & 0o002 and not entry.issym() and not (entry.isdir() and entry.mode & 0o1000):
        yield marked(Mark.WORLD_WRITABLE, "directory" if entry.isdir() else "")
    if _CAPABILITY in entry.pax_headers:
        value = entry.pax_headers[_CAPABILITY].encode("utf-8", "surrogateescape")
        yield marked(Mark.CAPABILITY, capability_names(value))


def capability_names(value: bytes) -> str:
    """The permitted capabilities in `security.capability` (linux/capability.h, vfs_cap_data)."""
    if len(value) < 12:
        return "unreadable"
    (low,) = struct.unpack_from("<I", value, 4)
    high = struct.unpack_from("<I", value, 12)[0] if len(value) >= 20 else 0
    bits = low | high << 32
    return " ".join(name for n, name in enumerate(_CAPABILITIES) if bits >> n & 1) or "none"


def _look_inside(
    contents: Contents,
    layer: tarfile.TarFile,
    entry: tarfile.TarInfo,
    path: str,
    rules: tuple[FileRule, ...],
) -> None:
    library = _LIBRARY.search("/" + path)
    if library:
        contents.libraries[path] = (library[1], library[2])
    kept = _KEPT.search(path) is not None
    speaking = [rule for rule in rules if re.search(rule.paths, path)]
    if not kept and not any(rule.content for rule in speaking):
        contents.files += [_by_rule(rule, entry, path) for rule in speaking]
        return
    text = _content(layer, entry, _TEXT_LIMIT if kept else _RULE_LIMIT).decode("utf-8", "replace")
    if kept:
        contents.texts[path] = text
    contents.files += [
        _by_rule(rule, entry, path)
        for rule in speaking
        if rule.content is None or re.search(rule.content, text, re.M)
    ]


def _by_rule(rule: FileRule, entry: tarfile.TarInfo, path: str) -> MarkedFile:
    return MarkedFile(path=path, mark=Mark.RULE, mode=entry.mode & 0o7777, detail=rule.id)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, limit: int) -> bytes:
    file = archive.extractfile(member)
    return b"" if file is None else file.read(limit)


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
    yield ""
