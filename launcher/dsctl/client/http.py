"""The HTTP side: requests, and a stream of bytes with the time each piece arrived."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsctl.client.chunks import read_chunk, refusal
from dsctl.client.completion import Assembler, Completion, collect
from dsctl.client.errors import Failure, FailureKind, RequestError
from dsctl.client.events import Event, Opened
from dsctl.client.fast import stamped_stream
from dsctl.client.sse import stamped_events
from dsctl.client.target import Target

if TYPE_CHECKING:
    import httpx

CONNECT_S = 5.0
#: Longest silence inside an answer: a prefill of a full window takes minutes.
SILENCE_S = 600.0

Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Recording:
    """What came and when; `failure` is how it ended early."""

    stamped: list[tuple[float, bytes | None]]
    failure: Failure | None

    def completion(self) -> Completion:
        """The answer, read."""
        assembler, failure = Assembler(), self.failure
        try:
            for t, data in self.stamped:
                if data is None:
                    assembler.add(Opened(t))
                else:
                    for event in read_chunk(data, t):
                        assembler.add(event)
        except RequestError as error:
            failure = error.failure
        return assembler.result(failure=failure)


class Client:
    """Requests to one server. Keeps connections open; one client may serve many threads.

    `silence_s` bounds the time between two pieces of an answer, not the whole answer.
    """

    def __init__(self, target: Target, *, silence_s: float = SILENCE_S) -> None:
        self.target = target
        self._silence_s = silence_s
        self._http: httpx.Client | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def models(self) -> tuple[str, ...]:
        """Ids of the served models.

        Raises:
            RequestError: no answer, or not a list of models.
        """
        document = self.get_json("/v1/models")
        try:
            return tuple(str(entry["id"]) for entry in document["data"])
        except (KeyError, TypeError):
            raise RequestError(
                Failure(FailureKind.PROTOCOL, f"{self.target} does not list models")
            ) from None

    def get_text(self, path: str, timeout_s: float = 10.0) -> str:
        """Body of a GET, e.g. `/metrics`.

        Raises:
            RequestError: no answer or an HTTP error.
        """
        with self._told():
            response = self._client().get(path, timeout=timeout_s)
            if response.status_code != 200:
                raise RequestError(refusal(response.status_code, response.content))
            return response.text

    def get_json(self, path: str) -> Any:
        """JSON body of a GET. Raises RequestError, also when the body is not JSON."""
        import json

        try:
            return json.loads(self.get_text(path))
        except ValueError:
            raise RequestError(
                Failure(FailureKind.PROTOCOL, f"{path} of {self.target} is not JSON")
            ) from None

    def post_json(self, path: str, body: dict[str, Any], timeout_s: float = 60.0) -> Any:
        """JSON answer to a POST (`/tokenize`, `/v1/completions` without streaming, ...).

        Raises:
            RequestError: no answer, an HTTP error, or not JSON.
        """
        with self._told():
            response = self._client().post(path, json=body, timeout=timeout_s)
            if response.status_code != 200:
                raise RequestError(refusal(response.status_code, response.content))
            try:
                return response.json() if response.content else None
            except ValueError:
                raise RequestError(
                    Failure(FailureKind.PROTOCOL, f"{path} of {self.target} is not JSON")
                ) from None

    def stream_chat(self, messages: Messages, *, model: str, **params: Any) -> Iterator[Event]:
        """Events of one streamed chat answer as they arrive; `params` go into the body as given.

        Raises:
            RequestError: refused, broken off, silent for too long, or not a chat stream.
        """
        body = {"model": model, "messages": messages, **params}
        yield from self.stream("/v1/chat/completions", body)

    def chat(
        self,
        messages: Messages,
        *,
        model: str,
        watch: Callable[[Event], None] | None = None,
        **params: Any,
    ) -> Completion:
        """One streamed answer, collected. Never raises for a failed request: see `failure`."""
        return collect(self.stream_chat(messages, model=model, **params), watch)

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[Event]:
        """Events of any streaming path (`/v1/chat/completions`, `/v1/completions`)."""
        for t, data in self.raw_stream(path, body):
            if data is None:
                yield Opened(t)
            else:
                yield from read_chunk(data, t)

    def measure(self, path: str, body: dict[str, Any]) -> Completion:
        """Like `stream`, but chunks are only stamped while they arrive and read afterwards."""
        return self.record(path, body).completion()

    def record(self, path: str, body: dict[str, Any]) -> Recording:
        """The stamped chunks of one answer, unread.

        With many streams at once, read them when all have ended: reading one delays the stamps
        of the others.
        """
        stamped: list[tuple[float, bytes | None]] = []
        try:
            for item in stamped_stream(self.target, path, body, self._silence_s):
                stamped.append(item)
        except RequestError as error:
            return Recording(stamped, error.failure)
        return Recording(stamped, None)

    def raw_stream(self, path: str, body: dict[str, Any]) -> Iterator[tuple[float, bytes | None]]:
        """(seconds, data of one event); the first item has no data: the stream has opened.

        `t` is taken when the bytes are read, before anything is parsed.
        """
        body = {"stream": True, "stream_options": {"include_usage": True}, **body}
        with self._told():
            request = self._client().build_request("POST", path, json=body)
            began = time.perf_counter()
            response = self._client().send(request, stream=True)
            try:
                if response.status_code != 200:
                    raise RequestError(refusal(response.status_code, response.read()))
                yield from stamped_events(response.iter_raw(), began)
            finally:
                response.close()

    def _client(self) -> httpx.Client:
        if self._http is None:
            import httpx

            limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
            headers = {"Accept-Encoding": "identity"}
            if self.target.api_key:
                headers["Authorization"] = f"Bearer {self.target.api_key}"
            secure = self.target.base_url.startswith("https:")
            self._http = httpx.Client(
                base_url=self.target.base_url,
                transport=httpx.HTTPTransport(
                    verify=self.target.tls() if secure else False,
                    uds=self.target.uds,
                    limits=limits,
                ),
                timeout=httpx.Timeout(self._silence_s, connect=CONNECT_S),
                headers=headers,
                trust_env=False,
            )
        return self._http

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Failures of the transport as `RequestError`."""
        import httpx

        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            failure = Failure(
                FailureKind.UNREACHABLE, f"nothing answers at {self.target} ({_short(error)})"
            )
        except httpx.TimeoutException:
            failure = Failure(
                FailureKind.SILENT, f"{self.target} was silent for {self._silence_s:g} s"
            )
        except (httpx.ReadError, httpx.RemoteProtocolError, httpx.WriteError) as error:
            failure = Failure(FailureKind.BROKEN, f"the connection broke off ({_short(error)})")
        except httpx.HTTPError as error:
            failure = Failure(FailureKind.PROTOCOL, _short(error))
        else:
            return
        raise RequestError(failure) from None


def _short(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
