"""The CPU time of ranks that only wait, while rank 0 is away for ten seconds.

    python benchmarks/idle.py                    on one host, in shared memory
    python benchmarks/idle.py --hosts 4          over the network

Every rank but 0 starts an all_reduce and waits for it. The CPU time of the whole process is read
before and after. The goal is below 2% of a core for each rank.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from launch import add_fabric_arguments, deliver, machine, run


def measure(group: Any, seconds: float) -> tuple[list[float], list[float]]:
    """The share of a core that each rank used while waiting, and while in no operation at all."""
    shares = []
    for waiting in (True, False):
        dist.barrier(group=group)
        tensor = torch.ones(1024)
        start, cpu = time.monotonic(), time.process_time()
        if dist.get_rank() == 0 or not waiting:
            time.sleep(seconds)
        if waiting:
            dist.all_reduce(tensor, group=group)
        used = (time.process_time() - cpu) / (time.monotonic() - start)
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, used)
        shares.append(every)
    return shares[0], shares[1]


def rank_main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    names = arguments.backends.split(",")
    if "taco" in names:
        import taco_torch  # noqa: F401  registers the backend
    result = {"machine": machine(), "rows": []}
    for name in names:
        dist.init_process_group(name)
        waiting, quiet = measure(dist.group.WORLD, arguments.seconds)
        threads = len(os.listdir("/proc/self/task"))
        row = {"backend": name, "waiting": waiting, "quiet": quiet, "threads": threads}
        result["rows"].append(row)
        dist.barrier()
        dist.destroy_process_group()
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    if int(os.environ["RANK"]) == 0:
        deliver(result)


def show(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    for row in result["rows"]:
        waiting = ", ".join(f"{share:.2%}" for share in row["waiting"][1:])
        quiet = max(row["quiet"])
        print(
            f"{row['backend']:>5}: ranks waiting {arguments.seconds:g} s used {waiting} of a core; "
            f"in no operation at most {quiet:.2%}; {row['threads']} threads"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_fabric_arguments(parser)
    parser.add_argument("--backends", default="gloo,taco", help="baseline first")
    parser.add_argument("--seconds", type=float, default=10.0)
    run(__file__, parser.parse_args(), rank_main, show)
    return 0


if __name__ == "__main__":
    sys.exit(main())
