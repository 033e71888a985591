"""What this machine's past starts teach: how long each phase takes here. Pure values."""

from __future__ import annotations

from statistics import median

from pydantic import Field

from dsctl.model.base import Value

#: Version of the history file.
HISTORY_VERSION = 1
#: Starts kept, and how many of the newest make the expectation.
KEEP = 50
_LEARN_FROM = 5


class HostMark(Value):
    """What may change under a deployment between two starts, and is worth naming when it did."""

    boot_id: str | None = None
    kernel: str | None = None
    driver: str | None = None
    bios: str | None = None
    image: str | None = None


class StartRecord(Value):
    """One good start. `key`: profile and what changes how long it takes (checkpoint, pack).

    `phases_s`: seconds by phase; `probes_s`: seconds by readiness probe.
    """

    t: float
    profile: str
    key: str
    ready_s: float
    phases_s: dict[str, float] = Field(default_factory=dict)
    probes_s: dict[str, float] = Field(default_factory=dict)
    load_bytes: int | None = None
    acceptance: float | None = None
    host: HostMark = Field(default_factory=HostMark)


class History(Value):
    """Past good starts of this user on this machine, oldest first."""

    version: int = HISTORY_VERSION
    starts: tuple[StartRecord, ...] = ()

    def with_start(self, record: StartRecord) -> History:
        """With one more start, without the oldest beyond `KEEP`."""
        return History(version=self.version, starts=(*self.starts, record)[-KEEP:])

    def last_good(self, profile: str) -> StartRecord | None:
        """The newest good start of a profile."""
        return next((s for s in reversed(self.starts) if s.profile == profile), None)

    def expected_s(self, key: str) -> dict[str, float]:
        """Median seconds by phase over the newest starts of that key; empty: never started."""
        recent = [s for s in self.starts if s.key == key][-_LEARN_FROM:]
        phases = dict.fromkeys(phase for start in recent for phase in start.phases_s)
        return {
            phase: median(s.phases_s[phase] for s in recent if phase in s.phases_s)
            for phase in phases
        }

    def acceptance(self, key: str) -> float | None:
        """The draft acceptance last seen with that key."""
        return next(
            (
                s.acceptance
                for s in reversed(self.starts)
                if s.key == key and s.acceptance is not None
            ),
            None,
        )
