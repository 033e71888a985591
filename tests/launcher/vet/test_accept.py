"""An image starts only as it was vetted: this content, this policy, these flags, this file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsctl.paths import Paths
from dsctl.vet.accept import acceptance, accepted, id_of
from dsctl.vet.policy import policy_file
from dsctl.vet.values import RunKind, Vet
from dsctl.vet.vetfile import (
    VetFileError,
    ensure_key,
    read_key,
    read_vet,
    seal,
    vet_path,
    write_vet,
)
from tests.launcher.vet.values import (
    IMAGE_ID,
    POLICY,
    all_known,
    attempt,
    community,
    facts,
    run,
    vet_of,
)

PROFILE = community()
RUNS = (run(), all_known(PROFILE), run(RunKind.SERVE))
GOOD = vet_of(facts(), RUNS, PROFILE)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "data", tmp_path / "state", tmp_path / "cache", tmp_path / "config")


def changed(**update: Any) -> Vet:
    return GOOD.model_copy(update=update)


def test_a_good_vet_of_this_very_content_is_accepted() -> None:
    answer = accepted(PROFILE, IMAGE_ID, GOOD, POLICY)
    assert answer.accepted
    assert answer.image_id == IMAGE_ID
    assert answer.doubts == ()


def test_doubts_are_accepted_and_told() -> None:
    answer = accepted(PROFILE, IMAGE_ID, vet_of(facts(user="root"), RUNS, PROFILE), POLICY)
    assert answer.accepted
    assert answer.doubts == ("image.user: it runs as root",)


NOISY = run(attempts=(attempt("tcp", "203.0.113.9", port=443),))
REFUSED: list[tuple[Vet, str]] = [
    (changed(image_id="sha256:" + "b" * 64), "another image"),
    (changed(policy_digest="sha256:0", policy_version=0), "policy has changed"),
    (vet_of(facts(), (NOISY, *RUNS), PROFILE), r"failed: .*203\.0\.113\.9:443"),
    (vet_of(facts(), (run(),), PROFILE), "not asked about --"),
    (vet_of(facts(), (), PROFILE), "never run"),
    (changed(surroundings="sha256:0"), "program or environment"),
]


@pytest.mark.parametrize(("vet", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_anything_else_is_refused_with_its_reason(vet: Vet, why: str) -> None:
    answer = accepted(PROFILE, IMAGE_ID, vet, POLICY)
    assert not answer.accepted
    assert re.search(why, answer.why)
    assert "dsctl image vet" in answer.remedy


def test_a_digest_in_the_profile_must_be_one_of_the_vetted() -> None:
    def named(digest: str) -> Any:
        engine = PROFILE.engine.model_copy(update={"image": f"theirs/vllm@{digest}"})
        return PROFILE.model_copy(update={"engine": engine})

    vet = changed(digests=("theirs/vllm@sha256:11",))
    assert accepted(named("sha256:11"), IMAGE_ID, vet, POLICY).accepted
    assert "was not vetted" in accepted(named("sha256:22"), IMAGE_ID, vet, POLICY).why


def test_a_flag_that_was_not_proved_needs_a_new_vet() -> None:
    knobs = {**PROFILE.knobs, "seed": PROFILE.knobs["port"]}
    answer = accepted(PROFILE.model_copy(update={"knobs": knobs}), IMAGE_ID, GOOD, POLICY)
    assert "--seed" in answer.why


def test_kept_found_and_accepted_through_files(paths: Paths) -> None:
    key = ensure_key(paths)
    assert ensure_key(paths) == read_key(paths) == key
    assert (paths.config / "vet.key").stat().st_mode & 0o777 == 0o600
    write_vet(vet_path(paths, IMAGE_ID), seal(GOOD, key))
    assert acceptance(PROFILE, {"theirs/vllm:x": IMAGE_ID}, paths).accepted


def test_without_image_vet_or_key_the_answer_says_what_is_missing(paths: Paths) -> None:
    assert "not on this machine" in acceptance(PROFILE, {}, paths).why
    assert "never vetted" in acceptance(PROFILE, {"x": IMAGE_ID}, paths).why
    write_vet(vet_path(paths, IMAGE_ID), seal(GOOD, b"k" * 32))
    assert "edited, or of another user" in acceptance(PROFILE, {"x": IMAGE_ID}, paths).why
    ensure_key(paths)
    assert "edited, or of another user" in acceptance(PROFILE, {"x": IMAGE_ID}, paths).why


def test_a_newer_policy_of_the_user_makes_old_vets_void(paths: Paths) -> None:
    write_vet(vet_path(paths, IMAGE_ID), seal(GOOD, ensure_key(paths)))
    shipped = policy_file(paths).read_text()
    (paths.config / "vet-policy.yaml").write_text(shipped.replace("version: 1\n", "version: 2\n"))
    answer = acceptance(PROFILE, {"x": IMAGE_ID}, paths)
    assert not answer.accepted
    assert "version 1, now 2" in answer.why


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(data=st.data())
def test_no_byte_of_a_vet_file_can_be_changed_unnoticed(paths: Paths, data: st.DataObject) -> None:
    file, key = vet_path(paths, IMAGE_ID), b"k" * 32
    write_vet(file, seal(GOOD, key))
    text = file.read_text()
    at = data.draw(st.integers(0, len(text) - 1))
    file.write_text(text[:at] + data.draw(st.sampled_from('0aZ" }')) + text[at + 1 :])
    try:
        same = read_vet(file, key)
    except VetFileError:
        return
    assert same == seal(GOOD, key)  # only what means nothing in JSON may differ


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 9}', '{"schema": 1}', "\x00"])
def test_a_file_that_is_no_vet_is_refused(paths: Paths, text: str) -> None:
    file = vet_path(paths, IMAGE_ID)
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(VetFileError):
        read_vet(file, b"k" * 32)


def test_a_raised_verdict_is_noticed(paths: Paths) -> None:
    bad = vet_of(facts(), (NOISY, *RUNS), PROFILE)
    file = vet_path(paths, IMAGE_ID)
    write_vet(file, seal(bad, ensure_key(paths)))
    document = json.loads(file.read_text())
    document["verdict"] = "pass"
    file.write_text(json.dumps(document))
    answer = acceptance(PROFILE, {"x": IMAGE_ID}, paths)
    assert not answer.accepted
    assert "edited" in answer.why


def test_an_image_is_known_by_tag_digest_or_id() -> None:
    ids = {"a/b:latest": "sha256:1", "a/b@sha256:d": "sha256:1", "host:5000/c:latest": "sha256:2"}
    assert id_of("a/b", ids) == id_of("a/b:latest", ids) == id_of("a/b@sha256:d", ids) == "sha256:1"
    assert id_of("host:5000/c", ids) == "sha256:2"
    assert id_of("sha256:2", ids) == "sha256:2"
    assert id_of("a/b:other", ids) is None
