"""Looks at the engine once a second, in a thread of its own, and says what the rules make of it.

The watch never waits for a look: a sampler that hangs costs its own reading and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Protocol

from dsctl.background import Background
from dsctl.errors import EngineError
from dsctl.model.event import Phase
from dsctl.model.sample import Action, Level, Outlook, Sample, Verdict, Window
from dsctl.supervise.journal import Journal
from dsctl.supervise.rules import assess, outlook
from dsctl.supervise.rules.alive import learn
from dsctl.supervise.rules.context import STARTING, Context
from dsctl.supervise.samplers.pagecache import drop

_EVERY_S = 1.0
#: While it serves a look every few seconds is enough: what it serves with is the engine's.
_EVERY_SERVING_S = 5.0
#: Twice the longest span that a rule looks at.
_KEEP_S = 300.0
_FILE_MAX_BYTES = 8 << 20
#: A verdict is told again only after that long, unless what it says changes.
_AGAIN_S = 60.0
_OUTLOOK_EVERY_S = 5.0
#: What a start must not go on with.
_GIVE_UP = (Action.REFUSE, Action.CONTROL_ARM, Action.STOP)


class Eyes(Protocol):
    """The samplers."""

    def start(self) -> None:
        """Begin to read."""

    def sample(self, phase: Phase, *, alive: bool) -> Sample:
        """Everything known now; never waits."""

    def close(self) -> None:
        """Let go of files and threads."""


@dataclass
class Observer:
    """`tell(phase)` from the watch's own loop; `window` and `verdicts` are always whole values.

    `alive` says whether the engine's first process runs; `file` is where samples are kept;
    `background` is the work of ours that can be asked to pause.
    """

    eyes: Eyes
    alive: Callable[[], bool]
    context: Context
    journal: Journal
    file: Path
    background: Background | None = None
    window: Window = field(default_factory=Window)
    verdicts: tuple[Verdict, ...] = ()
    outlook: Outlook | None = None
    _phase: Phase = Phase.STARTING
    _seen_phase: Phase | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _told: dict[str, tuple[str, float]] = field(default_factory=dict)
    _told_outlook: float = float("-inf")
    _thread: threading.Thread | None = None

    def start(self, phase: Phase) -> None:
        """Begin to look."""
        self._phase = phase
        self.eyes.start()
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)
        self.eyes.close()

    @property
    def bytes_read(self) -> int | None:
        """Bytes of the checkpoint that were read when last looked."""
        last = self.window.last
        return last.checkpoint.read_bytes if last is not None and last.checkpoint else None

    def tell(self, phase: Phase) -> None:
        """Hand on what is new since the last call, and carry out what a verdict advises.

        Raises:
            EngineError: a verdict says that a start must not go on.
        """
        self._phase = phase
        now = self.journal.clock()
        self._tell_outlook(now)
        for verdict in self.verdicts:
            if verdict.level is Level.FINE:
                continue
            before, at = self._told.get(verdict.rule, ("", float("-inf")))
            key = f"{verdict.level}:{verdict.cause}"
            if key != before or abs(now - at) >= _AGAIN_S:
                self._told[verdict.rule] = (key, now)
                self._say(phase, verdict)
            self._act(phase, verdict)

    def _act(self, phase: Phase, verdict: Verdict) -> None:
        advice = verdict.advice
        if advice is None:
            return
        if advice.action is Action.PAUSE_BACKGROUND and self.background is not None:
            self._pause(phase, self.background)
        if verdict.level is not Level.ACT:
            return
        if advice.action is Action.DROP_PAGE_CACHE:
            self._drop(phase, advice.paths)
        elif advice.action in _GIVE_UP and phase in STARTING:
            raise EngineError(verdict.summary, remedy=advice.remedy, cause=verdict.cause)

    def _pause(self, phase: Phase, background: Background) -> None:
        if not background.works():
            return
        if not background.asked_to_pause():
            self.journal.say(phase, "background-paused", "background work of ours pauses")
        background.ask_to_pause()

    def _drop(self, phase: Phase, paths: tuple[str, ...]) -> None:
        fresh = [path for path in paths if path not in self.context.dropped]
        if not fresh:
            return
        self.context = replace(self.context, dropped=self.context.dropped | set(fresh))
        dropped = drop(fresh)
        self.journal.say(
            phase,
            "page-cache-dropped",
            f"gave the page cache of {dropped.files} finished files back to the kernel",
            files=dropped.files,
            bytes=dropped.size_bytes,
        )

    def _tell_outlook(self, now: float) -> None:
        view = self.outlook
        if view is None or view.phase not in STARTING or not view.words:
            return
        if 0 <= now - self._told_outlook < _OUTLOOK_EVERY_S:
            return
        self._told_outlook = now
        self.journal.say(
            view.phase,
            "outlook-progress",
            view.words,
            done=view.done_bytes,
            total=view.total_bytes,
            unit="bytes",
            rate_per_s=view.rate_bytes_s,
            left_s=view.left_s,
        )

    def _say(self, phase: Phase, verdict: Verdict) -> None:
        self.journal.say(
            phase,
            f"rule-{verdict.rule}",
            verdict.summary,
            level=verdict.level,
            cause=verdict.cause,
            numbers=verdict.numbers,
            remedy=verdict.advice.remedy or None if verdict.advice else None,
        )

    def _run(self) -> None:
        with SampleFile(self.file) as kept:
            while not self._stop.is_set():
                self.look(kept)
                starting = self._phase in STARTING
                self._stop.wait(_EVERY_S if starting else _EVERY_SERVING_S)

    def look(self, kept: SampleFile) -> None:
        """One look: sample, keep, judge. What goes wrong in one costs that look only."""
        try:
            phase = self._phase
            sample = self.eyes.sample(phase, alive=self.alive())
            if phase is not self._seen_phase:
                self._seen_phase = phase
                self.context = replace(self.context, phase_began=sample.t)
            if self.background is not None:
                at_work = self.background.works() and not self.background.asked_to_pause()
                self.context = replace(self.context, background=at_work)
            self.window = self.window.add(sample, keep_s=_KEEP_S)
            kept.write(sample)
            self.verdicts = assess(self.window, self.context)
            baseline = learn(self.context.acceptance, self.window, self.context)
            self.context = replace(self.context, acceptance=baseline)
            self.outlook = outlook(self.window, self.context)
        except Exception as error:  # a sampler's or rule's fault must never end a good engine
            self._fault(error)

    def _fault(self, error: Exception) -> None:
        key = f"{type(error).__name__}: {error}"
        before, _ = self._told.get("observer", ("", 0.0))
        if key != before:
            self._told["observer"] = (key, 0.0)
            self.journal.say(self._phase, "observer-fault", f"a look at the engine failed: {key}")


class SampleFile:
    """Samples as JSON lines; at 8 MiB the file becomes `.1` and a new one begins."""

    def __init__(self, path: Path, max_bytes: int = _FILE_MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._file: IO[str] | None = None

    def __enter__(self) -> SampleFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, sample: Sample) -> None:
        """Append; a full disk loses samples, never the engine."""
        try:
            if self._file is None:
                self._file = self._path.open("a", encoding="utf-8")
            if self._file.tell() > self._max_bytes:
                self._file.close()
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
                self._file = self._path.open("a", encoding="utf-8")
            self._file.write(sample.model_dump_json(exclude_none=True) + "\n")
            self._file.flush()
        except (OSError, ValueError):
            self._file = None
