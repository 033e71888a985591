"""What a container engine tells about our container: the place where its event stream plugs in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dsctl.model.sample import ContainerEvent

_KEEP = 100


@dataclass
class ContainerEvents:
    """Collects events from `source`, which returns those that are new and never blocks for long.

    The engine that runs containers passes its own source; where a daemon went away the source
    raises `Unreadable` and is asked again at the next turn, which is where it reconnects.
    """

    source: Callable[[], list[ContainerEvent]]
    _events: deque[ContainerEvent] = field(default_factory=lambda: deque(maxlen=_KEEP))

    def __call__(self) -> tuple[ContainerEvent, ...]:
        """Every event kept so far, oldest first."""
        self._events.extend(self.source())
        return tuple(self._events)
