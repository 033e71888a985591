"""Runs the scripted engine: log lines of vLLM 0.32, phase by phase, then its API until SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.support.endpoint import Endpoint, Reply, words
from tests.support.engine.script import PHASES, Script

_LINES = {
    "starting": (
        "(APIServer pid={pid}) INFO 12-01 02:21:28 [utils.py:300] vLLM API server version 0.32.0",
        "(EngineCore pid={pid}) INFO 12-01 02:22:00 [core.py:133] Initializing a V1 LLM engine",
    ),
    "loading": (
        "(Worker pid={pid}) INFO 12-01 02:22:27 [cpu_model_runner.py:68] Starting to load model "
        "{checkpoint}...",
    ),
    "allocating": (
        "(Worker pid={pid}) INFO 12-01 02:22:28 [runner.py:1] Model loading took 0.02 GiB and "
        "0.31 seconds",
        "(EngineCore pid={pid}) INFO 12-01 02:22:29 [kv_cache_utils.py:2327] CPU KV cache size: "
        "6,953 tokens",
    ),
    "warming": (
        "(EngineCore pid={pid}) INFO 12-01 02:22:30 [core.py:300] init engine (profile, create kv "
        "cache, warmup model) took 0.60 seconds",
        "(APIServer pid={pid}) INFO:     Started server process [{pid}]",
    ),
    "serving": ("(APIServer pid={pid}) INFO:     Application startup complete.",),
}
_FLOOD = ("x" * 199 + "\n").encode() * 5000


class Player:
    """Plays one script."""

    def __init__(self, script: Script, arguments: list[str]) -> None:
        self.script = script
        self.checkpoint = arguments[0]
        self.model = _flag(arguments, "--served-model-name")
        self.port = int(_flag(arguments, "--port", "0"))
        self.uds = _flag(arguments, "--uds") or None
        self.iterations = 0
        self.running = 0
        self.dead = False

    def play(self) -> None:
        """Start, then serve."""
        for phase in PHASES[:-1]:
            self._open(phase)
        models = (self.script.model or self.model,)
        with Endpoint(self._answer, models=models, port=self.port, uds=self.uds) as server:
            server.pages = {"/health": "", "/metrics": self._metrics, "/version": "{}"}
            self._open("serving")
            threading.Event().wait()

    def _open(self, phase: str) -> None:
        for text in _LINES[phase]:
            self.say(text.format(pid=os.getpid(), checkpoint=self.checkpoint))
        if phase == "loading":
            for done in range(self.script.shards + 1):
                percent = 100 * done // self.script.shards
                self.say(
                    f"Loading safetensors checkpoint shards: {percent:3}% Completed | "
                    f"{done}/{self.script.shards} [00:00<00:00]"
                )
        if self.script.at == phase:
            self._fault()

    def say(self, text: str) -> None:
        if self.script.fault != "silent":
            print(text, flush=True)
        time.sleep(self.script.pace_s)

    def _fault(self) -> None:
        for text in self.script.say:
            print(text, flush=True)
        if self.script.fault == "exit":
            os._exit(self.script.code)
        if self.script.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.script.fault == "hang":
            threading.Event().wait()
        if self.script.fault == "flood":
            threading.Thread(target=_flood, daemon=True).start()
        if self.script.fault == "eat":
            _eat()
        if self.script.fault == "slow-read":
            _read_slowly(Path(self.checkpoint))

    def _answer(self, body: dict[str, Any]) -> Reply:
        self.running += 1
        if self.dead or (self.script.dies_on and self.script.dies_on in str(body)):
            self.dead = True
            return Reply(words("never"), ttft_s=3600.0)
        self.iterations += 1
        self.running -= 1
        if self.script.answers == "refuse":
            return Reply(fault="refuse")
        if self.script.answers == "garbage":
            return Reply(words("! ! ! ! ! ! ! ! ! !"))
        question = _question(body)
        if question is None:
            return Reply(words("A long answer to a long question, in words that differ."))
        text, reasoning = question.get("expected", ""), question.get("expected_reasoning") or ""
        if self.script.answers == "think-leak":
            text = f"hm</think>{text}"
        call = question.get("expected_tool_call")
        calls = ((call["name"], _json(call["arguments"])),) if call else ()
        return Reply(words(text), reasoning=words(reasoning), tool_calls=calls, split=4)

    def _metrics(self) -> str:
        return (
            f'vllm:num_requests_running{{engine="0"}} {self.running}\n'
            f'vllm:num_requests_waiting{{engine="0"}} 0\n'
            f'vllm:iteration_tokens_total_count{{engine="0"}} {self.iterations}\n'
        )


def _question(body: dict[str, Any]) -> dict[str, Any] | None:
    import yaml

    path = Path(__file__).resolve().parents[3] / "canary" / "questions.yaml"
    questions = yaml.safe_load(path.read_text())["questions"]
    thinking = bool((body.get("chat_template_kwargs") or {}).get("thinking"))
    for question in questions:
        if question["messages"] == body.get("messages") and thinking == (
            question["kind"] == "thinking"
        ):
            return dict(question)
    return None


def _json(value: Any) -> str:
    import json

    return json.dumps(value)


def _flood() -> None:
    """100 MB/s, in megabytes."""
    began, sent = time.monotonic(), 0
    while True:
        os.write(1, _FLOOD)
        sent += 1
        ahead = sent / 100 - (time.monotonic() - began)
        if ahead > 0:
            time.sleep(ahead)


def _eat() -> None:
    """16 MiB every 20 ms, touched, for ever."""
    eaten = []
    while True:
        eaten.append(bytearray(os.urandom(1 << 12)) * (16 << 8))
        time.sleep(0.02)


def _read_slowly(checkpoint: Path) -> None:
    """Every shard at 1 MB/s."""
    for shard in sorted(checkpoint.glob("*.safetensors")):
        with shard.open("rb", buffering=0) as file:
            while file.read(250_000):
                time.sleep(0.25)


def _flag(arguments: list[str], name: str, default: str = "") -> str:
    return arguments[arguments.index(name) + 1] if name in arguments else default


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    Player(Script.of_environment(), sys.argv[1:]).play()
