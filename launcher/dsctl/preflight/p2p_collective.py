"""All-reduces between all ranks with every value checked. Runs in a Python that has torch.

Exit codes: 0 all right, 3 wrong data, 4 could not run. A hang has no exit code: whoever starts this
has a deadline. Not imported by dsctl; started by `dsctl preflight --prove-p2p` or by hand:

    NCCL_P2P_DISABLE=1 python p2p_collective.py     # the control arm
    python p2p_collective.py
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import sys
from importlib import import_module
from typing import Any

#: The latency path (4 bytes), a decode step of one token (8 KiB), and the bandwidth path (16 MiB):
#: peer access has been seen to break in one of them only.
SIZES_BYTES = (4, 8192, 16 << 20)
ROUNDS = 20
OK, WRONG_DATA, CANNOT_RUN = 0, 3, 4


def expected(ranks: int, round_: int) -> float:
    """What every element must be after an all-reduce of `rank + 1 + round` over all ranks."""
    return float(sum(rank + 1 + round_ for rank in range(ranks)))


def run_rank(rank: int, ranks: int, backend: str, port: int, corrupt: bool, results: Any) -> None:
    """One rank: reduces, compares, reports `(rank, exit code, text)`."""
    torch = import_module("torch")
    dist = import_module("torch.distributed")

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    try:
        device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(backend, rank=rank, world_size=ranks)
        text = _rounds(torch, dist, device, rank, ranks, corrupt)
        dist.destroy_process_group()
    except Exception as error:  # whatever torch raises: the reason is all that counts
        results.put((rank, CANNOT_RUN, f"{type(error).__name__}: {str(error).splitlines()[0]}"))
        return
    results.put((rank, WRONG_DATA if text else OK, text))


def _rounds(torch: Any, dist: Any, device: Any, rank: int, ranks: int, corrupt: bool) -> str:
    """Empty when every value was right, else the first wrong one."""
    for size in SIZES_BYTES:
        for round_ in range(ROUNDS):
            values = torch.full((size // 4,), float(rank + 1 + round_), device=device)
            dist.all_reduce(values)
            if corrupt and rank == 0 and size == SIZES_BYTES[-1] and round_ == ROUNDS - 1:
                values[-1] = 0.0  # a test's way to see that a single wrong value is seen
            wanted = expected(ranks, round_)
            wrong = int((values != wanted).sum())
            if wrong:
                got = float(values[values != wanted][0])
                return (
                    f"{wrong} of {size // 4} values wrong at {size} bytes: {got:g}, not {wanted:g}"
                )
    return ""


def main() -> int:
    """Starts the ranks and gathers their words."""
    parser = argparse.ArgumentParser(description="all-reduce with values checked")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--corrupt", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    common = (arguments.ranks, arguments.backend, port, arguments.corrupt, results)
    ranks = [
        context.Process(target=run_rank, args=(rank, *common), daemon=True)
        for rank in range(arguments.ranks)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    said = []
    while not results.empty():
        said.append(results.get())
    codes = [code for _, code, _ in said]
    if len(said) < arguments.ranks:
        print("a rank died without a word")
        return CANNOT_RUN
    for rank, code, text in sorted(said):
        if code != OK:
            print(f"rank {rank}: {text}")
    worst = WRONG_DATA if WRONG_DATA in codes else max(codes)
    if worst == OK:
        print(f"{arguments.ranks} ranks, {len(SIZES_BYTES) * ROUNDS} all-reduces, all values right")
    return worst


if __name__ == "__main__":
    sys.exit(main())
