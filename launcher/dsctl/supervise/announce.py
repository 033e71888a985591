"""The events that tell of a failure: what is tried next, or that it is the end."""

from __future__ import annotations

from dsctl.errors import DsctlError, EngineError, InterruptedByUserError
from dsctl.model.event import Phase
from dsctl.model.sample import Advice
from dsctl.supervise.journal import Journal


def say_retry(journal: Journal, error: EngineError, advice: Advice) -> None:
    """Tell what has failed and what is done about it."""
    what = f"{advice.knob} = {advice.value}" if advice.knob else "the same again"
    after = f" in {advice.wait_s:.0f} s" if advice.wait_s else ""
    journal.say(
        Phase.STARTING,
        "retry",
        f"{error.message}; tries {what}{after}: {advice.why}",
        cause=error.cause,
        action=advice.action,
        knob=advice.knob,
        value=advice.value,
        wait_s=advice.wait_s,
    )


def say_failed(journal: Journal, error: DsctlError) -> None:
    """The last event of a start that came to nothing."""
    stopped = isinstance(error, InterruptedByUserError)
    journal.say(
        Phase.STOPPED if stopped else Phase.FAILED,
        "interrupted" if stopped else "failed",
        error.message,
        ready=False,
        remedy=error.remedy,
        cause=getattr(error, "cause", None),
        exit_code=int(error.exit_code),
    )
