"""The kernel log since we began: Xids of the driver and kills for lack of memory."""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dsctl.model.sample import Xid
from dsctl.supervise.samplers.reader import Unreadable

#: Lines worth keeping as evidence: the driver's, the memory killer's, the IOMMU's, the bus's.
_WORTH = re.compile(
    r"NVRM|Xid|[Oo]ut of memory|oom-kill|oom_reaper|Killed process|DMAR|AMD-Vi|AER:|nvme"
)
#: `NVRM: Xid (PCI:0000:01:00): 79, pid=…, name=…, GPU has fallen off the bus.`
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+),?\s*(.*)")
_READ_ALL, _SIZE_OF_BUFFER = 3, 10  # syslog(2)
_RECORD_BYTES = 8192
_KEEP = 200


def parse_record(record: bytes) -> str | None:
    """The message of a /dev/kmsg record (`priority,sequence,µs,flags;text`), first line only."""
    head, _, text = record.partition(b";")
    if not text or head.startswith(b" "):
        return None
    return text.split(b"\n", 1)[0].decode(errors="replace")


def parse_xid(text: str, t: float) -> Xid | None:
    """The Xid that a line of the driver reports, or None."""
    match = _XID.search(text)
    if match is None:
        return None
    return Xid(code=int(match[2]), bdf=match[1].lower(), text=text[:400], t=t)


@dataclass
class KernelReader:
    """Follows the kernel log from now on: /dev/kmsg, or syslog(2) where that is not there.

    `lines`: what came that is worth keeping as evidence.
    """

    clock: Callable[[], float] = time.monotonic
    device: Path = Path("/dev/kmsg")
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_KEEP))
    _xids: deque[Xid] = field(default_factory=lambda: deque(maxlen=_KEEP))
    _descriptor: int | None = None
    _last: str | None = None

    def __call__(self) -> tuple[Xid, ...]:
        """All Xids since the first call.

        Raises:
            Unreadable: reading the kernel log takes privileges that we do not have.
        """
        for text in self._new():
            if _WORTH.search(text) is None:
                continue
            self.lines.append(text)
            xid = parse_xid(text, self.clock())
            if xid is not None:
                self._xids.append(xid)
        return tuple(self._xids)

    def _new(self) -> list[str]:
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self.device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._descriptor, 0, os.SEEK_END)
            except OSError as error:
                self._close()
                return self._from_syslog(error)
        found: list[str] = []
        while True:
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                return found
            except BrokenPipeError:  # overwritten before we read it: go on with the oldest left
                continue
            except OSError as error:
                self._close()
                raise Unreadable(f"kernel log: {error.strerror}") from None
            if not record:  # a plain file, as tests have it
                return found
            text = parse_record(record)
            if text is not None:
                found.append(text)

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _from_syslog(self, error: OSError) -> list[str]:
        libc = ctypes.CDLL(None, use_errno=True)
        size = libc.klogctl(_SIZE_OF_BUFFER, None, 0)
        buffer = ctypes.create_string_buffer(max(size, 1))
        length = libc.klogctl(_READ_ALL, buffer, size) if size > 0 else -1
        if length < 0:
            raise Unreadable(f"kernel log: {self.device}: {error.strerror}")
        lines = buffer.raw[:length].decode(errors="replace").splitlines()
        before, self._last = self._last, lines[-1] if lines else ""
        if before is None:
            return []
        # Every line has its time, so the last one seen is found once; else the buffer has turned.
        return lines[lines.index(before) + 1 :] if before in lines else lines
