"""The engine's processor time for a change of the host's interfaces, among many addresses.

    python benchmarks/interface_events.py                    1,500 addresses, 40 changes of a kind
    python benchmarks/interface_events.py --addresses 305

Rank 0's host has a bridge that holds the addresses, as a host of containers has. They come and go
there, one by one, while an idle group waits; then a link of the host goes down and comes back.
Processor time is that of the engine's thread, less what it uses in as long a time without a change.
The goal is 1 ms.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from launch import add_fabric_arguments, deliver, machine, run

QUIET_S = 0.3  # seconds after a change, by when its messages have been heard and answered
GOAL = 1e-3  # seconds of the engine's processor time


def engine_thread() -> Path:
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().startswith("taco-engine"):
            return task
    raise RuntimeError("this process has no engine's thread")


def processor_time(task: Path) -> float:
    """Seconds."""
    return int((task / "schedstat").read_text().split()[0]) * 1e-9


def ip(text: str) -> None:
    subprocess.run(["ip", "-batch", "-"], input=text, text=True, check=True)


def address(number: int) -> str:
    return f"10.{200 + number // 65536}.{number // 256 % 256}.{number % 256}/32"


def build(addresses: int) -> None:
    """A bridge with that many addresses, and a link with one of its own."""
    ip("link add many type bridge\nlink set many up\nlink add near type veth peer name far\n")
    ip("link set far master many up\nlink set near up\naddress add 10.250.0.1/24 dev near\n")
    ip("".join(f"address add {address(number)} dev many\n" for number in range(addresses)))


def cost(engine: Path, text: str) -> float:
    """Seconds of the engine's for what `ip` is told, less those of as long without."""
    start, before = time.monotonic(), processor_time(engine)
    ip(text)
    time.sleep(QUIET_S)
    elapsed, after = time.monotonic() - start, processor_time(engine)
    time.sleep(elapsed)
    return (after - before) - (processor_time(engine) - after)


def changes(addresses: int, count: int) -> Iterator[tuple[str, str]]:
    """Kinds, and what to tell `ip`."""
    for number in range(count):
        verb, which = ("add", "del")[number % 2], address(addresses + number // 2)
        yield "an address comes or goes", f"address {verb} {which} dev many\n"
    for number in range(count):
        yield "a link goes down or up", f"link set near {('down', 'up')[number % 2]}\n"


def rank_main(arguments: argparse.Namespace) -> None:
    import taco_torch  # noqa: F401  registers the backend

    first = int(os.environ["RANK"]) == 0
    if first:
        build(arguments.addresses)
    dist.init_process_group("taco")
    dist.barrier()
    if first:
        engine, rows = engine_thread(), dict[str, list[float]]()
        time.sleep(2.0)  # by then its paths are proved
        for kind, text in changes(arguments.addresses, arguments.changes):
            rows.setdefault(kind, []).append(cost(engine, text))
        deliver({"machine": machine(), "rows": rows})
    dist.barrier()
    dist.destroy_process_group()


def show(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    print(f"{arguments.addresses} addresses, the engine's processor time a change:")
    for kind, seconds in result["rows"].items():
        ordered = sorted(seconds)
        half, most = statistics.median(ordered), ordered[-1]
        verdict = "met" if half <= GOAL else "missed"
        print(f"  {kind}: {half * 1e6:.0f} us (at most {most * 1e6:.0f}); goal 1 ms {verdict}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_fabric_arguments(parser, ranks=2)
    parser.set_defaults(hosts=2)
    parser.add_argument("--addresses", type=int, default=1500)
    parser.add_argument("--changes", type=int, default=40, help="of each kind")
    run(__file__, parser.parse_args(), rank_main, show, TACO_LOG="error")
    return 0


if __name__ == "__main__":
    sys.exit(main())
