"""What an engine's log says went wrong: the named cause, the lines that show it, the rest."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from dsctl.model.base import Value

#: The cause of a log in which nothing known went wrong, or in which no signature fits.
UNKNOWN = "unknown"


class Evidence(Value):
    """One line of a log that shows a cause. `line` counts from 1 within its `source`."""

    line: int
    text: str
    #: Which log it stands in, where more than one was read: `engine`, `kernel`, `container`.
    source: str | None = None


class Cause(Value):
    """A cause, with its remedy filled from the numbers that the log holds."""

    id: str
    title: str
    remedy: str
    meaning: str = ""
    #: What was read from the evidence, by name, as it stands in the log.
    numbers: dict[str, str] = Field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()
    #: Which of the log's engine starts showed it, from 1, where the log holds several.
    start: int | None = None


class Diagnosis(Value):
    """The one cause a log is put down to, its evidence, and other causes that it shows too."""

    cause: Cause
    also: tuple[Cause, ...] = ()
    #: Which start the cause is of and how the last one fares, where the log holds several.
    note: str = ""

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """The lines that show the named cause."""
        return self.cause.evidence

    @property
    def is_known(self) -> bool:
        """Whether a cause is named."""
        return self.cause.id != UNKNOWN

    def to_json(self) -> dict[str, Any]:
        """The shape that `dsctl diagnose --format json` prints (contract).

        Of a log that holds several starts there is a `note` too, and a `start` in what earlier
        ones showed.
        """
        answer: dict[str, Any] = {
            "cause": {
                "id": self.cause.id,
                "title": self.cause.title,
                "remedy": self.cause.remedy,
            },
            "evidence": [_plain(evidence) for evidence in self.evidence],
            "also": [
                {
                    "id": other.id,
                    "title": other.title,
                    "remedy": other.remedy,
                    "evidence": [_plain(evidence) for evidence in other.evidence],
                    **({"start": other.start} if other.start else {}),
                }
                for other in self.also
            ],
        }
        return answer | {"note": self.note} if self.note else answer


def _plain(evidence: Evidence) -> dict[str, Any]:
    return evidence.model_dump(exclude_none=True)
