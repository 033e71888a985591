"""What the engine says about an image becomes facts, without the secrets in it."""

from __future__ import annotations

from typing import Any

import pytest

from dsctl.vet.layers import Merged
from dsctl.vet.scan import HIDDEN, HISTORY, image_facts
from dsctl.vet.values import ImageFacts
from tests.launcher.vet.values import POLICY

TOKEN = "hf_" + "x" * 30


def facts_of(config: dict[str, Any] | None = None, history: tuple[str, ...] = ()) -> ImageFacts:
    known = {
        "Id": "sha256:1",
        "RepoDigests": None,
        "RepoTags": ["a:b"],
        "Os": "linux",
        "Architecture": "amd64",
        "Size": 5,
        "Config": config,
    }
    layers = [{"Size": n, "CreatedBy": text} for n, text in enumerate(history)]
    return image_facts("a:b", known, layers, Merged([], {}, []), POLICY)


def test_an_image_that_says_nothing_has_facts() -> None:
    found = facts_of(None)
    assert (found.user, found.entrypoint, found.working_dir, found.env) == ("", (), "/", {})


def test_what_is_configured_is_taken_over() -> None:
    found = facts_of(
        {
            "User": "1000",
            "Env": ["PATH=/bin", "EMPTY="],
            "Entrypoint": ["/e"],
            "Cmd": ["c"],
            "ExposedPorts": {"8000/tcp": {}},
            "Volumes": {"/data": {}},
            "Labels": {"b": "2", "a": "1"},
            "Healthcheck": {"Test": ["CMD-SHELL", "curl x"]},
        },
        ("COPY . /", "FROM base"),
    )
    assert found.env == {"PATH": "/bin", "EMPTY": ""}
    assert (found.ports, found.volumes, found.healthcheck) == (
        ("8000/tcp",),
        ("/data",),
        "CMD-SHELL curl x",
    )
    assert [layer.made_by for layer in found.layers] == ["FROM base", "COPY . /"]  # base first


@pytest.mark.parametrize(
    ("entry", "rules"),
    [
        ("HF_TOKEN=abc", ["env.secrets"]),
        ("AWS_SECRET_ACCESS_KEY=abc", ["env.secrets"]),
        ("REGISTRY_PASSWORD=abc", ["env.secrets"]),
        ("THING=" + TOKEN, ["env.secret-values"]),
        ("INDEX=https://me:word@pypi.example.org/simple", ["env.secret-values"]),
        ("HF_TOKEN=" + TOKEN, ["env.secrets", "env.secret-values"]),
    ],
)
def test_a_secret_is_seen_by_name_or_by_form_and_its_value_is_nowhere(
    entry: str, rules: list[str]
) -> None:
    name, _, value = entry.partition("=")
    found = facts_of({"Env": [entry]}, (f"ENV {entry}", "RUN true"))
    assert found.env == {name: HIDDEN}
    assert found.secrets == dict.fromkeys(rules, (name, HISTORY))
    assert value not in found.model_dump_json()


@pytest.mark.parametrize(
    "entry",
    [
        "HF_TOKEN=",
        "TOKENIZERS_PARALLELISM=false",
        "VLLM_MAX_TOKENS=5",
        "URL=https://pypi.example.org/simple",
        "KEYS=1",
    ],
)
def test_what_only_resembles_a_secret_is_none(entry: str) -> None:
    assert facts_of({"Env": [entry]}).secrets == {}
