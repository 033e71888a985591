"""The wire for measuring: the standard library's HTTP, whose cost per chunk is a third of httpx's.

At 64 streams of 100 tokens a second the client reads 6,400 chunks a second in one process; what
each costs delays the stamps of the others. Same requests, same failures as `http.py`.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from dsctl.client.chunks import refusal
from dsctl.client.errors import Failure, FailureKind, RequestError
from dsctl.client.sse import stamped_events
from dsctl.client.target import Target

CONNECT_S = 5.0


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=CONNECT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(CONNECT_S)
        self.sock.connect(self._path)


def connect(target: Target) -> http.client.HTTPConnection:
    """A connection that is made.

    Raises:
        RequestError: nothing listens there.
    """
    parts = urlsplit(target.base_url)
    connection: http.client.HTTPConnection
    if target.uds:
        connection = _UnixConnection(target.uds)
    elif parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=CONNECT_S, context=target.tls()
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=CONNECT_S)
    try:
        connection.connect()
    except OSError as error:
        raise RequestError(
            Failure(FailureKind.UNREACHABLE, f"nothing answers at {target} ({error})")
        ) from None
    return connection


def stamped_stream(
    target: Target, path: str, body: dict[str, Any], silence_s: float
) -> Iterator[tuple[float, bytes | None]]:
    """As `Client.raw_stream`: (seconds, data), the first without data when the stream opens.

    The clock starts when the connection is there, as with a client that keeps connections.
    """
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if target.api_key:
        headers["Authorization"] = f"Bearer {target.api_key}"
    data = json.dumps({"stream": True, "stream_options": {"include_usage": True}, **body})
    prefix = urlsplit(target.base_url).path
    connection = connect(target)
    try:
        connection.sock.settimeout(silence_s)
        began = time.perf_counter()
        connection.request("POST", prefix + path, data.encode(), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise RequestError(refusal(response.status, response.read()))
        yield from stamped_events(iter(lambda: response.read1(65536), b""), began)
    except TimeoutError:
        message = f"{target} was silent for {silence_s:g} s"
        raise RequestError(Failure(FailureKind.SILENT, message)) from None
    except (http.client.HTTPException, OSError) as error:
        message = f"the connection broke off ({type(error).__name__})"
        raise RequestError(Failure(FailureKind.BROKEN, message)) from None
    finally:
        connection.close()
