"""A link that dies in the middle of an all_reduce and returns, again and again: what it costs.

    python benchmarks/links.py                      4 hosts x 2 links at 1 Gbit/s, 20 deaths

Ranks reduce without a break, and check every sum, while a cable of one host is cut in the middle of
an operation, without its carrier going, and mended later. The pause of a death is by how much the
longest operation since exceeds the usual one over the links that are left. An error in any rank
ends the run.
"""

from __future__ import annotations

import argparse
import functools
import random
import statistics
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from director import ask, on_fabric
from fabric import Fabric
from launch import deliver, is_rank, machine, make_groups, parse_bytes, show_bytes
from loss import reduce_for

LEAST = 3  # operations, so that there is a usual one
RETURN_S = 30.0  # at most, until all links are in use again


def all_have(paths: int) -> bool:
    import taco_torch

    have = torch.tensor([float(taco_torch.stats().paths >= paths)])
    dist.all_reduce(have, op=dist.ReduceOp.MIN)
    return have.item() > 0


def use_all(paths: int, tensor: torch.Tensor) -> float:
    """Until every rank reaches its peers by so many paths; seconds."""
    start = time.monotonic()
    while not all_have(paths):
        if time.monotonic() - start > RETURN_S:
            raise RuntimeError(f"not all of {paths} paths are in use after {RETURN_S:g} s")
        reduce_for(dist.group.WORLD, tensor, 0)
    return time.monotonic() - start


def rank_main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    make_groups(["taco"])
    draw = random.Random(arguments.seed)  # the same on all ranks
    tensor = torch.zeros(parse_bytes(arguments.bytes) // 4)
    paths = arguments.links * (arguments.hosts - 1)
    use_all(paths, tensor)
    deaths = []
    for number in range(arguments.times):
        usual = reduce_for(dist.group.WORLD, tensor, arguments.seconds, LEAST)
        host, link = draw.randrange(arguments.hosts), draw.randrange(arguments.links)
        # Somewhere within the second operation from now.
        after = statistics.median(usual) * (1 + draw.random())
        ask("cut", str(host), str(link), str(after))
        times = reduce_for(dist.group.WORLD, tensor, 3 * arguments.seconds, 3 * LEAST)
        ask("mend", str(host), str(link))
        returned = use_all(paths, tensor)
        left = statistics.median(times[-2 * LEAST :])  # it has been left by then
        deaths.append(
            {
                "host": host,
                "link": link,
                "usual_s": statistics.median(usual),
                "left_s": left,
                "longest_s": max(times),
                "pause_s": max(times) - left,
                "return_s": returned,
            }
        )
        if dist.get_rank() == 0:
            last = deaths[-1]
            print(
                f"{number + 1}: host {host} link {link}, pause {last['pause_s'] * 1e3:.0f} ms, "
                f"back after {returned:.2f} s",
                file=sys.stderr,
                flush=True,
            )
    if dist.get_rank() == 0:
        deliver({"machine": machine(), "deaths": deaths})
    dist.barrier()
    dist.destroy_process_group()


class Cables:
    """Cuts in the background, so that ranks are in the middle of an operation."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._cut: threading.Timer | None = None

    def cut(self, host: str, link: str, after: str) -> None:
        act = functools.partial(self._fabric.cut, int(host), int(link))
        self._cut = threading.Timer(float(after), act)
        self._cut.start()

    def mend(self, host: str, link: str) -> None:
        assert self._cut is not None
        self._cut.join()
        self._fabric.mend(int(host), int(link))


def show(result: dict[str, list[dict[str, float]]], arguments: argparse.Namespace) -> None:
    deaths = result["deaths"]
    size = show_bytes(parse_bytes(arguments.bytes))
    print(
        f"{len(deaths)} deaths of a link in all_reduces of {size}, {arguments.hosts} hosts x "
        f"{arguments.links} links at {arguments.rate}: no rank had an error, no sum was wrong"
    )
    print("| | median | most |\n|---|--:|--:|")
    for name, text in (
        ("pause_s", "pause"),
        ("return_s", "until a mended link is used again"),
        ("usual_s", "an operation, all links"),
        ("left_s", "an operation, one link less"),
    ):
        every = [death[name] for death in deaths]
        print(f"| {text} | {statistics.median(every):.3f} s | {max(every):.3f} s |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--links", type=int, default=2)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--bytes", default="10M", help="few, so that a pause stands out")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0, help="of operations before a death")
    parser.add_argument("--seed", type=int, default=1, help="draws hosts, links and moments")
    parser.add_argument("--json", type=Path, help="write every figure here")
    arguments = parser.parse_args()
    if arguments.links < 2:
        parser.error("--links: two or more, since the others have to carry on")
    if is_rank():
        return rank_main(arguments)
    fabric = Fabric(arguments.hosts, rate=arguments.rate, links=arguments.links)
    cables = Cables(fabric)
    acts = {"cut": cables.cut, "mend": cables.mend}
    return on_fabric(__file__, fabric, acts, show, arguments)


if __name__ == "__main__":
    main()
