"""The policy is data: complete, read strictly, and known by its content."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsctl.errors import ConfigError
from dsctl.paths import Paths, shipped
from dsctl.vet.policy import JUDGED, policy_file, read_policy

TEXT = shipped("hardening", "vet-policy.yaml").read_text()


def policy(directory: Path, text: str) -> Path:
    file = directory / "vet-policy.yaml"
    file.write_text(text)
    return file


def test_the_shipped_policy_weighs_everything_that_is_judged(tmp_path: Path) -> None:
    shipped_policy = read_policy(policy(tmp_path, TEXT))
    assert set(shipped_policy.weights) == set(JUDGED)


def test_comments_do_not_change_what_a_policy_is_and_a_verdict_does(tmp_path: Path) -> None:
    digest = read_policy(policy(tmp_path, TEXT)).digest
    assert read_policy(policy(tmp_path, "# mine\n" + TEXT)).digest == digest
    softer = TEXT.replace("verdict: fail", "verdict: warn", 1)
    assert read_policy(policy(tmp_path, softer)).digest != digest


FAULTS = [
    ("version: 1\n", "version: new\n", r"yaml:\d+: key 'version'"),
    ("allowed_egress: []", "allowed: []", r"yaml:\d+: key 'allowed': unknown key"),
    ("  image.user:", "  image.users:", "'weights' lacks image.user"),
    ("  - id: env.proxies", "  - id: env.preload", "two rules are called env.preload"),
    ('"(?i)^(https?|all|ftp)_proxy$"', '"(unclosed"', "no regular expression"),
    ("allowed_egress: []", "allowed_egress: ['[']", r"key 'allowed_egress.0': '\[' is no regular"),
    ("verdict: warn", "verdict: maybe", "verdict"),
]


@pytest.mark.parametrize(("old", "new", "said"), FAULTS, ids=[new for _, new, _ in FAULTS])
def test_a_fault_is_named_with_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in TEXT
    with pytest.raises(ConfigError, match=said):
        read_policy(policy(tmp_path, TEXT.replace(old, new, 1)))


@pytest.mark.parametrize("text", ["", "- a\n", "a: [\n"])
def test_what_is_no_policy_is_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"vet-policy\.yaml"):
        read_policy(policy(tmp_path, text))


def test_bad_news_without_a_remedy_is_refused(tmp_path: Path) -> None:
    bare = TEXT.replace("    remedy: take an image without it\n", "", 1)
    with pytest.raises(ConfigError, match="needs a 'remedy'"):
        read_policy(policy(tmp_path, bare))


def test_the_users_policy_goes_before_the_shipped_one(tmp_path: Path) -> None:
    paths = Paths(tmp_path, tmp_path, tmp_path, tmp_path / "config")
    assert policy_file(paths) == shipped("hardening", "vet-policy.yaml")
    paths.config.mkdir()
    own = policy(paths.config, TEXT)
    assert policy_file(paths) == own
