"""The command line as a whole: light help, usage errors in one line, no tracebacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dsctl.cli.app import build_app, run
from dsctl.cli.registry import COMMANDS
from dsctl.errors import ConfigError, DsctlError, EngineError, NotGoodError, TimedOutError

#: Modules that make a start of Python slow; `--help` must not import them. (Typer itself imports
#: pydantic as soon as a command is resolved.)
HEAVY = ("rich", "httpx", "docker", "yaml", "psutil", "matplotlib", "numpy", "pynvml")


def dsctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dsctl", *arguments], capture_output=True, text=True, check=False
    )


def test_help_of_every_command_imports_nothing_heavy() -> None:
    """One process asks every command for help and then looks at what was imported."""
    script = (
        "import sys\n"
        "from dsctl.cli.app import build_app, run\n"
        "from dsctl.cli.registry import COMMANDS\n"
        "app = build_app()\n"
        "for name, _, _ in COMMANDS:\n"
        "    assert run(app, [name, '--help']) == 0, name\n"
        f"print(sorted(set(sys.modules) & set({HEAVY!r})), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"


def test_every_command_has_a_help_text() -> None:
    done = dsctl("--help")
    assert done.returncode == 0
    for name, _, _ in COMMANDS:
        assert name in done.stdout


def test_an_unknown_command_is_a_usage_error() -> None:
    done = dsctl("upp")
    assert done.returncode == 2
    assert "No such command" in done.stderr
    assert done.stdout == ""


def test_a_missing_option_is_a_usage_error() -> None:
    done = dsctl("up")
    assert done.returncode == 2
    assert "--profile" in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotGoodError("m", remedy="r"), 1),
        (ConfigError("m", remedy="r"), 2),
        (EngineError("m", remedy="r"), 3),
        (TimedOutError("m", remedy="r"), 4),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("bug"), 1),
    ],
)
def test_every_outcome_is_an_exit_code_and_a_line(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    app = build_app()

    @app.command("explode")
    def explode() -> None:
        raise error

    assert run(app, ["explode"]) == code
    said = capsys.readouterr().err
    assert "Traceback" not in said
    if isinstance(error, DsctlError):
        assert said == "dsctl: m\n  what to do: r\n"


def test_a_wrong_choice_is_said_without_the_library_s_own_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(build_app(), ["image", "build", "--target", "nope"]) == 2
    said = capsys.readouterr().err
    assert "'nope' is not one of 'cpu', 'cuda', 'gateway'" in said
    assert "Value error" not in said


def test_debug_shows_the_traceback() -> None:
    app = build_app()

    @app.command("explode")
    def explode() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(app, ["--debug", "explode"])


def test_the_launcher_never_imports_the_engine_or_the_runtime() -> None:
    source = Path(__file__).resolve().parents[3] / "launcher" / "dsctl"
    for path in source.rglob("*.py"):
        for line in path.read_text().splitlines():
            words = line.split()
            if words[:1] in (["import"], ["from"]) and len(words) > 1:
                assert words[1].split(".")[0] not in ("torch", "vllm", "dsruntime"), path
