"""The one exception family of dsctl.

Every error a person can meet carries one line that says what is wrong (naming the file and key
where there is one) and a remedy they can type or do. The command line prints those two and exits
with `exit_code`; it never shows a traceback unless `--debug` is given.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command (contract)."""

    GOOD = 0
    NOT_GOOD = 1
    USAGE = 2
    ENGINE_FAILED = 3
    TIMED_OUT = 4
    INTERRUPTED = 130


class DsctlError(Exception):
    """Base of all errors that dsctl reports to a person."""

    exit_code: ExitCode = ExitCode.NOT_GOOD

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


class ConfigError(DsctlError):
    """Bad input: a profile, a file, a flag, an override. One line names file and key."""

    exit_code = ExitCode.USAGE


class KnobError(ConfigError):
    """Knobs that no machine could serve together; the line names one."""


class NotGoodError(DsctlError):
    """The thing asked about is not good: a failed check, a plan that does not fit."""

    exit_code = ExitCode.NOT_GOOD


class EngineError(DsctlError):
    """The engine failed to start, or died; `cause` is the id of what it is put down to."""

    exit_code = ExitCode.ENGINE_FAILED

    def __init__(
        self, message: str, *, remedy: str | None = None, cause: str | None = None
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.cause = cause


class TimedOutError(DsctlError):
    """A deadline passed."""

    exit_code = ExitCode.TIMED_OUT


class InterruptedByUserError(DsctlError):
    """The user stopped it; everything this run started has been taken down again."""

    exit_code = ExitCode.INTERRUPTED
