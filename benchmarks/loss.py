"""all_reduce over links that lose packets at random, beside the same links without loss, and gloo.

    python benchmarks/loss.py                       4 hosts at 1 Gbit/s, 40 MiB, 0%, 1% and 5%
    python benchmarks/loss.py --shares 0,0.01 --kinds single --backends taco

What a loss takes is either a single datagram (every datagram crosses its cable by itself), or a
whole super-packet of up to 64 KB, as where the kernel's segmentation offload hands one to the
cable. Conditions and backends take turns in one run; a share of lossless is the median of the
ratios within a turn, and each condition's lossless neighbour has the same kind of packets.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from director import ask, on_fabric
from fabric import Fabric
from launch import bind, deliver, is_rank, machine, make_groups, parse_bytes, show_bytes, show_time

KINDS = ("single", "super")
Times = dict[str, list[list[float]]]  # by condition: the operations of each turn


def condition(backend: str, kind: str, share: float) -> str:
    return f"{backend} {kind} {share:g}"


def kept_by_turn(times: Times, backend: str, kind: str, share: float) -> list[float]:
    """The lossy speed of each turn, as a share of the lossless one."""
    lossless, lossy = (times[condition(backend, kind, each)] for each in (0.0, share))
    return [
        statistics.median(clean) / statistics.median(turn)
        for clean, turn in zip(lossless, lossy, strict=True)
    ]


def slowest(times: list[float]) -> list[float]:
    found = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return [float(one) for one in found]


def reduce_for(
    group: dist.ProcessGroup, tensor: torch.Tensor, seconds: float, least: int = 1
) -> list[float]:
    """Operations of the slowest rank until all agree that it is time to stop; `least` or more."""
    times: list[float] = []
    end = time.monotonic() + seconds
    while True:
        tensor.fill_(dist.get_rank() + 1)
        dist.barrier()
        start = time.monotonic()
        dist.all_reduce(tensor, group=group)
        times.append(time.monotonic() - start)
        world = dist.get_world_size()
        if not bool((tensor == world * (world + 1) / 2).all()):
            raise RuntimeError("a sum is wrong")
        over = torch.tensor([float(time.monotonic() > end and len(times) >= least)])
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
        if over.item() > 0:
            return slowest(times)


def rank_main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    bind(int(os.environ["RANK"]))
    names = arguments.backends.split(",")
    groups = make_groups(names)
    tensor = torch.zeros(parse_bytes(arguments.bytes) // 4)
    times: Times = {}
    for turn in range(arguments.turns):
        for kind in arguments.kinds.split(","):
            for share in map(float, arguments.shares.split(",")):
                ask("network", kind, "0")
                for name in names:
                    # The first operations after a change belong to neither side of it.
                    ask("network", kind, str(share))
                    reduce_for(groups[name], tensor, 0)
                    found = reduce_for(groups[name], tensor, arguments.seconds)
                    ask("network", kind, "0")
                    times.setdefault(condition(name, kind, share), []).append(found)
        if dist.get_rank() == 0:
            print(f"turn {turn + 1} of {arguments.turns}", file=sys.stderr, flush=True)
    if dist.get_rank() == 0:
        import taco_torch

        deliver({"machine": machine(), "times": times, "left": taco_torch.stats().paths_left})
    dist.barrier()
    dist.destroy_process_group()


def set_network(fabric: Fabric, kind: str, share: str) -> None:
    fabric.set_super_packets(kind == "super")
    fabric.set_loss(float(share))


def show(result: dict[str, Times], arguments: argparse.Namespace) -> None:
    times = result["times"]
    size = show_bytes(parse_bytes(arguments.bytes))
    print(
        f"| all_reduce of {size}, {arguments.hosts} hosts at {arguments.rate} | of lossless "
        "(least and most turn) | median | worst |"
    )
    print("|---|--:|--:|--:|")
    for name in arguments.backends.split(","):
        for kind in arguments.kinds.split(","):
            for share in map(float, arguments.shares.split(",")):
                turns = times[condition(name, kind, share)]
                every = [one for turn in turns for one in turn]
                beside = ""
                if share > 0:
                    ratios = kept_by_turn(times, name, kind, share)
                    beside = (
                        f"{statistics.median(ratios):.1%} ({min(ratios):.1%}, {max(ratios):.1%})"
                    )
                what = "lossless" if share == 0 else f"{share:.0%} of"
                packets = "single datagrams" if kind == "single" else "super-packets"
                print(
                    f"| {name}, {what} {packets} | {beside} | "
                    f"{show_time(statistics.median(every))} | {show_time(max(every))} |"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--bytes", default="40M")
    parser.add_argument("--shares", default="0,0.01,0.05", help="of packets that are lost")
    parser.add_argument("--kinds", default=",".join(KINDS), help="single, super")
    parser.add_argument("--backends", default="taco,gloo")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each condition in a turn")
    parser.add_argument("--json", type=Path, help="write every figure here")
    arguments = parser.parse_args()
    shares = [float(share) for share in arguments.shares.split(",")]
    if shares[0] != 0 or any(not 0 <= share < 1 for share in shares):
        parser.error("--shares: begin with 0, the baseline; each is a probability below 1")
    if not set(arguments.kinds.split(",")) <= set(KINDS):
        parser.error(f"--kinds: of {', '.join(KINDS)}")
    if is_rank():
        return rank_main(arguments)
    fabric = Fabric(hosts=arguments.hosts, rate=arguments.rate)
    acts = {"network": functools.partial(set_network, fabric)}
    return on_fabric(__file__, fabric, acts, show, arguments)


if __name__ == "__main__":
    main()
