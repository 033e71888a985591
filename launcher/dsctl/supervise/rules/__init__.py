"""Decides, purely: a window of samples in, verdicts in words out.

assess(window, context)      every rule that watches a start or a running engine
outlook(window, context)     how far the phase is and how much longer
next_step(...)               after a failed start: again, again with a change, or stop
restart_step(...)            after an engine that served has died
reboot verdicts              `reboot.py`
"""

from dsctl.supervise.rules.assess import assess
from dsctl.supervise.rules.context import Context, Limits
from dsctl.supervise.rules.nextstep import Attempt, next_step, restart_step
from dsctl.supervise.rules.phases import outlook

__all__ = [
    "Attempt",
    "Context",
    "Limits",
    "assess",
    "next_step",
    "outlook",
    "restart_step",
]
