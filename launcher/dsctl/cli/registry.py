"""The list of commands. A command module is light to import; its work is imported when it runs."""

from __future__ import annotations

import typer

#: (name on the command line, module under `dsctl.cli`, attribute): a function or a Typer sub-app.
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("up", "up", "up"),
    ("status", "running", "status"),
    ("logs", "running", "logs"),
    ("down", "running", "down"),
    ("restart", "up", "restart"),
    ("chat", "chat", "chat"),
    ("compose", "compose", "compose"),
    ("key", "key", "app"),
    ("audit", "audit", "audit"),
    ("env", "env", "app"),
    ("pack", "pack", "app"),
    ("image", "image", "app"),
    ("facts", "facts", "facts"),
    ("profiles", "profiles", "app"),
    ("plan", "plan", "plan"),
    ("preflight", "preflight", "preflight"),
    ("diagnose", "diagnose", "diagnose"),
    ("bundle", "bundle", "bundle"),
    ("unit", "unit", "unit"),
    ("bench", "bench", "app"),
    ("quality", "quality", "app"),
    ("report", "report", "report"),
    ("supervise", "supervise", "supervise"),
)

#: Commands that others start, not people.
HIDDEN = frozenset({"supervise"})


def register(app: typer.Typer) -> None:
    """Register every command of `COMMANDS` on the app."""
    from importlib import import_module

    for name, module, attribute in COMMANDS:
        target = getattr(import_module(f"dsctl.cli.{module}"), attribute)
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=name)
        else:
            app.command(name, hidden=name in HIDDEN)(target)
