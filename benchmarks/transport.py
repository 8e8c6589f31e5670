"""torch's one-sided transports beside each other: writes between two processes, one on each of two
emulated hosts.

    python benchmarks/transport.py --nixl FOLDER --turns 9
    python benchmarks/transport.py --candidates "harp, auth" "harp, encrypt" TCP

It needs torch 2.15. FOLDER is where NIXL's Python package lies, when that is not installed beside
torch; its UCX is told to use TCP. "TCP" is a bare connection of the same two processes, over which
the same bytes go, each write answered by a byte: what all of them could have from TCP. Each turn
runs every candidate once, in new processes bound to a core each. `--deaths 3` shows instead what
becomes of a write whose owner is killed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from fabric import MASTER_PORT, Fabric, FabricUnavailable
from pairs import Pair, Row, by_turns, figures, medians, ratio

HARP = {f"harp, {level}": {"TACO_HARP_SECURITY": level} for level in ("auth", "none", "encrypt")}
NIXL = {"UCX_TLS": "tcp", "UCX_LOG_LEVEL": "error", "NIXL_LOG_LEVEL": "error"}
PATIENCE_S = 15.0  # of a write to an owner that is killed
FOUND = {
    "gbit": r"median write ([\d.]+) Gbit/s",
    "ms": r"median write .*, ([\d.]+) ms",
    "sender": r"writer: ([\d.]+) s of processor time a GB",
    "receiver": r"owner: ([\d.]+) s of processor time a GB",
}


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def over_transport(backend: str, rank: int, address: str, size: int) -> None:
    """Rank 0 writes into what rank 1 has registered."""
    import torch
    import torch.distributed as dist
    from torch.distributed._transport import new_transport_rank

    store = dist.TCPStore(address, MASTER_PORT, 2, rank == 0, wait_for_workers=False)
    transport = new_transport_rank(backend, "cpu", store=store, rank=rank, peer_rank=1 - rank)
    tensor = torch.full((size,), 1 + rank, dtype=torch.uint8)
    memory = transport.register_memory(tensor)
    if rank == 1:
        descriptor = memory.to_remote_buffer()
        store.set("class", f"{type(descriptor).__module__}:{type(descriptor).__name__}")
        store.set("memory", descriptor.serialize())
        if ARGUMENTS.deaths:
            store.wait(["die"])
            store.set("died", str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        store.wait(["warm"])
        begun = processor_seconds()
        store.wait(["done"])
        report_owner(processor_seconds() - begun, size, int(store.get("done")))
        assert bool((tensor == 1).all()), "not all bytes have arrived"
        store.set("left", "")
        transport.close()
        return
    store.wait(["memory"])
    module, name = store.get("class").decode().split(":")
    remote = getattr(__import__(module, fromlist=[name]), name).deserialize(store.get("memory"))
    view = memory.to_view()
    if ARGUMENTS.deaths:
        until_death(lambda: transport.write(view, remote, timeout=PATIENCE_S), store)

    def end(rounds: int) -> None:
        store.set("done", str(rounds))
        store.wait(["left"])
        transport.close()

    measure(lambda: transport.write(view, remote), partial(store.set, "warm", ""), end, size)


def until_death(write: Callable[[], object], store: Any) -> NoReturn:
    """Writes until that fails, and leaves as it is: what a dead peer has left may never end."""
    for _ in range(ARGUMENTS.warm_up):
        write()
    store.set("die", "")
    try:
        while True:
            write()
    except Exception as error:
        after = time.monotonic() - float(store.get("died"))
        print(f"{after:.3f} s after the death: {type(error).__name__}: {error}", flush=True)
        os._exit(0)


def over_tcp(rank: int, address: str, size: int) -> None:
    data = bytearray(size)
    if rank == 1:
        for _ in range(600):  # until rank 0 listens
            try:
                connection = socket.create_connection((address, MASTER_PORT))
                break
            except OSError:
                time.sleep(0.05)
        rounds, begun = 0, 0.0
        while connection.recv_into(data, 1) == 1 and data[0] != 2:
            if data[0] == 1:  # all from here on counts
                rounds, begun = 0, processor_seconds()
                continue
            left = memoryview(data)
            while left:
                left = left[connection.recv_into(left) :]
            connection.sendall(b"d")
            rounds += 1
        report_owner(processor_seconds() - begun, size, rounds)
        return
    listener = socket.create_server((address, MASTER_PORT))
    connection, _ = listener.accept()

    def write() -> None:
        connection.sendall(b"\0")
        connection.sendall(data)
        assert connection.recv(1) == b"d"

    measure(write, lambda: connection.sendall(b"\1"), lambda _: connection.sendall(b"\2"), size)


def report_owner(seconds: float, size: int, rounds: int) -> None:
    print(f"owner: {seconds / (size * rounds) * 1e9:.4f} s of processor time a GB")


def measure(
    write: Callable[[], object],
    warm: Callable[[], object],
    end: Callable[[int], object],
    size: int,
) -> None:
    for _ in range(ARGUMENTS.warm_up):
        write()
    warm()
    times = []
    begun = processor_seconds()
    for _ in range(ARGUMENTS.writes):
        start = time.perf_counter()
        write()
        times.append(time.perf_counter() - start)
    used = processor_seconds() - begun
    end(len(times))
    median = statistics.median(times)
    print(f"median write {size * 8e-9 / median:.3f} Gbit/s, {median * 1e3:.3f} ms")
    print(f"writer: {used / (size * len(times)) * 1e9:.4f} s of processor time a GB")


def how(name: str, address: str) -> tuple[list[str], dict[str, str]]:
    """The command of a candidate's processes without the rank, and the variables that it adds."""
    backend = name.split(",")[0]
    command = [sys.executable, __file__, "--backend", backend, "--address", address]
    for option in ("bytes", "writes", "warm_up", "deaths"):
        command += [f"--{option.replace('_', '-')}", str(getattr(ARGUMENTS, option))]
    environment = {"TACO_LOG": "error", "MASTER_ADDR": address, **HARP.get(name, {})}
    if backend == "nixl":
        environment |= NIXL
        if ARGUMENTS.nixl:
            environment["PYTHONPATH"] = str(ARGUMENTS.nixl)
    return command, environment


def candidate(pair: Pair, name: str) -> Row:
    command, environment = how(name, pair.address(0))
    commands = [[*command, "--rank", str(rank)] for rank in (0, 1)]
    return figures(pair.run(commands, environment), FOUND)


def show_deaths(fabric: Fabric) -> None:
    """The owner dies by kill -9 in the middle of a write."""
    for name in ARGUMENTS.candidates:
        for _ in range(ARGUMENTS.deaths):
            command, environment = how(name, fabric.address(0))
            ranks = [
                fabric.popen(
                    rank,
                    [*command, "--rank", str(rank)],
                    env=os.environ | environment,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for rank in (0, 1)
            ]
            try:
                said = ranks[0].communicate(timeout=3 * PATIENCE_S)[0].strip()
            except subprocess.TimeoutExpired:
                said = f"no error within {3 * PATIENCE_S:.0f} s"
            for rank in ranks:
                rank.kill()
                rank.wait()
            print(f"{name}: {said or 'it ended by itself: ' + str(ranks[0].returncode)}")


def show(rows: dict[str, list[Row]]) -> None:
    others = [name for name in ("nixl", "TCP") if name in rows]
    size = f"{ARGUMENTS.bytes / 2**20:g} MiB"
    heads = " | ".join(f"of {name} (middle half)" for name in others)
    print(f"| {size} writes | median | Gbit/s | CPU s a GB, writer + owner | {heads} |")
    print("|---|--:|--:|--:|" + "--:|" * len(others))
    for name, of_turns in rows.items():
        row = medians(of_turns)
        beside = [
            "{:.2f} ({:.2f}, {:.2f})".format(*ratio(of_turns, rows[o], "gbit")) for o in others
        ]
        print(
            f"| {name} | {row['ms']:.2f} ms | {row['gbit']:.1f} | {row['sender']:.3f} + "
            f"{row['receiver']:.3f} | {' | '.join(beside)} |"
        )


def main() -> None:
    if ARGUMENTS.rank is not None:
        if ARGUMENTS.backend == "TCP":
            over_tcp(ARGUMENTS.rank, ARGUMENTS.address, ARGUMENTS.bytes)
        else:
            over_transport(ARGUMENTS.backend, ARGUMENTS.rank, ARGUMENTS.address, ARGUMENTS.bytes)
        return
    try:
        with Fabric(hosts=2, links=ARGUMENTS.links, rate=ARGUMENTS.rate) as fabric:
            if ARGUMENTS.deaths:
                show_deaths(fabric)
                return
            pair = Pair(fabric)
            runs = {name: partial(candidate, pair, name) for name in ARGUMENTS.candidates}
            rows = by_turns(runs, ARGUMENTS.turns)
    except FabricUnavailable as reason:
        raise SystemExit(f"no emulated hosts here: {reason}") from None
    show(rows)
    if ARGUMENTS.json:
        ARGUMENTS.json.write_text(json.dumps(rows, indent=1))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    known = [*HARP, "nixl", "TCP"]
    parser.add_argument("--candidates", nargs="+", choices=known, default=known)
    parser.add_argument("--nixl", type=Path, help="folder of NIXL's Python package")
    parser.add_argument("--bytes", type=int, default=32 << 20)
    parser.add_argument("--writes", type=int, default=40, help="of a candidate in a turn")
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--links", type=int, default=1, help="between the hosts")
    parser.add_argument("--rate", help="of each, e.g. 1gbit")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument(
        "--deaths", type=int, default=0, help="instead: kill the owner so many times, each"
    )
    parser.add_argument("--json", type=Path, help="write every figure here")
    # One of the two processes:
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--backend", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = parse()
    main()
