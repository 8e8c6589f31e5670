"""How long a job takes to start: init_process_group and the first all_reduce.

    python benchmarks/init_time.py                  4 ranks, then 64, on this machine
    python benchmarks/init_time.py --worlds 4,16,64 --rounds 5

Ranks are forked from one process that has imported everything, and start together behind a barrier:
this measures the backend, not Python. The time is that of the slowest rank, beginning with its
connection to the store. The launching process serves the store, as torchrun's agent does. If rank 0
served it, the others would find no listener at first, and torch would let them sleep for half a
second to one second.

The time to connect to the store is torch's and is shown separately. Torch looks up the name of the
address it has reached. Where no name server answers, that takes seconds, whatever the backend; so
look-ups are limited to one try of one second here.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import sys
import time
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
import torch.distributed as dist
from launch import bind


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rank_main(
    rank: int, world: int, backend: str, port: int, start: Barrier, results: Any, done: Barrier
) -> None:
    bind(rank)
    torch.set_num_threads(1)
    os.environ.setdefault("TACO_LOG", "warning")
    start.wait()
    began = time.monotonic()
    store = dist.TCPStore("127.0.0.1", port, world, is_master=False)
    connected = time.monotonic()
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)
    initialised = time.monotonic()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    finished = time.monotonic()
    assert tensor.item() == world
    results.put((connected - began, initialised - began, finished - began))
    done.wait()
    dist.destroy_process_group()


def once(backend: str, world: int, timeout: float) -> tuple[float, float, float]:
    """(store, init, init + first all_reduce) of the slowest rank, in seconds."""
    context = multiprocessing.get_context("fork")
    start, done = context.Barrier(world + 1), context.Barrier(world)
    results, port = context.Queue(), free_port()
    ranks = [
        context.Process(
            target=rank_main, args=(rank, world, backend, port, start, results, done), daemon=True
        )
        for rank in range(world)
    ]
    for rank in ranks:
        rank.start()
    try:
        # After the forks: the store's server is a thread.
        server = dist.TCPStore("127.0.0.1", port, world, is_master=True, wait_for_workers=False)
        start.wait()
        times = [results.get(timeout=timeout) for _ in ranks]
        for rank in ranks:
            rank.join(timeout)
            if rank.exitcode != 0:
                raise SystemExit(f"{backend}: a rank ended with status {rank.exitcode}")
        del server
    finally:
        for rank in ranks:
            rank.kill()
    store, init, total = (max(figures) for figures in zip(*times, strict=True))
    return store, init, total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", default="4,64", help="numbers of ranks")
    parser.add_argument("--backends", default="gloo,taco", help="baseline first")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--timeout", type=float, default=120.0)
    parser.add_argument("--json", help="write every figure here")
    arguments = parser.parse_args()
    os.environ.setdefault("RES_OPTIONS", "attempts:1 timeout:1")
    names = arguments.backends.split(",")
    if "taco" in names:
        # Loads the extension, and what the first group would import.
        import taco_torch.backend
        import taco_torch.lightcc  # noqa: F401
    rows = []
    for world in [int(text) for text in arguments.worlds.split(",")]:
        samples: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
        for _ in range(arguments.rounds):
            for name in names:
                samples[name].append(once(name, world, arguments.timeout))
        for name in names:
            store, init, total = (
                statistics.median(figures) for figures in zip(*samples[name], strict=True)
            )
            rows.append(
                {
                    "backend": name,
                    "world": world,
                    "store_s": store,
                    "init_s": init,
                    "total_s": total,
                }
            )
            print(
                f"{name:>5}, {world:3} ranks: init {init:.3f} s (store {store:.3f} s), with the "
                f"first all_reduce {total:.3f} s (median of {arguments.rounds})",
                flush=True,
            )
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
