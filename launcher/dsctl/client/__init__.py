"""Talks to one OpenAI-compatible endpoint: streamed answers with the time of every token.

    client = Client(Target.parse("http://127.0.0.1:8000/v1"))
    for event in client.stream_chat(messages, model="m"):
        ...                                    # events as they arrive
    done = client.chat(messages, model="m")    # the same, collected

Over TCP or a Unix socket, never through a proxy. httpx is imported by the first request.
"""

from dsctl.client.completion import Completion, Usage, collect
from dsctl.client.errors import Failure, FailureKind, RequestError
from dsctl.client.events import Event, Finish, Opened, Reasoning, Text, ToolDelta, UsageReport
from dsctl.client.http import Client
from dsctl.client.target import Target

__all__ = [
    "Client",
    "Completion",
    "Event",
    "Failure",
    "FailureKind",
    "Finish",
    "Opened",
    "Reasoning",
    "RequestError",
    "Target",
    "Text",
    "ToolDelta",
    "Usage",
    "UsageReport",
    "collect",
]
