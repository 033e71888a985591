"""The GPUs, through a helper process that can be abandoned when the driver hangs."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsctl.host.nvml import may_have_library
from dsctl.model.sample import GpuSample
from dsctl.supervise.samplers.reader import Unreadable

_HELPER = (sys.executable, "-P", "-m", "dsctl.supervise.samplers.gpu_child")
#: After a failure the helper is started again, later each time.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 30.0, 600.0
_GRACE_S = 0.2


@dataclass
class GpuReader:
    """Asks the helper once per call; `only`: indices that matter (None: all)."""

    deadline_s: float = 5.0
    only: frozenset[int] | None = None
    command: Sequence[str] = _HELPER
    clock: Callable[[], float] = time.monotonic
    _helper: subprocess.Popen[bytes] | None = None
    _rest: bytes = b""
    _last_call: str = "its start"
    _pause_s: float = _FIRST_PAUSE_S
    _not_before: float = 0.0
    _why: str = ""
    _absent: bool = field(default=False)

    def __call__(self) -> tuple[GpuSample, ...]:
        """Every card now.

        Raises:
            Unreadable: no driver, an error of it, or it hangs (names the call).
        """
        if self._absent:
            raise Unreadable("no NVIDIA driver library on this machine")
        if self._helper is None:
            self._start()
        assert self._helper is not None
        assert self._helper.stdin is not None
        try:
            self._helper.stdin.write(b"\n")
            self._helper.stdin.flush()
            answer = self._answer(self._helper, self.clock() + self.deadline_s)
        except OSError:
            answer = None
        if answer is None:
            raise self._abandon(f"the NVML helper ended in {self._last_call}")
        if "error" in answer:
            raise self._abandon(f"NVML: {answer['error']}")
        self._pause_s = _FIRST_PAUSE_S
        cards = (GpuSample.model_validate(device) for device in answer["devices"])
        return tuple(c for c in cards if self.only is None or c.index in self.only)

    @property
    def helper_pid(self) -> int | None:
        """The helper's process, while there is one."""
        return self._helper.pid if self._helper is not None else None

    def close(self) -> None:
        """End the helper; one that hangs in the driver is left behind."""
        if self._helper is None:
            return
        helper, self._helper = self._helper, None
        for stream in (helper.stdin, helper.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()
        with suppress(OSError):
            helper.kill()
        with suppress(subprocess.TimeoutExpired):
            helper.wait(_GRACE_S)

    def _start(self) -> None:
        if not may_have_library(os.environ, Path("/etc/ld.so.cache")):
            self._absent = True
            raise Unreadable("no NVIDIA driver library on this machine")
        if self.clock() < self._not_before:
            raise Unreadable(self._why)
        self._rest, self._last_call = b"", "its start"
        self._helper = subprocess.Popen(
            list(self.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._helper.stdout is not None
        os.set_blocking(self._helper.stdout.fileno(), False)

    def _abandon(self, why: str) -> Unreadable:
        self.close()
        self._why = why
        self._not_before = self.clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return Unreadable(why)

    def _answer(self, helper: subprocess.Popen[bytes], until: float) -> dict[str, Any] | None:
        """The helper's next answer; None when it ended.

        Raises:
            Unreadable: the time is up.
        """
        assert helper.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(helper.stdout, selectors.EVENT_READ)
            while True:
                left = until - self.clock()
                if left <= 0:
                    waited = f"NVML hangs in {self._last_call} (no answer in {self.deadline_s:g} s)"
                    raise self._abandon(waited)
                if not selector.select(left):
                    continue
                chunk = os.read(helper.stdout.fileno(), 1 << 16)
                if not chunk:
                    return None
                answer = self._take(chunk)
                if answer is not None:
                    return answer

    def _take(self, chunk: bytes) -> dict[str, Any] | None:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"= "):
                found: dict[str, Any] = json.loads(line[2:])
                return found
            if line.startswith(b"> "):
                self._last_call = line[2:].decode(errors="replace")
        return None
