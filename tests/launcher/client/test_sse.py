"""Server-sent events survive any cutting of the stream."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dsctl.client.sse import SseDecoder

EVENTS = ['{"a": "é"}', "two\nlines", "", " lead", "[DONE]", "漢字 😀"]


def stream(newline: str) -> bytes:
    text = ": a comment\n\n"
    for event in EVENTS:
        text += "event: x\n" + "".join(f"data: {line}\n" for line in event.split("\n")) + "\n"
    return text.replace("\n", newline).encode()


@given(st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 200), max_size=30))
def test_the_same_events_come_out_wherever_the_bytes_are_cut(newline: str, cuts: list[int]) -> None:
    data = stream(newline)
    edges = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    decoder = SseDecoder()
    found = [e for a, b in pairwise(edges) for e in decoder.feed(data[a:b])]
    found += decoder.close()
    assert [e.decode() for e in found] == [event for event in EVENTS if event]


def test_an_unfinished_event_is_held_until_the_stream_ends() -> None:
    decoder = SseDecoder()
    assert list(decoder.feed(b"data: x\ndata: y")) == []
    assert not decoder.is_clean
    assert list(decoder.close()) == [b"x\ny"]
