"""The trap's notes become attempts with times after the start; what is run is planned by facts."""

from __future__ import annotations

import io
import json
import tarfile

import pytest

from dsctl.compose.policy import FOREIGN_SHELL
from dsctl.vet.egress import told, where
from dsctl.vet.observe import attempts, last_lines, stand_in, unix_time
from dsctl.vet.parser import UNKNOWN, serve_argv
from dsctl.vet.run import trials
from dsctl.vet.trap import Notes, program, read_notes
from dsctl.vet.values import RunKind
from tests.launcher.vet.values import attempt, community, facts


def line(number: int, t: float, **changed: object) -> str:
    record = {"id": number, "t": t, "protocol": "tcp", "address": "203.0.113.9", "port": 443}
    return json.dumps({**record, "name": None, "said": "", "count": 1, **changed})


def test_a_later_line_about_a_try_replaces_the_earlier() -> None:
    notes = read_notes(
        [
            '{"ready": true, "families": [4], "missing": {"6": "no"}}',
            line(0, 12.5),
            line(1, 11.0, protocol="udp"),
            "not a line of ours",
            line(0, 12.5, count=3, said="TLS for x"),
            '{"lost": 4}',
            '{"end": true, "listening": [{"port": 80, "family": 4, "loopback": false}],'
            ' "dropped": 3}',
        ]
    )
    assert (notes.ready, notes.ended, notes.families, notes.lost) == (True, True, (4,), 7)
    assert notes.listeners[0].port == 80
    found = attempts(notes, started=10.0)
    assert [(a.at_s, a.protocol, a.count, a.said) for a in found] == [
        (1.0, "udp", 1, ""),
        (2.5, "tcp", 3, "TLS for x"),
    ]


def test_a_trap_that_said_nothing_neither_was_ready_nor_ended() -> None:
    assert read_notes([]) == Notes()


def test_dockers_time_is_read_with_its_nanoseconds() -> None:
    assert unix_time("1970-01-01T00:01:00.25Z") == 60.25
    assert unix_time("2026-01-01T00:00:00.123456789Z") == pytest.approx(1767225600.123456789)
    assert unix_time("2026-01-01T00:00:00Z") == 1767225600


def test_what_it_printed_is_cut_and_has_no_control_characters() -> None:
    text = "\n".join(f"line {n}" for n in range(40)) + "\n\n\x1b[31mred\x1b[0m\r\n"
    assert last_lines(text)[0] == "line 29"
    assert last_lines(text)[-1] == "[31mred[0m"


def test_the_stand_in_is_a_directory_with_one_file() -> None:
    with tarfile.open(fileobj=io.BytesIO(stand_in(b"{}"))) as archive:
        assert archive.getnames() == [
            "dsctl-vet",
            "dsctl-vet/checkpoint",
            "dsctl-vet/checkpoint/config.json",
        ]
    with tarfile.open(fileobj=io.BytesIO(program())) as archive:
        assert "trap/__main__.py" in archive.getnames()


def test_an_image_without_an_engine_is_only_started() -> None:
    bare = facts(packages=())
    assert [t.kind for t in trials(bare, None, 5)] == [RunKind.ENTRYPOINT]
    assert trials(facts(packages=(), entrypoint=()), None, 5) == []


def test_an_engine_is_also_asked_for_help() -> None:
    _, asked = trials(facts(), None, 5)
    assert asked.argv == ("vllm", "serve", "--help")


def test_with_a_profile_its_flags_are_tried_and_its_command_is_watched() -> None:
    profile = community()
    planned = {t.kind: t for t in trials(facts(), profile, 5)}
    assert list(planned) == [RunKind.ENTRYPOINT, RunKind.HELP, RunKind.FLAGS, RunKind.SERVE]
    flags, serve = planned[RunKind.FLAGS], planned[RunKind.SERVE]
    assert flags.argv == (*serve_argv(profile), UNKNOWN)
    assert serve.argv == (*FOREIGN_SHELL, *serve_argv(profile)), "as `up` starts it"
    assert serve.env["HOME"] == "/cache"
    assert serve.env["NCCL_GRAPH_FILE"] is None
    assert serve.config is not None
    assert "model_type" in json.loads(serve.config)


def test_a_place_is_told_by_name_or_address_and_port() -> None:
    assert where(attempt("tcp", "2001:db8::1", port=80)) == "[2001:db8::1]:80"
    assert where(attempt("tcp", "198.18.0.1", port=443, name="a.org")) == "a.org:443"
    assert where(attempt("icmp", "203.0.113.9")) == "203.0.113.9"
    asked = attempt("dns", "8.8.8.8", port=53, name="a.org", said="AAAA", count=2)
    assert told(asked) == "after 1.0 s dns a.org (AAAA, asked of 8.8.8.8), 2 times"
