"""How HARP shares a link: with TCP that fills the queue, and with HARP from many hosts at once.

    python benchmarks/sharing.py                 beside one cubic and one bbr flow, then incast
    python benchmarks/sharing.py --only incast

Hosts are network namespaces behind one switch; every cable carries 1 Gbit/s (`--rate`), and a
host's queue at the switch holds so many ms of it (`--queues`). Two hosts send to a third: one a
TCP stream, one HARP messages of 1 MiB (harp-perf), either order of start. With incast, so many
processes of HARP on several hosts send to as many on one, at once or beginning in turn. A fourth
host measures the queue with pings through it.
Needs root, and no torch.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from fabric import Fabric, FabricUnavailable
from pairs import PERF, Row, medians, require

ON_THE_WIRE = 1500 / 1448  # of a full packet of HARP's or TCP's, beside what it carries, about
RECEIVER, WATCHER = 2, 3
RENDEZVOUS_S = 8.0  # for all to start and connect

# Prints how many bytes have come, each 20 ms: time and sum.
TCP_RECEIVER = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 5001))
print("ready", flush=True)
connection, _ = listener.accept()
buffer, total, told = bytearray(1 << 20), 0, 0.0
while count := connection.recv_into(buffer):
    total += count
    now = time.monotonic()
    if now - told > 0.02:
        print(now, total, flush=True)
        told = now
"""
TCP_SENDER = """
import socket, sys
link = socket.socket()
link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, sys.argv[2].encode())
link.connect((sys.argv[1], 5001))
block = bytes(1 << 20)
while True:
    link.sendall(block)
"""
ECHO = """
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 5002))
print("ready", flush=True)
while True:
    data, address = server.recvfrom(64)
    server.sendto(data, address)
"""
# Prints round trips in ms.
PINGS = """
import socket, sys, time
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.connect((sys.argv[1], 5002))
link.settimeout(0.3)
while True:
    start = time.monotonic()
    link.send(b"x" * 64)
    try:
        link.recv(64)
        print(start, 1e3 * (time.monotonic() - start), flush=True)
    except TimeoutError:
        pass
    time.sleep(0.004)
"""


class Hosts:
    """Who sends, who receives, and the switch's port between them."""

    def __init__(self, fabric: Fabric, perf: Path) -> None:
        assert fabric.bits_per_second is not None
        self.count = fabric.hosts
        self.bytes_per_second = fabric.bits_per_second / 8
        self._fabric = fabric
        self._perf = perf

    def address(self, host: int) -> str:
        return self._fabric.address(host)

    def set_queue(self, milliseconds: float) -> None:
        """The port to the receiver has this queue; its bucket is as small as the timer allows."""
        bucket = f"rate {int(8 * self.bytes_per_second)}bit burst 64kb latency {milliseconds}ms"
        command = f"tc qdisc replace dev p0h{RECEIVER} root tbf {bucket}"
        self._fabric.output(-1, ["sh", "-c", command])

    def read_port(self) -> tuple[float, int, int]:
        """When it was read, what the port has carried, and what it has dropped."""
        text = self._fabric.output(-1, ["tc", "-s", "qdisc", "show", "dev", f"p0h{RECEIVER}"])
        found = re.search(r"Sent (\d+) bytes .*dropped (\d+)", text)
        assert found is not None, text
        return time.monotonic(), int(found[1]), int(found[2])

    def python(
        self, host: int, text: str, *arguments: str, stdout: int | IO[str] = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", text, *arguments]
        return self._fabric.popen(host, command, stdout=stdout, text=True)

    def harp(
        self, host: int, rank: int, files: str, seconds: float, start: float = 0.0
    ) -> subprocess.Popen[str]:
        command = [str(self._perf), "--transport", "udp", "--rank", str(rank), "--files", files]
        command += ["--rounds", "100", "--bytes", str(1 << 20), "--seconds", str(seconds)]
        # Without it each address of an interface, of either IP version, would be a path of its own.
        command += ["--start", str(start), "--master", self.address(RECEIVER)]
        return self._fabric.popen(host, command, stdout=subprocess.PIPE, text=True)


def start_tcp(hosts: Hosts, control: str) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    receiver = hosts.python(RECEIVER, TCP_RECEIVER, hosts.address(RECEIVER))
    assert receiver.stdout is not None
    receiver.stdout.readline()
    return receiver, hosts.python(1, TCP_SENDER, hosts.address(RECEIVER), control)


def stop(process: subprocess.Popen[str]) -> str:
    process.kill()
    return process.communicate()[0]


def rate_between(text: str, start: float, end: float) -> float:
    """Bytes a second, of lines with a time and a sum."""
    rows = [tuple(map(float, line.split())) for line in text.splitlines() if line.count(" ") == 1]
    inside = [row for row in rows if len(row) == 2 and start <= row[0] <= end]
    if len(inside) < 2:
        return 0.0
    return (inside[-1][1] - inside[0][1]) / (end - start)


def beside_tcp(hosts: Hosts, control: str, harp_first: bool, seconds: float) -> Row:
    """Shares of the link, once both are at it for a second."""
    with tempfile.TemporaryDirectory() as folder:
        total = seconds + 3 + (1 if harp_first else 0)

        def start_harp() -> list[subprocess.Popen[str]]:
            ends = ((0, 0), (RECEIVER, 1))
            return [hosts.harp(host, rank, f"{folder}/meet", total) for host, rank in ends]

        processes = start_harp() if harp_first else []
        if harp_first:
            time.sleep(1)
        receiver, sender = start_tcp(hosts, control)
        if not harp_first:
            time.sleep(1)
            processes = start_harp()
        time.sleep(1.5)
        start, carried, dropped = hosts.read_port()
        time.sleep(seconds)
        end, carried_then, dropped_then = hosts.read_port()
        running = all(process.poll() is None for process in processes)
        sender.kill()
        tcp = rate_between(stop(receiver), start, end)
        sender.wait()
        outputs = [process.communicate(timeout=30)[0] for process in processes]
        if not running or any(process.returncode != 0 for process in processes):
            said = "\n".join(outputs)
            raise SystemExit(f"harp-perf failed, or ended before it was measured:\n{said}")
    payload = (carried_then - carried) / (end - start) / ON_THE_WIRE
    full = hosts.bytes_per_second / ON_THE_WIRE
    return {
        "harp": (payload - tcp) / full,
        "tcp": tcp / full,
        "drops": (dropped_then - dropped) / (end - start),
    }


def incast(hosts: Hosts, senders: int, seconds: float, together: bool) -> Row:
    """``together``: all are connected before any sends, as in training; else one begins after the
    other, and meets the queue of those before it."""
    echo = hosts.python(RECEIVER, ECHO, hosts.address(RECEIVER))
    assert echo.stdout is not None
    echo.stdout.readline()
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "pings"  # more than a pipe holds
        with said.open("w") as file:
            pings = hosts.python(WATCHER, PINGS, hosts.address(RECEIVER), stdout=file)
        time.sleep(0.5)
        begin = time.monotonic() + (RENDEZVOUS_S if together else 0.0)
        ends = [host for host in range(hosts.count) if host not in (RECEIVER, WATCHER)]
        receivers = []
        for index in range(senders):
            files = f"{folder}/{index}"
            receivers.append(hosts.harp(RECEIVER, 1, files, seconds, begin))
            hosts.harp(ends[index % len(ends)], 0, files, seconds, begin)
        # From half a second after all are at it: a second is more than their rendezvous takes.
        time.sleep(max(1.0, begin - time.monotonic()) + 0.5)
        start, carried, dropped = hosts.read_port()
        time.sleep(max(0.5, seconds - 2.0))
        end, carried_then, dropped_then = hosts.read_port()
        stop(pings)
        stop(echo)
        text = said.read_text()
        rates = []
        for process in receivers:
            output = process.communicate()[0]
            found = re.search(r"received (\d+) B: .*= ([\d.]+) Gbit/s", output)
            if found is None:
                raise SystemExit(f"harp-perf did not say how fast it was:\n{output}")
            rates.append(float(found[2]))
    rows = [tuple(map(float, line.split())) for line in text.splitlines() if line.count(" ") == 1]
    base = min(delay for when, delay in rows if when < begin)
    queue = sorted(delay - base for when, delay in rows if start <= when <= end)
    return {
        "share": (carried_then - carried) / (end - start) / hosts.bytes_per_second,
        "jain": sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates)),
        "queue_p50": statistics.median(queue),
        "queue_p99": queue[int(0.99 * (len(queue) - 1))],
        "drops": (dropped_then - dropped) / (end - start),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--perf", type=Path, default=PERF, help="harp-perf, as built")
    parser.add_argument("--only", choices=("tcp", "incast"), help="one part of it")
    parser.add_argument("--queues", type=float, nargs="+", default=[20, 5, 1], help="in ms")
    parser.add_argument("--controls", nargs="+", default=["cubic", "bbr"], help="TCP's")
    parser.add_argument("--rate", default="1gbit", help="of the switch's ports")
    parser.add_argument("--senders", type=int, default=16, help="of incast")
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement")
    parser.add_argument("--repeat", type=int, default=3, help="medians of so many")
    parser.add_argument("--json", type=Path, help="write the medians there")
    arguments = parser.parse_args()
    perf = require(arguments.perf, "harp-perf")
    result: dict[str, Row] = {}

    def note(name: str, rows: list[Row]) -> None:
        result[name] = medians(rows)
        figures = "  ".join(f"{key} {value:8.3f}" for key, value in result[name].items())
        print(f"{name:28s} {figures}", flush=True)

    try:
        with Fabric(hosts=6, rate=arguments.rate) as fabric:
            hosts = Hosts(fabric, perf)
            for queue in arguments.queues:
                hosts.set_queue(queue)
                for control in arguments.controls if arguments.only != "incast" else ():
                    for harp_first in (True, False):
                        order = "HARP first" if harp_first else f"{control} first"
                        rows = [
                            beside_tcp(hosts, control, harp_first, arguments.seconds)
                            for _ in range(arguments.repeat)
                        ]
                        note(f"{queue:g} ms {control}, {order}", rows)
                if arguments.only != "tcp":
                    for together in (True, False):
                        rows = [
                            incast(hosts, arguments.senders, arguments.seconds + 2, together)
                            for _ in range(arguments.repeat)
                        ]
                        how = "at once" if together else "in turn"
                        note(f"{queue:g} ms incast of {arguments.senders} {how}", rows)
    except FabricUnavailable as error:
        sys.exit(f"no emulated hosts here: {error}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
