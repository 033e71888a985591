"""The scripted endpoint's HTTP server: asyncio streams, one thread, one loop."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.support.endpoint.reply import Reply, Served

Responder = Callable[[dict[str, Any]], Reply]


class Endpoint:
    """Serves `responder(body) -> Reply` until closed. With `uds`, on that Unix socket.

    `pages` are GET paths with their text (e.g. `/metrics`); `posts` are POST paths with JSON
    answers (`/tokenize`).
    """

    def __init__(
        self,
        responder: Responder,
        *,
        models: tuple[str, ...] = ("scripted",),
        port: int = 0,
        uds: str | None = None,
        api_key: str | None = None,
        max_model_len: int | None = None,
    ) -> None:
        self.responder = responder
        self.models = models
        self._window = {} if max_model_len is None else {"max_model_len": max_model_len}
        self.pages: dict[str, str | Callable[[], str]] = {}
        self.posts: dict[str, Callable[[dict[str, Any]], Any]] = {}
        self.served: list[Served] = []
        self._api_key = api_key
        self._port, self._uds = port, uds
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.port = 0

    def __enter__(self) -> Endpoint:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the scripted endpoint did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving; open connections are cut."""
        if self._thread.is_alive() and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)

    @property
    def url(self) -> str:
        """What to give to `--endpoint`."""
        return f"unix:{self._uds}" if self._uds else f"http://127.0.0.1:{self.port}/v1"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        if self._uds:
            server: asyncio.Server = await asyncio.start_unix_server(self._connection, self._uds)
        else:
            server = await asyncio.start_server(
                self._connection, "127.0.0.1", self._port, backlog=512
            )
            self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False ends the connection."""
        line = await reader.readline()
        if not line:
            return False
        method, path, _ = line.decode().split()
        headers: dict[str, str] = {}
        while (line := await reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        if self._api_key and headers.get("authorization") != f"Bearer {self._api_key}":
            return await _json(writer, 401, {"error": {"message": "wrong key"}})
        if method == "GET":
            return await self._get(path, writer)
        body = json.loads(content or b"{}")
        served = Served(path, body, headers)
        self.served.append(served)
        if path in self.posts:
            return await _json(writer, 200, self.posts[path](body))
        if path not in ("/v1/chat/completions", "/v1/completions"):
            return await _json(writer, 404, {"error": {"message": f"no {path} here"}})
        if body.get("model") not in self.models:
            message = f"The model `{body.get('model')}` does not exist."
            return await _json(writer, 404, {"error": {"message": message}})
        reply = self.responder(body)
        if reply.fault == "refuse":
            return await _json(writer, 400, {"error": {"message": "scripted refusal"}})
        if not body.get("stream"):
            return await _json(writer, 200, _whole(reply))
        return await _stream(writer, served, reply, chat=path.endswith("chat/completions"))

    async def _get(self, path: str, writer: asyncio.StreamWriter) -> bool:
        if path == "/v1/models":
            return await _json(
                writer, 200, {"data": [{"id": m, **self._window} for m in self.models]}
            )
        if path in self.pages:
            page = self.pages[path]
            return await _plain(writer, 200, page if isinstance(page, str) else page())
        return await _json(writer, 404, {"error": {"message": f"no {path} here"}})


def _whole(reply: Reply) -> dict[str, Any]:
    """The answer to a request that does not stream."""
    message = {"role": "assistant", "content": "".join(reply.text)}
    usage = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.tokens}
    choice = {"index": 0, "message": message, "finish_reason": reply.finish}
    return {"choices": [choice], "usage": reply.usage or usage}


async def _json(writer: asyncio.StreamWriter, status: int, document: Any) -> bool:
    return await _plain(writer, status, json.dumps(document), "application/json")


async def _plain(
    writer: asyncio.StreamWriter, status: int, text: str, kind: str = "text/plain"
) -> bool:
    data = text.encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
    return True


async def _stream(
    writer: asyncio.StreamWriter, served: Served, reply: Reply, *, chat: bool
) -> bool:
    began = time.perf_counter()
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    sent, due = 0, reply.ttft_s
    ask_ids = bool(served.body.get("return_token_ids")) and reply.token_ids
    for index, part in enumerate(reply.deltas()):
        if reply.fault == "cut" and sent >= reply.fault_after:
            return False
        if reply.fault in ("garbage", "error") and sent >= reply.fault_after:
            bad = {
                "garbage": b"data: {half\n\n",
                "error": b'data: {"error":{"message":"boom"}}\n\n',
            }
            await _chunk(writer, bad[reply.fault])
            return False
        due += reply.jitter.get(index, 0.0)
        await _until(began + due)
        choice: dict[str, Any] = {"index": 0, "delta": part["delta"], "finish_reason": None}
        if not chat:
            choice = {"index": 0, "text": part["delta"].get("content", ""), "finish_reason": None}
        if ask_ids:
            choice["token_ids"] = list(range(sent, sent + part["n"]))
        if reply.logprobs is not None:
            choice["logprobs"] = {"content": list(reply.logprobs[sent : sent + part["n"]])}
        served.sent_s.append(time.perf_counter() - began)
        await _chunk(writer, _event({"choices": [choice]}))
        sent += part["n"]
        due += reply.gap_s * part["n"]
    if reply.fault == "cut":
        return False
    if reply.fault != "no-done":
        await _end(writer, reply, sent)
        served.completed = True
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


async def _end(writer: asyncio.StreamWriter, reply: Reply, sent: int) -> None:
    finish = {"choices": [{"index": 0, "delta": {}, "finish_reason": reply.finish}]}
    usage: dict[str, Any] = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": sent}
    if reply.cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": reply.cached_tokens}
    usage = reply.usage if reply.usage is not None else usage
    tail = _event(finish)
    if usage:
        tail += _event({"choices": [], "usage": usage})
    await _chunk(writer, tail + b"data: [DONE]\n\n")


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


async def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()


async def _until(when: float) -> None:
    """Sleep until a moment of `perf_counter`; late moments are not waited for."""
    left = when - time.perf_counter()
    if left > 0:
        await asyncio.sleep(left)
