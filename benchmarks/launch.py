"""Starts the ranks of a benchmark, here or on emulated hosts, and brings back one result.

A benchmark file is run by the user, and again by launch() below once for each rank. In a rank,
BENCHMARK_RESULT names the file into which rank 0 writes its result as JSON.

Rank r is bound to the (r mod cores)-th core, whatever the backend, here and on emulated hosts.
Otherwise the scheduler's placement would decide what is measured. `--unbound` leaves ranks unbound.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fabric import Fabric, FabricUnavailable, wait_all

RESULT = "BENCHMARK_RESULT"
# The row of one model.
Measure = Callable[[str, argparse.Namespace, dict[str, dist.ProcessGroup]], dict[str, Any]]
KINDS = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
]
# The framing of TCP over Ethernet, of each full frame at 1,500 bytes MTU.
TCP_FRAMING = 1514 / 1448


def is_rank() -> bool:
    """True in a process that launch() has started as a rank."""
    return RESULT in os.environ


def deliver(result: Any) -> None:
    """Called by rank 0: what launch() returns."""
    Path(os.environ[RESULT]).write_text(json.dumps(result))


def add_fabric_arguments(parser: argparse.ArgumentParser, ranks: int = 4) -> None:
    parser.add_argument("--hosts", type=int, default=1, help="1: this machine as it is")
    parser.add_argument("--ranks", type=int, default=ranks, help="over all hosts")
    parser.add_argument("--rate", help="of each host's cable, like 1gbit; default: unlimited")
    parser.add_argument("--loss", type=float, default=0.0, help="probability of losing a packet")
    parser.add_argument("--tcp", help="congestion control for gloo; default: the machine's")
    parser.add_argument(
        "--unbound", action="store_true", help="leave it to the scheduler where ranks run"
    )
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for the whole run")
    parser.add_argument("--json", type=Path, help="write every figure here")


def bind(rank: int) -> int:
    """Binds this process, with all its threads, to one core of those it may use; returns it."""
    cores = sorted(os.sched_getaffinity(0))
    core = cores[rank % len(cores)]
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {core})
    return core


def make_groups(names: Sequence[str]) -> dict[str, dist.ProcessGroup]:
    """In a rank: one group of all ranks per backend, the first of them the default group."""
    if "taco" in names:
        import taco_torch  # noqa: F401  registers the backend
    dist.init_process_group(names[0])
    groups = {names[0]: dist.group.WORLD}
    for name in names[1:]:
        groups[name] = dist.new_group(backend=name)
    return groups


def run(
    script: str,
    arguments: argparse.Namespace,
    rank_main: Callable[[argparse.Namespace], None],
    show: Callable[[Any, argparse.Namespace], None],
    **environment: str,
) -> Any:
    """The rest of main() once the arguments are known: a rank does its part and None comes
    back; the user's process starts the ranks, shows and saves rank 0's result, and returns it."""
    if is_rank():
        if not arguments.unbound:
            bind(int(os.environ["RANK"]))
        rank_main(arguments)
        return None
    result = launch(script, arguments, **environment)
    show(result, arguments)
    save(result, arguments.json)
    return result


def save(result: Any, path: Path | None) -> None:
    """Writes figures to the file that --json names, and makes its folder; None: nowhere."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")


def launch(script: str, arguments: argparse.Namespace, **environment: str) -> Any:
    """Runs `script` with this process's own arguments once a rank; rank 0's result."""
    if arguments.ranks % arguments.hosts:
        raise SystemExit(f"{arguments.ranks} ranks do not divide over {arguments.hosts} hosts")
    command = [sys.executable, script, *sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        variables = {RESULT: str(result), "TACO_LOG": "warning", **environment}
        if arguments.hosts == 1:
            status = _on_this_machine(command, arguments, variables)
        else:
            status = _on_emulated_hosts(command, arguments, variables)
        if status != 0:
            raise SystemExit(f"a rank failed with status {status}")
        return json.loads(result.read_text())


def _on_emulated_hosts(
    command: Sequence[str], arguments: argparse.Namespace, variables: dict[str, str]
) -> int:
    try:
        with Fabric(
            hosts=arguments.hosts, rate=arguments.rate, loss=arguments.loss, tcp=arguments.tcp
        ) as fabric:
            per_host = arguments.ranks // arguments.hosts
            variables["BENCHMARK_TCP"] = fabric.congestion_control()
            ranks = fabric.launch(command, ranks_per_host=per_host, environment=variables)
            return wait_all(ranks, arguments.timeout)
    except FabricUnavailable as reason:
        raise SystemExit(f"no emulated hosts here: {reason}") from None


def _on_this_machine(
    command: Sequence[str], arguments: argparse.Namespace, variables: Mapping[str, str]
) -> int:
    if arguments.rate or arguments.loss:
        raise SystemExit("--rate and --loss need --hosts 2 or more")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(arguments.ranks):
        placed = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(arguments.ranks),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(arguments.ranks),
            "OMP_NUM_THREADS": "1",
        }
        ranks.append(subprocess.Popen(command, env={**os.environ, **placed, **variables}))
    return wait_all(ranks, arguments.timeout)


def measure_models(arguments: argparse.Namespace, measure: Measure) -> None:
    """In a rank: a row for each of `--models`, over groups of all `--backends`."""
    torch.set_num_threads(1)
    groups = make_groups(arguments.backends.split(","))
    rows = []
    for model in arguments.models.split(","):
        if dist.get_rank() == 0:
            print(f"{model} ...", file=sys.stderr, flush=True)
        rows.append(measure(model, arguments, groups))
    if dist.get_rank() == 0:
        deliver({"machine": machine(), "rows": rows})
    dist.barrier()
    dist.destroy_process_group()


def where(arguments: argparse.Namespace) -> str:
    """Ranks, hosts and rate, for the title of a table."""
    hosts = "one host" if arguments.hosts == 1 else f"{arguments.hosts} hosts"
    return f"{arguments.ranks} ranks, {hosts}, {arguments.rate or 'no rate limit'}"


def machine() -> dict[str, Any]:
    """The machine that figures were measured on, for the head of every report."""
    model = platform.processor()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":")[1].strip()
                break
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "tcp": os.environ.get("BENCHMARK_TCP")
        or (control.read_text().strip() if control.exists() else "unknown"),
        "load": os.getloadavg()[0],
    }


def parse_bytes(text: str) -> int:
    """Bytes of "8", "1K", "32M" (binary units)."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    text = text.strip().upper().removesuffix("IB").removesuffix("B")
    if text and text[-1] in units:
        return int(float(text[:-1]) * units[text[-1]])
    return int(text)


def show_bytes(count: float) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:g} {unit}"
    return f"{count:g} B"


def show_time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
