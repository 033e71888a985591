"""For tests that hold measured times against a script: a busy machine may delay any one try."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TypeVar

Test = TypeVar("Test", bound=Callable[..., None])


def in_a_quiet_moment(tries: int = 6) -> Callable[[Test], Test]:
    """Try again, later each time: a wrong measurement is wrong every time, a delay is not."""

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def attempt(*args: object, **kwargs: object) -> None:
            for number in range(tries - 1):
                try:
                    return test(*args, **kwargs)
                except AssertionError:
                    time.sleep(0.5 * 2**number)
            return test(*args, **kwargs)

        return attempt  # type: ignore[return-value]

    return decorate
