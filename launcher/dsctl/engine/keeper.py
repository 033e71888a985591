"""The engine's parent process: owns its log, knows how it ended, and outlives every shell.

Run as a script with one argument, the path of a JSON file:

    {"argv", "env", "cwd", "log", "log_max_bytes", "log_keep", "started", "ended"}

It starts the engine in a session of its own, copies the engine's output to `log` (rotating it),
writes `started` ({"pid", "start_ticks", "boot_id"}) once it runs and `ended` ({"code", "signal",
"t"}) once it is gone, and takes with it whatever processes the engine left behind. It uses the
standard library alone, so that it starts in a few milliseconds and stays small.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

_PR_SET_CHILD_SUBREAPER = 36
_CHUNK = 1 << 16
_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)


class RotatingLog:
    """Appends bytes to a file; when it would grow past `max_bytes` it moves to `.1`, `.2`, …"""

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._file: IO[bytes] = path.open("ab", buffering=0)
        self._size = path.stat().st_size

    def write(self, chunk: bytes) -> None:
        """Append; a full disk loses log text, never the engine."""
        if self._size + len(chunk) > self._max_bytes and self._size > 0:
            self._rotate()
        try:
            self._file.write(chunk)
            self._size += len(chunk)
        except OSError:
            pass

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self._keep, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            newer = self._path.with_name(f"{self._path.name}.{number - 1}")
            source = newer if number > 1 else self._path
            if source.exists():
                source.replace(older)
        self._file = self._path.open("ab", buffering=0)
        self._size = 0


def start_ticks(pid: int) -> int:
    """Clock ticks after boot at which the process started: field 22 of `/proc/PID/stat`."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rsplit(")", 1)[1].split()[19])


def boot_id() -> str:
    """The kernel's id of this boot, or "" where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write and rename, so that a reader never sees half a file."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(value))
    scratch.replace(path)


def pump(source: IO[bytes], log: RotatingLog) -> None:
    """Copy the engine's output to the log until no process holds the pipe any more."""
    descriptor = source.fileno()
    while chunk := os.read(descriptor, _CHUNK):
        log.write(chunk)


def end_session(session: int) -> None:
    """Kill what is left of the engine's session; its members keep the number from being reused."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            os.kill(int(entry.name), signal.SIGKILL)


def main() -> None:
    """Start, pump, wait, clean up, tell."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the engine decides when we end
    log = RotatingLog(Path(spec["log"]), spec["log_max_bytes"], spec["log_keep"])
    try:
        engine = subprocess.Popen(
            spec["argv"],
            env=spec["env"],
            cwd=spec["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_default_signals,
        )
    except OSError as error:
        log.write(f"dsctl: {spec['argv'][0]} cannot be started: {error}\n".encode())
        write_json(Path(spec["ended"]), {"code": 127, "signal": None, "t": time.time()})
        return
    try:
        code = keep(engine, spec, log)
    except BaseException:  # no record, no engine: nobody could find it again
        end_session(engine.pid)
        raise
    ended = {"code": max(code, 0), "signal": -code if code < 0 else None, "t": time.time()}
    write_json(Path(spec["ended"]), ended)


def keep(engine: subprocess.Popen[bytes], spec: dict[str, Any], log: RotatingLog) -> int:
    """Record the engine, copy its output, wait for its end; its exit code."""
    started = {"pid": engine.pid, "start_ticks": start_ticks(engine.pid), "boot_id": boot_id()}
    write_json(Path(spec["started"]), started)
    assert engine.stdout is not None
    reader = threading.Thread(target=pump, args=(engine.stdout, log), daemon=True)
    reader.start()
    code = engine.wait()
    end_session(engine.pid)
    reader.join(timeout=5.0)
    reap()
    return code


def reap() -> None:
    """Collect the adopted children that have ended, so that none stays a zombie."""
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.01)


def _default_signals() -> None:
    """The engine gets signals as a shell would give them, whatever its parents did with theirs."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


if __name__ == "__main__":
    main()
