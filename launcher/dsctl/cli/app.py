"""Builds the Typer app and turns every outcome into an exit code, without a traceback."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dsctl.errors import DsctlError, ExitCode

_DEBUG_HELP = "Show the traceback of an error instead of one line."


def build_app() -> typer.Typer:
    """The `dsctl` app with every command registered."""
    from dsctl.cli.registry import register

    app = typer.Typer(
        name="dsctl",
        help="Run DeepSeek-V4-Flash on one or two 96 GB cards, or a canary of it on any x86 CPU.",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback(invoke_without_command=True)
    def _root(
        debug: Annotated[bool, typer.Option("--debug", help=_DEBUG_HELP)] = False,
        version: Annotated[
            bool, typer.Option("--version", help="Print the version and exit.")
        ] = False,
    ) -> None:
        if version:
            from dsctl import __version__

            typer.echo(__version__)
            raise typer.Exit

    register(app)
    return app


def run(app: typer.Typer, args: list[str]) -> int:
    """Run the app and return its exit code; no traceback reaches the user without `--debug`."""
    debug = "--debug" in args
    command = typer.main.get_command(app)
    try:
        result = command.main(args=args or ["--help"], prog_name="dsctl", standalone_mode=False)
        return int(result) if isinstance(result, int) else ExitCode.GOOD
    except typer.TyperException as error:  # usage: an unknown command or option, a bad value
        _print_usage_error(error)
        return ExitCode.USAGE
    except (KeyboardInterrupt, typer.Abort):
        print("dsctl: interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # `dsctl ... | head`
        sys.stderr.close()
        return ExitCode.GOOD
    except DsctlError as error:
        if debug:
            raise
        print(f"dsctl: {error.message}", file=sys.stderr)
        if error.remedy:
            print(f"  what to do: {error.remedy}", file=sys.stderr)
        return error.exit_code
    except Exception as error:
        if debug:
            raise
        print(f"dsctl: internal error: {type(error).__name__}: {error}", file=sys.stderr)
        print("  what to do: run it again with `dsctl --debug …` and report it", file=sys.stderr)
        return ExitCode.NOT_GOOD


def _print_usage_error(error: typer.TyperException) -> None:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    if message.startswith("Usage:"):  # a command group without a command: its help is the message
        print(message, file=sys.stderr)
        return
    message = message.replace(": Value error, ", ": ")  # how a library says where it checks
    print(f"dsctl: {message}", file=sys.stderr)
    print("  what to do: see `dsctl --help` or `dsctl COMMAND --help`", file=sys.stderr)
