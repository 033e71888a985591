"""Tells systemd how it stands: sd_notify(3), by the variables that a `Type=notify` unit gives."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from dsctl.model.event import Event, Phase

#: How long a start may take from each sign of life on; signs come every few seconds.
_EXTEND_S = 180.0
_ON_THE_WAY = (
    Phase.PREFLIGHT,
    Phase.PACKING,
    Phase.STARTING,
    Phase.LOADING,
    Phase.ALLOCATING,
    Phase.COMPILING,
    Phase.WARMING,
)


@dataclass
class Notifier:
    """Sends to the socket `address`; `watchdog_s`: systemd waits no longer for a ping than that."""

    address: str
    watchdog_s: float | None = None
    clock: Callable[[], float] = time.monotonic
    _pinged: float = field(default=float("-inf"))
    _ready: bool = False

    @classmethod
    def of_environment(cls, env: Mapping[str, str] = os.environ) -> Notifier | None:
        """The notifier that the unit asks for; None outside of one."""
        address = env.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return None
        watchdog_s = None
        if env.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
            with suppress(ValueError):
                watchdog_s = int(env.get("WATCHDOG_USEC", "")) / 1e6
        return cls(address, watchdog_s)

    def event(self, event: Event) -> None:
        """What an event of the supervisor means for the unit."""
        fields = {"STATUS": f"{event.phase}: {event.message}".replace("\n", " ")[:400]}
        if event.phase in _ON_THE_WAY:
            fields["EXTEND_TIMEOUT_USEC"] = str(int(_EXTEND_S * 1e6))
        if event.event in ("ready", "already-up") and not self._ready:
            self._ready = True
            fields |= {"READY": "1", "MAINPID": str(os.getpid())}
        if event.extra("ready") is False:
            fields["STOPPING"] = "1"
        if self.watchdog_s is not None and self._ready:
            fields["WATCHDOG"] = "1"
            self._pinged = self.clock()
        self.send(fields)

    def tick(self) -> None:
        """A sign of life, as often as the watchdog wants it (twice in its time)."""
        if self.watchdog_s is None or self.clock() - self._pinged < self.watchdog_s / 2:
            return
        self._pinged = self.clock()
        self.send({"WATCHDOG": "1"})

    def send(self, fields: Mapping[str, str]) -> None:
        """One datagram; a manager that is gone is no fault of ours."""
        target = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        text = "".join(f"{name}={value}\n" for name, value in fields.items())
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.settimeout(1.0)
            channel.connect(target)
            channel.sendall(text.encode())
