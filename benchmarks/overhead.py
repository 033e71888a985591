"""What the client costs per token: ours beside llama-benchy, on one scripted endpoint, in one run.

Both ask the same server, in a process of its own, for the same streams: `--streams` at once, each
of `--tokens` tokens at `--rate` tokens a second. The server's pace is known, so what a client adds
or loses shows: its CPU time per token, and the rate it reports against the rate that was sent.

    python benchmarks/overhead.py --benchy PATH_TO_llama-benchy

llama-benchy is somebody else's program (PyPI: llama-benchy); without it only ours is measured.
The last line is one JSON object with the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

SERVER = """
import sys
from tests.support.endpoint import Endpoint, Reply
rate, limit = float(sys.argv[1]), int(sys.argv[2])
def reply(body):
    n = body.get("max_tokens") or limit
    text = str([m.get("content") for m in body["messages"]])
    return Reply(tuple(f" w{i}" for i in range(n)), ttft_s=0.2, gap_s=1 / rate, finish="length",
                 prompt_tokens=max(1, len(text.split())))
with Endpoint(reply) as server:
    server.pages["/book.txt"] = " ".join(f"w{i % 500}" for i in range(20000))
    print(server.url, flush=True)
    sys.stdin.read()
    late = [abs(s.sent_s[-1] - 0.2 - (len(s.sent_s) - 1) / rate) for s in server.served if s.sent_s]
    spans = [(len(s.sent_s) - 1) / (s.sent_s[-1] - s.sent_s[0]) for s in server.served
             if len(s.sent_s) == limit]
    print(max(late, default=0), sum(spans) / max(1, len(spans)), flush=True)
"""

OURS = """
import json, sys, time
from dsctl.bench.run import at_once
from dsctl.bench.figures import decode_rate, sample_rate
from dsctl.bench.schema import Round
from dsctl.client import Client, Target
url, streams, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with Client(Target.parse(url)) as client:
    client.models()
    body = {"model": "scripted", "messages": [{"role": "user", "content": "go"}],
            "max_tokens": tokens, "return_token_ids": True}
    cpu = time.process_time()
    samples = at_once(client, [body] * streams)
    cpu = time.process_time() - cpu
assert all(s.failure is None and s.tokens == tokens for s in samples), samples[0].failure
rates = [sample_rate(s) for s in samples]
print(json.dumps({"cpu_s": cpu, "tok_s": decode_rate(Round(samples=tuple(samples), latency_s=0)),
                  "stream_tok_s": sum(rates) / len(rates), "slowest_tok_s": min(rates)}))
"""


def main() -> None:
    """Measure, print a table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=100.0, help="tokens a second and stream")
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--benchy", default=shutil.which("llama-benchy"))
    options = parser.parse_args()
    rows = [measure("dsctl", ours, options)]
    if options.benchy:
        rows.append(measure("llama-benchy", benchy, options))
    print(f"{options.streams} streams x {options.rate:g} tok/s, {options.tokens} tokens each")
    head = ("client", "us CPU/token", "total tok/s", "of sent", "sender late ms")
    print("{:<14}{:>14}{:>14}{:>10}{:>16}".format(*head))
    for row in rows:
        print(
            f"{row['client']:<14}{row['cpu_us_per_token']:>14.1f}{row['total_tok_s']:>14.1f}"
            f"{row['share_of_sent']:>10.2%}{row['sender_late_s'] * 1000:>16.1f}"
        )
    figures = {"streams": options.streams, "rate": options.rate, "tokens": options.tokens}
    print(json.dumps({**figures, "rows": rows}))


def measure(name: str, client: Any, options: argparse.Namespace) -> dict[str, Any]:
    """One client against a fresh server."""
    command = [sys.executable, "-c", SERVER, str(options.rate), str(options.tokens)]
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        cpu_s, total = client(url, options)
        server.stdin.close()
        late, sent = (float(x) for x in server.stdout.readline().split())
    finally:
        server.kill()
        server.wait()
    return {
        "client": name,
        "cpu_us_per_token": cpu_s * 1e6 / (options.streams * options.tokens),
        "total_tok_s": total,
        "share_of_sent": total / (options.streams * sent),
        "sender_late_s": late,
    }


def ours(url: str, options: argparse.Namespace) -> tuple[float, float]:
    """(CPU seconds of the measuring, total tok/s as reported) of our client."""
    command = [sys.executable, "-c", OURS, url, str(options.streams), str(options.tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    found = json.loads(done.stdout.splitlines()[-1])
    return found["cpu_s"], found["tok_s"]


def benchy(url: str, options: argparse.Namespace) -> tuple[float, float]:
    """The same of llama-benchy: one run less its start, which a run with two tokens shows."""
    with tempfile.TemporaryDirectory() as folder:
        idle, _ = run_benchy(url, options, 1, 2, Path(folder))
        cpu, total = run_benchy(url, options, options.streams, options.tokens, Path(folder))
    return cpu - idle, total


def run_benchy(
    url: str, options: argparse.Namespace, streams: int, tokens: int, folder: Path
) -> tuple[float, float]:
    """(CPU seconds of the whole process, its total tok/s)."""
    result = folder / f"{streams}.json"
    tokenizer = word_tokenizer(folder)
    command = [options.benchy, "--base-url", url, "--model", "scripted", "--tokenizer", tokenizer]
    command += [
        "--book-url",
        url.removesuffix("/v1") + "/book.txt",
        "--pp",
        "16",
        "--tg",
        str(tokens),
        "--runs",
        "1",
    ]
    command += ["--concurrency", str(streams), "--no-warmup", "--skip-coherence"]
    command += ["--latency-mode", "none", "--format", "json", "--save-result", str(result)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    home = {**environment(), "HOME": str(folder)}  # it keeps what it fetches there
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=home)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode or not result.exists():
        raise SystemExit(f"llama-benchy failed:\n{done.stdout[-800:]}{done.stderr[-800:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    document = json.loads(result.read_text())
    return cpu, document["benchmarks"][0]["tg_throughput"]["mean"]


def word_tokenizer(folder: Path) -> str:
    """A tokenizer of words on disk, so that nothing is fetched."""
    path = folder / "tokenizer"
    if not path.exists():
        path.mkdir()
        vocabulary = {"[UNK]": 0, **{f"w{i}": i + 1 for i in range(500)}}
        (path / "tokenizer.json").write_text(
            json.dumps(
                {
                    "version": "1.0",
                    "truncation": None,
                    "padding": None,
                    "added_tokens": [],
                    "normalizer": None,
                    "pre_tokenizer": {"type": "Whitespace"},
                    "post_processor": None,
                    "decoder": None,
                    "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
                }
            )
        )
        (path / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"})
        )
    return str(path)


def environment() -> dict[str, str]:
    """Our packages importable, nothing fetched."""
    paths = f"{ROOT / 'launcher'}:{ROOT}"
    return {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"({time.monotonic() - began:.0f} s)", file=sys.stderr)
