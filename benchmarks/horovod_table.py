"""The synthetic benchmark at 1, 8 and 16 ranks: Horovod over TCP, over HARP, and LightCC over HARP.

    python benchmarks/horovod_table.py
    python benchmarks/horovod_table.py --ranks 1,4 --per-host 2 --scale 1 --rate 1gbit

As in TACO's table: VGG16 with batches of 128 on hosts of eight devices and 25 Gbit/s. Hosts are
emulated here (fabric.py), and so is the computation; gradients and the network's rate are --scale
times smaller, the computation is not, so that bytes and computation have the table's ratio
(pytorch_synthetic_benchmark.py says how). All columns are measured in turns, in one run.

Horovod over TCP is two figures. One is measured: DistributedDataParallel over gloo. The other is
arithmetic, and better than any Horovod: a ring all-reduce that keeps the cable busy without a gap,
each bucket from the moment at which its gradients are ready. Scaling is images a second of all
ranks over those of as many ranks that do not communicate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulated import BUCKET_BYTES, FIRST_BUCKET_BYTES, FORWARD, MODELS, buckets, step_limit
from fabric import Fabric, FabricUnavailable, parse_rate, wait_all
from launch import TCP_FRAMING, machine, save

SCRIPT = Path(__file__).with_name("pytorch_synthetic_benchmark.py")
# Title and options of what is measured.
COLUMNS = {
    "gloo": ("DDP, gloo, TCP", ["--backend=gloo"]),
    "harp": ("Horovod's API, HARP", ["--backend=horovod"]),
    "lightcc": ("Horovod's API, LightCC, HARP", ["--backend=horovod", "--lightcc"]),
}
# Rank r on the (r mod cores)-th core, as all benchmarks here; behind it stands the command.
BIND = 'exec taskset -c "$(($RANK % {cores}))" "$@"'


def ring_step(arguments: argparse.Namespace, hosts: int, ranks: int) -> float:
    """Seconds of a step with a ring over TCP that never leaves the cable idle."""
    seconds = arguments.emulate_compute / 1e3
    if hosts == 1:
        return seconds
    layers = [layer.scaled(arguments.scale) for layer in MODELS[arguments.model]()]
    rate = parse_rate(arguments.rate) / arguments.scale
    by_byte = 2 * (ranks - 1) / ranks * 8 * TCP_FRAMING / rate
    forward = FORWARD * seconds
    caps = BUCKET_BYTES / arguments.scale, FIRST_BUCKET_BYTES / arguments.scale
    return step_limit(buckets(layers, *caps), forward, seconds - forward, by_byte)


def measure(
    arguments: argparse.Namespace, hosts: int, ranks: int, options: Sequence[str]
) -> dict[str, Any]:
    """The figures that rank 0 of the benchmark writes."""
    rate = f"{parse_rate(arguments.rate) / arguments.scale / 1e6:g}mbit"
    with tempfile.TemporaryDirectory() as folder, Fabric(hosts=hosts, rate=rate) as fabric:
        result = Path(folder) / "result.json"
        command = ["sh", "-c", BIND.format(cores=os.cpu_count()), "sh", sys.executable, str(SCRIPT)]
        command += [f"--model={arguments.model}", f"--batch-size={arguments.batch_size}"]
        command += [f"--emulate-compute={arguments.emulate_compute}", f"--scale={arguments.scale}"]
        command += [f"--num-warmup-batches={arguments.warm_up}", "--no-cuda"]
        command += [f"--num-batches-per-iter={arguments.steps}", f"--num-iters={arguments.iters}"]
        command += [f"--json={result}", *options]
        # The sizes from which TopK and fusion begin shrink with the gradients.
        variables = {
            "TACO_LOG": "warning",
            "LIGHT_TOPK_THRESHOLD": str(round((1 << 20) / arguments.scale)),
            "HOROVOD_FUSION_THRESHOLD": str(round((64 << 20) / arguments.scale)),
        }
        started = fabric.launch(command, ranks // hosts, variables, stdout=sys.stderr)
        status = wait_all(started, arguments.timeout)
        if status != 0:
            raise SystemExit(f"{ranks} ranks with {' '.join(options)}: a rank failed with {status}")
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def rows(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    made = []
    ideal = arguments.batch_size / (arguments.emulate_compute / 1e3)  # of a rank, images a second
    for ranks in arguments.ranks:
        hosts = max(1, ranks // arguments.per_host)
        taken: dict[str, list[float]] = {name: [] for name in COLUMNS}
        for turn in range(arguments.turns):
            names = list(COLUMNS)
            for name in names if turn % 2 == 0 else reversed(names):
                print(f"{ranks} ranks, {COLUMNS[name][0]}", file=sys.stderr, flush=True)
                found = measure(arguments, hosts, ranks, COLUMNS[name][1])
                taken[name].append(ranks * statistics.median(found["per_second"]))
        ring = ranks * arguments.batch_size / ring_step(arguments, hosts, ranks)
        speeds = {"ring": ring, **{name: statistics.median(taken[name]) for name in COLUMNS}}
        scaling = {name: speed / (ranks * ideal) for name, speed in speeds.items()}
        made.append(
            {"ranks": ranks, "hosts": hosts, "speeds": speeds, "scaling": scaling, "turns": taken}
        )
    return made


def show(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    scale = f", all sizes 1/{arguments.scale:g}" if arguments.scale > 1 else ""
    table = Table(
        title=f"{arguments.model}, images/s and share of linear, {arguments.rate} a host{scale}; "
        f"TCP {result['machine']['tcp']}"
    )
    titles = {"ring": "a ring at wire speed, TCP", **{name: COLUMNS[name][0] for name in COLUMNS}}
    for heading in ("ranks", "hosts", *titles.values()):
        table.add_column(heading, justify="right")
    for row in result["rows"]:
        cells = [f"{row['speeds'][name]:.0f}  {row['scaling'][name]:.1%}" for name in titles]
        table.add_row(str(row["ranks"]), str(row["hosts"]), *cells)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=list(MODELS)[:4], default="vgg16")
    parser.add_argument("--ranks", default="1,8,16", help="of each row")
    parser.add_argument("--per-host", type=int, default=8, help="ranks of a host, at most")
    parser.add_argument("--rate", default="25gbit", help="of a host's cable, before --scale")
    parser.add_argument("--scale", type=float, default=25.0, help="gradients and rate are smaller")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--emulate-compute", type=float, default=518.0, help="ms a step, of a V100")
    parser.add_argument("--warm-up", type=int, default=5, help="steps that do not count")
    parser.add_argument("--steps", type=int, default=4, help="an iteration")
    parser.add_argument("--iters", type=int, default=5)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds of one measurement")
    parser.add_argument("--json", type=Path, help="write every figure here")
    arguments = parser.parse_args()
    arguments.ranks = [int(text) for text in arguments.ranks.split(",")]
    for ranks in arguments.ranks:
        hosts = max(1, ranks // arguments.per_host)
        if ranks < 1 or ranks % hosts:
            parser.error(f"--ranks {ranks} do not divide over {hosts} hosts")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    try:
        result = {"machine": machine(), "rows": rows(arguments)}
    except FabricUnavailable as reason:
        raise SystemExit(f"no emulated hosts here: {reason}") from None
    show(result, arguments)
    save(result, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
