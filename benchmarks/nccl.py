"""NCCL over the plugin beside NCCL over its own sockets: two ranks on one GPU (or two), the data
checked, the times taken.

    python benchmarks/nccl.py --turns 3 --json out/nccl.json
    python benchmarks/nccl.py --places hosts "hosts, 10gbit" --kinds send --protocols default

A place is "loopback", or "hosts": two emulated hosts, with "two links" and a rate after it if
wanted. Each turn runs every candidate once, by nccl_pair.py, in an order that is reversed from turn
to turn. What cannot be measured is named, and the rest goes on. Ranks that share a GPU are threads
of one process; `--ranks processes` is for one with a GPU each, or where MPS runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fabric import Fabric, FabricUnavailable
from pairs import Row, medians, ratio

sys.path.append(str(Path(__file__).parents[1] / "tests/support"))
from nccl_files import find_cuda_runtime, find_nccls, find_plugin

MIB = 1 << 20
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "exchange")
SIZES = (8, 64 << 10, MIB, 4 * MIB, 64 * MIB)
CHECKED_SIZES = (8, 1000, 64 << 10, MIB + 24, 16 * MIB)
PLACES = ("loopback", "hosts", "hosts, two links", "hosts, 25gbit", "hosts, 10gbit")
PROTOCOLS = ("Simple", "default")
SOCKETS = {"NCCL_NET": "Socket", "NCCL_NET_PLUGIN": "none"}
CANDIDATES: dict[str, dict[str, str]] = {
    "sockets": SOCKETS,
    "sockets, 4 x 2": {**SOCKETS, "NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "2"},
    "HARP": {"NCCL_NET": "HARP"},
    "HARP, udp": {"NCCL_NET": "HARP", "TACO_TRANSPORT": "udp"},
}
DEFAULT = ("sockets", "sockets, 4 x 2", "HARP")
PATIENCE_S = 120.0


@contextlib.contextmanager
def host_paths(place: str) -> Iterator[list[str] | None]:
    """The network namespaces of the two ranks; None: this process's own for both."""
    if place == "loopback":
        yield None
        return
    rate = re.search(r"[0-9.]+[gm]bit", place)
    links = 2 if "two links" in place else 1
    with Fabric(hosts=2, rate=rate[0] if rate else None, links=links) as fabric:
        yield [fabric.namespace(host) for host in range(2)]


class Bench:
    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.arguments = arguments
        self.folder = folder
        self.failures: list[str] = []
        self.runs: list[dict[str, Any]] = []
        self.nccl = self.copies(arguments.nccl)
        self.plugin = self.copies(arguments.plugin)

    def copies(self, library: Path) -> list[str]:
        """One for each rank: the loader takes two files for two libraries."""
        made = []
        for rank in range(2):
            (self.folder / str(rank)).mkdir(exist_ok=True)
            made.append(str(shutil.copy(library, self.folder / str(rank) / library.name)))
        return made

    def environment(self, place: str, candidate: str, protocol: str, log: Path) -> dict[str, str]:
        variables = {
            "NCCL_SOCKET_IFNAME": "lo" if place == "loopback" else "eth",
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_FILE": str(log),
            "NCCL_RAS_ENABLE": "0",
            "NCCL_MNNVL_ENABLE": "0",
            "NCCL_RUNTIME_CONNECT": "0",  # nothing is set up while a kernel of the peer waits
            "CUDA_MODULE_LOADING": "EAGER",  # likewise
            "OPENBLAS_NUM_THREADS": "1",
            **CANDIDATES[candidate],
        }
        if place != "loopback" and self.arguments.ranks == "threads":
            # HARP takes threads of a process for ranks of one host, wherever they stand.
            variables["TACO_TRANSPORT"] = "udp"
            variables["TACO_IFNAME"] = "eth0,eth1" if "two links" in place else "eth0"
        if protocol != "default":
            variables["NCCL_PROTO"] = protocol
        return {**os.environ, **variables}

    def run(self, place: str, paths: list[str] | None, candidate: str, protocol: str) -> Row | None:
        """Microseconds by kind and size; None when it failed."""
        arguments = self.arguments
        options = {
            "nccl": self.nccl,
            "plugin": self.plugin if candidate.startswith("HARP") else None,
            "cuda_runtime": str(arguments.cuda_runtime),
            "namespaces": paths,
            "kinds": arguments.kinds,
            "sizes": arguments.sizes,
            "checked_sizes": arguments.checked_sizes,
            "checks": arguments.checks,
            "repeats": arguments.repeats,
            "slice_s": arguments.slice_ms / 1e3,
        }
        log = self.folder / "nccl.log"
        log.unlink(missing_ok=True)
        environment = self.environment(place, candidate, protocol, log)
        named = f"{place}, {candidate}, {protocol}"
        try:
            found = self.outcome(options, environment)
        except (TimeoutError, RuntimeError) as error:
            return self.fail(named, str(error), log)
        text = log.read_text(errors="replace") if log.exists() else ""
        network = re.findall(r"Using network (\S+)", text)
        found.update(place=place, candidate=candidate, protocol=protocol, network=network[-1:])
        self.runs.append(found)
        if found["errors"]:
            return self.fail(named, found["errors"][0], log)
        if found["wrong"]:
            self.fail(named, "WRONG DATA: " + "; ".join(found["wrong"]), None)
        sent = found["sent"]
        print(
            f"  {named}: network {'/'.join(network[-1:])}, connected in {found['connect_s']:.2f} s,"
            f" {found['checks']} results checked, {len(found['wrong'])} kinds of them wrong, "
            f"sent {sent['tcp']} TCP segments and {sent['udp']} UDP datagrams",
            flush=True,
        )
        return {f"{row['kind']} {row['bytes']}": row["s"] * 1e6 for row in found["rows"]}

    def outcome(self, options: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
        """As rank 0 found it, with the errors and the wrong data of both."""
        ends = socket.socketpair()
        threads = self.arguments.ranks == "threads"
        processes = []
        for ranks in [[0, 1]] if threads else [[0], [1]]:
            descriptor = ends[ranks[0]].fileno()
            own = {**options, "ranks": ranks, "descriptor": descriptor}
            processes.append(
                subprocess.Popen(
                    [
                        sys.executable,
                        str(Path(__file__).with_name("nccl_pair.py")),
                        json.dumps(own),
                    ],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    pass_fds=[descriptor],
                )
            )
        for end in ends:
            end.close()
        deadline = time.monotonic() + PATIENCE_S
        try:
            said = [one.communicate(timeout=deadline - time.monotonic())[0] for one in processes]
        except (subprocess.TimeoutExpired, ValueError):
            raise TimeoutError(f"not done after {PATIENCE_S:g} s") from None
        finally:
            for process in processes:
                process.kill()
                process.wait()
        try:
            found = [json.loads(text.splitlines()[-1]) for text in said]
        except (IndexError, ValueError):
            raise RuntimeError("\n".join(said)) from None
        for name in ("errors", "wrong"):
            found[0][name] = [text for each in found for text in each[name]]
        return dict(found[0])

    def fail(self, named: str, why: str, log: Path | None) -> None:
        end = log.read_text(errors="replace")[-1500:] if log and log.exists() else ""
        self.failures.append(f"{named}: {why.strip()[-1500:]}")
        print(f"  FAILED {self.failures[-1]}\n{end}", flush=True)

    def compare(self, place: str, protocol: str) -> dict[str, list[Row | None]]:
        rows: dict[str, list[Row | None]] = {name: [] for name in self.arguments.candidates}
        with host_paths(place) as paths:
            for turn in range(self.arguments.turns):
                for name in list(rows)[:: 1 if turn % 2 == 0 else -1]:
                    rows[name].append(self.run(place, paths, name, protocol))
        return rows


def show_bytes(size: int) -> str:
    for unit, name in ((MIB, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def table(title: str, rows: Mapping[str, list[Row | None]]) -> list[str]:
    """Times of each candidate, and how many times as fast HARP is as the better of the others."""
    ran = {name: [row for row in found if row] for name, found in rows.items()}
    ran = {name: found for name, found in ran.items() if found}
    lines = [f"\n{title}", "| | " + " | ".join(ran) + " | HARP: times as fast | middle half |"]
    lines.append("|---|" + "--:|" * (len(ran) + 2))
    if not ran:
        return [*lines, "nothing ran"]
    others = {name: medians(found) for name, found in ran.items() if not name.startswith("HARP")}
    for key in next(iter(ran.values()))[0]:
        kind, size = key.split()
        cells = []
        for found in ran.values():
            us = medians(found)[key]
            cells.append(f"{us:.0f} us, {int(size) / us / 1e3:.2f} GB/s")
        compared = ["", ""]
        if "HARP" in ran and others:
            best = min(others, key=lambda name: others[name][key])
            count = min(len(ran[best]), len(ran["HARP"]))
            middle, low, high = ratio(ran[best][:count], ran["HARP"][:count], key)
            compared = [f"{middle:.2f}", f"{low:.2f}-{high:.2f}"]
        lines.append(f"| {kind} {show_bytes(int(size))} | {' | '.join([*cells, *compared])} |")
    return lines


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--places", nargs="+", default=PLACES)
    parser.add_argument("--candidates", nargs="+", default=DEFAULT, choices=CANDIDATES)
    parser.add_argument(
        "--protocols", nargs="+", default=PROTOCOLS, help="of NCCL_PROTO, or default"
    )
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES, help="bytes, to be timed")
    parser.add_argument("--checked-sizes", nargs="*", type=int, default=CHECKED_SIZES)
    parser.add_argument("--checks", type=int, default=20, help="rounds of different data")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5, help="timed slices a turn: the median")
    parser.add_argument("--slice-ms", type=float, default=30.0)
    parser.add_argument("--ranks", choices=("threads", "processes"), default="threads")
    parser.add_argument("--nccl", type=Path, default=next(iter(find_nccls()), None))
    parser.add_argument("--plugin", type=Path, default=find_plugin())
    parser.add_argument("--cuda-runtime", type=Path, default=find_cuda_runtime())
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    for name in ("nccl", "plugin", "cuda_runtime"):
        if getattr(arguments, name) is None:
            parser.error(f"none was found: give --{name.replace('_', '-')}")
    return arguments


def main() -> int:
    arguments = parse()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments, Path(folder))
        for place in arguments.places:
            for protocol in arguments.protocols:
                title = f"{place}, NCCL_PROTO {protocol}, {arguments.turns} turns"
                try:
                    rows = bench.compare(place, protocol)
                except FabricUnavailable as reason:
                    bench.fail(title, str(reason), None)
                    continue
                print("\n".join(table(title, rows)), flush=True)
                results.append({"place": place, "protocol": protocol, "us": rows})
                if arguments.json:
                    kept = {"tables": results, "runs": bench.runs, "failures": bench.failures}
                    arguments.json.write_text(json.dumps(kept))
    for failure in bench.failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
