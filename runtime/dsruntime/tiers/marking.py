"""Marks every response of a server that may approximate: for ``vllm serve --middleware``.

Whether a request *was* approximated is known when it ends, which is after the headers of a streamed
response have gone out. So the header says what the server may do; what it did to a request is in
the body of one that is not streamed (`scheduler`), in the metrics and in the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

HEADER = (b"x-dsruntime-replay", b"approximate")

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Callable[[], Awaitable[Message]], Send], Awaitable[None]]


class MarksApproximate:
    """ASGI middleware that adds ``x-dsruntime-replay: approximate`` to HTTP responses."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Send
    ) -> None:
        """One request."""

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), HEADER]}
            await send(message)

        await self._app(scope, receive, marked if scope["type"] == "http" else send)
