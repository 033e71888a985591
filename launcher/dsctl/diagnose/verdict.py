"""Which of the causes found is the one to name, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dsctl.diagnose.catalog import Catalog
from dsctl.diagnose.following import MOST_EVIDENCE, Match
from dsctl.diagnose.numbers import DERIVED
from dsctl.diagnose.redact import redact
from dsctl.diagnose.schema import CauseEntry, placeholders
from dsctl.diagnose.starts import History, Start, by_cause
from dsctl.model.diagnosis import UNKNOWN, Cause, Diagnosis, Evidence

_UNKNOWN_REMEDY = (
    "if it failed, run it again with VLLM_LOGGING_LEVEL=DEBUG (and NCCL_DEBUG=INFO for two cards) "
    "and diagnose that log together with the kernel's (`journalctl -k -b`)"
)


def judge(
    catalog: Catalog, history: History, now: Start, apart: Sequence[Match], phase: str
) -> Diagnosis:
    """Name one cause of the last start that failed: the most specific that no other one explains.

    The rest of that start's follow, then what earlier starts showed. Where two are equally
    specific, the one that shows first. Without any match the cause is `unknown`, with the first
    errors that nothing explains as evidence.

    Args:
        history: The starts that are over.
        now: The start at the end of the log, which is in `phase`.
        apart: What the host said that belongs to no start in particular.
    """
    start = history.judged(now)
    causes = _ranked(catalog, by_cause([*start.matches, *apart])) or [_unknown(start)]
    ids = {cause.id for cause in causes}
    if not history.count:
        return Diagnosis(cause=causes[0], also=tuple(causes[1:]))
    before: list[Cause] = []
    for number in sorted({n for n, _ in history.shown.values()}, reverse=True):
        shown = {
            id_: list(matches)
            for id_, (n, matches) in history.shown.items()
            if n == number and id_ not in ids
        }
        before += [c.model_copy(update={"start": number}) for c in _ranked(catalog, shown)]
    return Diagnosis(
        cause=causes[0].model_copy(update={"start": start.number}),
        also=(*causes[1:], *before),
        note=_note(start, now, phase),
    )


def _ranked(catalog: Catalog, matches: dict[str, list[Match]]) -> list[Cause]:
    """The causes found, the one to name first."""
    explained = {e for id_ in matches for e in catalog.causes[id_].explains} & set(matches)
    free = [id_ for id_ in matches if id_ not in explained] or list(matches)

    def rank(id_: str) -> tuple[int, int, str]:
        first = min(match.position for match in matches[id_])
        return (catalog.causes[id_].order, first, id_)

    ordered = sorted(free, key=rank) + sorted(set(matches) - set(free), key=rank)
    return [_filled(catalog.causes[id_], matches[id_]) for id_ in ordered]


def _note(start: Start, now: Start, phase: str) -> str:
    """Which of several starts was judged, and how the last one fares."""
    if start.number == now.number:
        return f"The log holds {now.number} starts; this is about the last."
    last = {"serving": "came up and shows no failure", "stopping": "was stopped in order"}
    how = last.get(phase, "shows no failure so far")
    return f"This is about start {start.number} of {now.number}; the last one {how}."


def _unknown(start: Start) -> Cause:
    if start.unexplained:
        title = "No known cause; these are the first errors in it"
        meaning = "Something went wrong that dsctl does not know. It will not guess."
    elif start.troubled:
        title = "It failed, and the log does not show why"
        meaning = "A failure is passed on; the lines that it came from are not there."
    else:
        title = "Nothing in this log is a known failure"
        meaning = "The log shows no error that dsctl knows, nor any other."
    return Cause(
        id=UNKNOWN,
        title=title,
        meaning=meaning,
        remedy=_UNKNOWN_REMEDY,
        evidence=tuple(line.evidence() for line in start.unexplained),
    )


def _filled(entry: CauseEntry, matches: list[Match]) -> Cause:
    numbers: dict[str, str] = {}
    evidence: list[Evidence] = []
    for match in sorted(matches, key=lambda match: match.position):
        numbers = {**match.numbers, **numbers}
        evidence += [e for e in match.evidence if e not in evidence]
    for name in entry.derive:
        value = DERIVED[name](numbers)
        if value is not None:
            numbers[name] = value
    numbers = {name: redact(value) for name, value in numbers.items()}
    sentences = [s.format_map(numbers) for s in entry.remedy if placeholders(s) <= set(numbers)]
    return Cause(
        id=entry.id,
        title=entry.title,
        meaning=entry.meaning,
        remedy=" ".join(sentences),
        numbers=numbers,
        evidence=tuple(evidence[:MOST_EVIDENCE]),
    )
