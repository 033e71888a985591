"""API keys: kept where only their owner reads, known to the gateway by digest alone."""

from __future__ import annotations

import hashlib
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from dsctl.cli.app import build_app
from dsctl.client import Target
from dsctl.errors import ConfigError, NotGoodError
from dsctl.keys import ApiKey, KeyFile, checked_secret, digests, publish
from dsctl.model.endpoint import Endpoint

BROUGHT = "sk-a-key-that-somebody-brings-along"


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "config" / "api-keys")


def test_the_first_key_is_made_once_and_kept_for_its_owner_alone(file: KeyFile) -> None:
    key, new = file.ensure()
    assert new
    assert file.ensure() == (key, False)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert len(key.secret) > 40
    assert key.secret not in repr(key)


def test_two_at_once_make_one_key(file: KeyFile) -> None:
    made: list[ApiKey] = []
    threads = [threading.Thread(target=lambda: made.append(file.ensure()[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 1


def test_the_gateway_gets_digests_and_never_a_key(file: KeyFile, tmp_path: Path) -> None:
    keys = (file.add("laptop"), file.add("phone", BROUGHT))
    publish(keys, tmp_path / "gateway")
    text = (tmp_path / "gateway" / "keys").read_text()
    assert text.splitlines() == [
        f"{key.name} {hashlib.sha256(key.secret.encode()).hexdigest()}" for key in keys
    ]
    assert not any(key.secret in text for key in keys)
    others = stat.S_IROTH
    assert (tmp_path / "gateway" / "keys").stat().st_mode & others, "another user reads it there"


def test_a_removed_key_is_gone_and_the_last_one_stays(file: KeyFile) -> None:
    file.add("a")
    file.add("b")
    file.remove("a")
    assert [key.name for key in file.read()] == ["b"]
    with pytest.raises(NotGoodError, match="last key"):
        file.remove("b")
    with pytest.raises(ConfigError, match="no key 'a'"):
        file.remove("a")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("sk-aaaaaaaaaaaaaaaaaaaaaaaaa\nsk-b", "newline"),
        ("sk-aaaaaaaaaaaaaaaaaaaaaaaaa\r", "newline"),
        ("sk-aaaaaaaaaaaaaaaaaaa aaaaaaa", "space"),
        ("sk-ääääääääääääääääääääääääää", "no header carries"),
        ("short", "5 characters"),
        ("", "0 characters"),
    ],
)
def test_a_key_that_cannot_be_one_is_refused_without_being_shown(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word) as caught:
        checked_secret(text)
    assert len(text) < 6 or text not in caught.value.message


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "x" * 65, "ä", "a/b"])
def test_a_name_that_cannot_stand_in_a_log_is_refused(file: KeyFile, name: str) -> None:
    with pytest.raises(ConfigError, match="key name"):
        file.add(name)
    assert file.read() == ()


def test_the_same_name_or_the_same_key_twice_is_refused(file: KeyFile) -> None:
    file.add("a", BROUGHT)
    with pytest.raises(ConfigError, match="already"):
        file.add("a")
    with pytest.raises(ConfigError, match="very key"):
        file.add("b", BROUGHT)


def test_a_damaged_file_names_its_line(file: KeyFile) -> None:
    file.add("a")
    with file.path.open("a") as out:
        out.write("nonsense\n")
    with pytest.raises(ConfigError, match="line 2"):
        file.read()


@given(st.text(max_size=80))
def test_whatever_is_brought_is_refused_or_is_one_line_of_a_header(text: str) -> None:
    try:
        accepted = checked_secret(text)
    except ConfigError:
        return
    assert accepted == text
    assert digests((ApiKey("n", text),)).count("\n") == 1
    assert f"Bearer {text}".encode("ascii").isascii()


def test_our_own_commands_take_the_first_key_and_see_a_rotation(file: KeyFile) -> None:
    first = file.add("a")
    endpoint = Endpoint(port=8000, key_file=str(file.path), monitor_port=8001)
    assert Target.of(endpoint).api_key == first.secret
    assert Target.of(endpoint, "mine").api_key == "mine"
    second = file.add("b")
    file.remove("a")
    assert Target.of(endpoint).api_key == second.secret
    assert Target.of(endpoint.monitor).api_key is None, "metrics need none"
    assert Target.of(endpoint).monitor.base_url == "http://127.0.0.1:8001"
    assert Target.of(Endpoint(port=8000)).monitor.base_url == "http://127.0.0.1:8000"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return tmp_path


def test_the_command_shows_a_key_once_and_publishes_its_digest(home: Path) -> None:
    runner, app = CliRunner(), build_app()
    added = runner.invoke(app, ["key", "add", "laptop"])
    assert added.exit_code == 0
    secret = added.stdout.strip()
    assert secret.startswith("sk-")
    listed = runner.invoke(app, ["key", "list"])
    assert "laptop" in listed.stdout
    assert secret not in listed.output
    published = (home / "state" / "dsctl" / "gateway" / "keys" / "keys").read_text()
    assert published == f"laptop {hashlib.sha256(secret.encode()).hexdigest()}\n"


def test_the_command_takes_a_key_from_stdin_and_refuses_a_newline_in_it(home: Path) -> None:
    runner, app = CliRunner(), build_app()
    good = runner.invoke(app, ["key", "add", "mine", "--stdin"], input=f"{BROUGHT}\n")
    assert good.exit_code == 0
    bad = runner.invoke(app, ["key", "add", "other", "--stdin"], input=f"{BROUGHT}\nmore\n")
    assert isinstance(bad.exception, ConfigError)
    assert "newline" in bad.exception.message
