"""The gain of a large all_reduce where several engines carry it out at once.

    python benchmarks/striped.py --engines 2

Two processes of this host, both ends of engine i pinned to the i-th core. A job with one engine in
each and a job with several take turns; a ratio is the median of those of neighbouring turns, beside
it the middle half of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from pairs import Row, compare_engines, take_cores

MEASURES = {"1 MiB, ms": 2**20, "4 MiB, ms": 2**22, "8 MiB, ms": 2**23, "32 MiB, ms": 2**25}


def rank_of_job(rank: int, store: str, seconds: float) -> None:
    import torch
    import torch.distributed as dist

    import taco_torch  # noqa: F401

    dist.init_process_group("taco", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    row: Row = {}
    for name, size in MEASURES.items():
        tensor = torch.ones(size // 4)
        times: list[float] = []
        # Both ranks stop at once: as many rounds as rank 0 finds time for, in blocks.
        more = torch.ones(1)
        end = time.perf_counter() + seconds
        while more.item() > 0:
            for _ in range(8):
                begin = time.perf_counter()
                dist.all_reduce(tensor)
                times.append(time.perf_counter() - begin)
            more.fill_(float(time.perf_counter() < end))
            dist.broadcast(more, 0)
        row[name] = 1e3 * statistics.median(times)
    if rank == 0:
        print(json.dumps(row))
    dist.destroy_process_group()


def run(arguments: argparse.Namespace, engines: int) -> Row:
    store = f"/tmp/taco-striped-{os.getpid()}-{time.monotonic_ns()}"
    environment = {
        **os.environ,
        "TACO_TRANSPORT": arguments.transport,
        "TACO_HARP_ENGINES": str(engines),
        "TACO_HARP_CORES": ",".join(str(core) for core in arguments.cores[:engines]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, __file__, "--store", store, "--seconds", str(arguments.seconds)]
    ranks = [
        subprocess.Popen(
            [*command, "--rank", str(rank)], env=environment, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    said = [rank.communicate()[0] for rank in ranks]
    Path(store).unlink(missing_ok=True)
    if any(rank.returncode for rank in ranks):
        raise SystemExit("a rank has failed")
    row: Row = json.loads(said[0])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a measure in a turn")
    parser.add_argument("--transport", choices=["shm", "udp"], default="udp")
    parser.add_argument("--json", type=Path, help="write every figure here")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        return rank_of_job(arguments.rank, arguments.store, arguments.seconds)
    take_cores(parser, arguments)
    load = os.getloadavg()[0]
    rows = compare_engines(arguments, run, arguments.transport, of_times=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"load": load, "rows": rows}))
    return None


if __name__ == "__main__":
    main()
