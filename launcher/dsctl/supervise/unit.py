"""The systemd unit of a deployment, as text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_WATCHDOG_S = 60


def unit_text(
    program: Sequence[str],
    arguments: Sequence[str],
    *,
    title: str,
    docker: bool = False,
    user: str | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """A unit that runs `dsctl up … --foreground`.

    `program`: how dsctl is called; `user`: make it a unit of the system for that user, else it is
    one of the user's own manager. `KillMode=process`: ending or killing the supervisor leaves the
    engine, and the next start adopts it; `ExecStop` is what takes it down.
    """
    after = "network.target docker.service" if docker else "network.target"
    lines = [
        "[Unit]",
        f"Description={_plain(title)}",
        "Documentation=man:systemd.service(5)",
        f"After={after}",
        *(["Wants=docker.service"] if docker else []),
        "StartLimitIntervalSec=3600",
        "StartLimitBurst=10",
        "",
        "[Service]",
        "Type=notify",
        "NotifyAccess=main",
        *([f"User={user}"] if user else []),
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in (env or {}).items()),
        "ExecStart=" + " ".join(_quoted(w) for w in (*program, "up", *arguments, "--foreground")),
        "ExecStop=" + " ".join(_quoted(w) for w in (*program, "down")),
        "# The engine outlives its supervisor, which extends the time as long as it loads.",
        "KillMode=process",
        "TimeoutStartSec=180",
        "TimeoutStopSec=60",
        f"WatchdogSec={_WATCHDOG_S}",
        "Restart=on-failure",
        "RestartSec=5",
        "# A failed check, a bad flag, an engine given up on: starting again would not help.",
        "RestartPreventExitStatus=1 2 3 4",
        "LimitMEMLOCK=infinity",
        "",
        "[Install]",
        f"WantedBy={'multi-user.target' if user else 'default.target'}",
    ]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("%", "%%")


def _quoted(word: str) -> str:
    """A word of a command line or an assignment, as systemd reads it (systemd.syntax(7))."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if not word or set(word) & set(" \t\"'\\;") else escaped
