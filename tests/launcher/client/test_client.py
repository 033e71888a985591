"""The client against a scripted endpoint: what arrives, when, and every way it can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsctl.client import Client, Completion, FailureKind, RequestError, Target
from dsctl.errors import ConfigError
from tests.support.endpoint import Endpoint, Reply, by_model, words
from tests.support.endpoint.behaviours import MODELS
from tests.support.moments import in_a_quiet_moment

ASK = [{"role": "user", "content": "Go on."}]


def answer(reply: Reply, **params: object) -> Completion:
    with Endpoint(lambda body: reply) as server, Client(Target.parse(server.url)) as client:
        return client.chat(ASK, model="scripted", **params)


def test_text_and_reasoning_come_apart_under_both_names_of_the_field() -> None:
    for key in ("reasoning_content", "reasoning"):
        done = answer(Reply(words("It is 4."), reasoning=words("Two and two."), reasoning_key=key))
        assert (done.text, done.reasoning) == ("It is 4.", "Two and two.")
        assert done.finish_reason == "stop"
        assert done.tokens == 6
        assert done.failure is None


def test_tool_calls_sent_in_pieces_reassemble() -> None:
    calls = (("look", '{"city": "Łódź", "deep": {"a": [1, 2]}}'), ("stop", "{}"))
    done = answer(Reply(tool_calls=calls, split=3, finish="tool_calls"))
    assert [(c.name, c.arguments) for c in done.tool_calls] == list(calls)
    assert [c.id for c in done.tool_calls] == ["call-0", "call-1"]


@in_a_quiet_moment()
def test_times_are_those_of_the_sender_within_one_percent() -> None:
    reply = Reply(tuple(f" {i}" for i in range(101)), ttft_s=0.3, gap_s=0.008)
    with Endpoint(lambda body: reply) as server, Client(Target.parse(server.url)) as client:
        client.models()  # the connection is made, as in a measurement
        done = client.chat(ASK, model="scripted")
        sent = server.served[-1].sent_s
    assert done.ttft_s == pytest.approx(sent[0], rel=0.01, abs=0.003)
    assert done.decode_tok_s == pytest.approx(100 / (sent[-1] - sent[0]), rel=0.01)
    assert len(done.gaps_s) == 100


def test_several_tokens_in_one_chunk_are_counted_by_their_ids() -> None:
    reply = Reply(tuple("abcdefghij"), batch=4, gap_s=0.001)
    assert answer(reply, return_token_ids=True).seen_tokens == 10
    assert answer(reply).seen_tokens == 3  # chunks: a lower bound
    assert answer(reply).tokens == 10  # the server's count, which is possible


@pytest.mark.parametrize(
    ("said", "doubt"),
    [(5, "at least 10 arrived"), (900, "for 10 bytes of text"), (10, None), (12, None)],
)
def test_a_count_that_cannot_be_right_is_not_used(said: int, doubt: str | None) -> None:
    done = answer(Reply(tuple("abcdefghij"), usage={"prompt_tokens": 1, "completion_tokens": said}))
    assert (done.usage_doubt is None) == (doubt is None)
    if doubt:
        assert doubt in str(done.usage_doubt)
        assert done.tokens == 10


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("cut", FailureKind.BROKEN),
        ("no-done", FailureKind.BROKEN),
        ("garbage", FailureKind.PROTOCOL),
        ("error", FailureKind.ENGINE),
        ("refuse", FailureKind.REFUSED),
    ],
)
@pytest.mark.parametrize("measured", [False, True])
def test_each_failure_has_its_kind_and_keeps_what_came(
    fault: str, kind: FailureKind, measured: bool
) -> None:
    reply = Reply(tuple("abcdef"), fault=fault, fault_after=3)  # type: ignore[arg-type]
    with Endpoint(lambda body: reply) as server, Client(Target.parse(server.url)) as client:
        if measured:
            body = {"model": "scripted", "messages": ASK}
            done = client.measure("/v1/chat/completions", body)
        else:
            done = client.chat(ASK, model="scripted")
    assert done.failure is not None
    assert done.failure.kind is kind
    assert done.text == {"no-done": "abcdef", "refuse": ""}.get(fault, "abc")


def test_an_endpoint_that_dies_and_one_that_is_not_there() -> None:
    with Endpoint(by_model, models=MODELS) as server:
        target = Target.parse(server.url)
        with Client(target) as client:
            done = client.chat(ASK, model="dying", max_tokens=20)
            assert done.failure is not None
            assert done.failure.kind is FailureKind.BROKEN
            assert len(done.arrivals) == 10
    with Client(target) as client, pytest.raises(RequestError, match="nothing answers") as caught:
        client.models()
    assert "dsctl status" in str(caught.value.remedy)


def test_a_silent_server_is_given_up_on() -> None:
    with (
        Endpoint(lambda body: Reply(("a", "b"), gap_s=5.0)) as server,
        Client(Target.parse(server.url), silence_s=0.2) as client,
    ):
        done = client.chat(ASK, model="scripted")
    assert done.failure is not None
    assert done.failure.kind is FailureKind.SILENT
    assert done.text == "a"


def test_a_unix_socket_and_a_key(tmp_path: Path) -> None:
    socket = str(tmp_path / "engine.sock")
    with Endpoint(lambda body: Reply(("yes",)), uds=socket, api_key="sesame") as server:
        with Client(Target.parse(server.url, "sesame")) as client:
            assert client.models() == ("scripted",)
            assert client.chat(ASK, model="scripted").text == "yes"
        wrong = Client(Target.parse(server.url, "wrong"))
        with wrong, pytest.raises(RequestError, match="HTTP 401: wrong key"):
            wrong.models()
    assert "sesame" not in repr(Target.parse(server.url, "sesame"))


@pytest.mark.parametrize(
    ("text", "base", "uds"),
    [
        ("http://h:8000/v1", "http://h:8000", None),
        ("https://h/prefix/v1/", "https://h/prefix", None),
        ("127.0.0.1:9", "http://127.0.0.1:9", None),
        ("http://[::1]:9/v1", "http://[::1]:9", None),
        ("unix:/run/e.sock", "http://engine", "/run/e.sock"),
    ],
)
def test_addresses(text: str, base: str, uds: str | None) -> None:
    target = Target.parse(text, "")
    assert (target.base_url, target.uds) == (base, uds)


@pytest.mark.parametrize("text", ["ftp://h", "unix:e.sock", "http://", "http://u:p@h", "h:port"])
def test_bad_addresses_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match="--endpoint") as caught:
        Target.parse(text)
    assert "u:p" not in caught.value.message
