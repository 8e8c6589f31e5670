"""Several links beside one of them: the bytes that they carry, in one run.

    python benchmarks/two_links.py                  4 hosts, 2 links at 1 Gbit/s, 40 MiB
    python benchmarks/two_links.py --rate 200mbit   is it the wire that decides, or the cores?
    python benchmarks/two_links.py --between bridge   both interfaces of a host on one network

For the turns of one link the cables of all others are cut, and operations wait until every rank has
left them; they return the same way. So both have the same processes, and take turns.
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
from collectives import make_case, wire_bytes
from director import ask, on_fabric
from fabric import Fabric
from launch import bind, deliver, is_rank, machine, make_groups, parse_bytes, show_bytes, show_time
from loss import slowest

KINDS = "all_reduce,all_gather,all_to_all"
CHANGE_S = 60.0  # at most, until all ranks use the links that there are
FRAMED = 1514 / 1440  # bytes of a frame for those of a segment


def reach_by(paths: int) -> None:
    """Until every rank reaches its peers by so many paths, no more and no less."""
    import taco_torch

    end = time.monotonic() + CHANGE_S
    # Every pair of ranks, or a path that nothing leaves by would not be missed.
    given = torch.zeros(1 << 20)
    taken = torch.empty_like(given)
    while True:
        dist.all_to_all_single(taken, given)
        agreed = torch.tensor([float(taco_torch.stats().paths == paths)])
        dist.all_reduce(agreed, op=dist.ReduceOp.MIN)
        if agreed.item() > 0:
            return
        if time.monotonic() > end:
            raise RuntimeError(f"not {paths} paths after {CHANGE_S:g} s")


def measure(kind: str, size: int, operations: int) -> list[float]:
    case = make_case(kind, size)
    case.check()
    case.run(dist.group.WORLD)
    if not case.check():
        raise RuntimeError(f"{kind} gave a wrong result")
    times = []
    for _ in range(operations):
        dist.barrier()
        start = time.monotonic()
        case.run(dist.group.WORLD)
        times.append(time.monotonic() - start)
    return slowest(times)


def rank_main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    if not arguments.unbound:
        bind(int(os.environ["RANK"]))
    make_groups(["taco"])
    size, peers = parse_bytes(arguments.bytes), arguments.hosts - 1
    times: dict[str, dict[str, list[list[float]]]] = {}
    for turn in range(arguments.turns):
        for links in (1, arguments.links) if turn % 2 == 0 else (arguments.links, 1):
            ask("links", str(links))
            reach_by(links * peers)
            for kind in arguments.kinds.split(","):
                found = measure(kind, size, arguments.operations)
                times.setdefault(kind, {}).setdefault(str(links), []).append(found)
        if dist.get_rank() == 0:
            print(f"turn {turn + 1} of {arguments.turns}", file=sys.stderr, flush=True)
    if dist.get_rank() == 0:
        deliver({"machine": machine(), "times": times})
    dist.barrier()
    dist.destroy_process_group()


def wire_seconds(kind: str, size: int, hosts: int, rate: float) -> float:
    """The least that one link of `rate` bits a second takes for it, a rank a host."""
    return wire_bytes(kind, size, hosts, hosts) * FRAMED * 8 / rate


def use_links(fabric: Fabric, count: str) -> None:
    for host in range(fabric.hosts):
        for link in range(1, fabric.links):
            (fabric.mend if link < int(count) else fabric.cut)(host, link)


def show(
    result: dict[str, dict[str, dict[str, list[list[float]]]]], arguments: argparse.Namespace
) -> None:
    many = str(arguments.links)
    print(
        f"| {show_bytes(parse_bytes(arguments.bytes))}, {arguments.hosts} hosts at "
        f"{arguments.rate} a link | one link (limit) | {many} links (limit) | ratio (least, most) |"
    )
    print("|---|--:|--:|--:|")
    rate = Fabric(rate=arguments.rate).bits_per_second
    assert rate is not None
    for kind, by_links in result["times"].items():
        size = parse_bytes(arguments.bytes)
        limit = wire_seconds(kind, size, arguments.hosts, rate)
        one = [statistics.median(turn) for turn in by_links["1"]]
        more = [statistics.median(turn) for turn in by_links[many]]
        ratios = [slow / fast for slow, fast in zip(one, more, strict=True)]
        print(
            f"| {kind} | {show_time(statistics.median(one))} ({show_time(limit)}) | "
            f"{show_time(statistics.median(more))} ({show_time(limit / arguments.links)}) | "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f}) |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--links", type=int, default=2)
    parser.add_argument("--rate", default="1gbit", help="of each link")
    parser.add_argument(
        "--between",
        default="bridges",
        choices=("bridges", "bridge"),
        help="a network a link, or one network for all links (default: bridges)",
    )
    parser.add_argument(
        "--strict-arp",
        action="store_true",
        help="each interface speaks for its own address alone (arp_ignore=1, arp_announce=2)",
    )
    parser.add_argument("--bytes", default="40M")
    parser.add_argument("--kinds", default=KINDS)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--operations", type=int, default=7, help="of each kind in a turn")
    parser.add_argument(
        "--unbound", action="store_true", help="leave it to the scheduler where ranks run"
    )
    parser.add_argument("--json", type=Path, help="write every figure here")
    arguments = parser.parse_args()
    if arguments.links < 2:
        parser.error("--links: two or more")
    if is_rank():
        return rank_main(arguments)
    fabric = Fabric(
        arguments.hosts,
        rate=arguments.rate,
        links=arguments.links,
        between=arguments.between,
        strict_arp=arguments.strict_arp,
    )
    acts = {"links": functools.partial(use_links, fabric)}
    return on_fabric(__file__, fabric, acts, show, arguments)


if __name__ == "__main__":
    main()
