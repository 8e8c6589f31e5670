"""The cost of each level of security, and of floods by strangers, between two processes.

    python benchmarks/security.py                     none, auth and encrypt in turn
    python benchmarks/security.py --forged 100000     beside so many forged packets a second
    python benchmarks/security.py --icmp 100000       the same of ICMP about guessed ports (root)
    python benchmarks/security.py --connects 100000   connects by another user, to ranks that share
                                                      memory (root)

The processes talk over UDP on this host, each bound to a core of its own, without torch
(build/release/csrc/harp/harp-perf). Rounds of the candidates alternate; medians and their ratios
are shown, and for `encrypt` the processor time of its bytes beside that of `openssl speed`. A
core that sends a flood is busy with that wherever it goes, so the baseline is the same flood to a
port, or a socket, where nobody listens to it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pairs import BULK, PERF, Pair, Row, by_turns, figures, medians, require

LEVELS = ("none", "auth", "encrypt")
UDP_SEGMENT = 103  # Linux
SEGMENT_BYTES = 1424  # of a sealed segment over Ethernet
BURST = 40  # forged packets to a system call


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def forged_packets() -> list[bytes]:
    """Packets of the forms that get furthest without a session: sealed ones, and hellos with a
    good checksum. docs/wire.md has the layout."""
    source = random.Random(1)
    packets = []
    for index in range(BURST):
        body = source.randbytes(112)
        sealed = index % 2 == 0
        head = [0x23 if sealed else 0x24, 4 if sealed else 0, 0, 0, 0]
        rest = (source.getrandbits(56) if sealed else 0, index + 1, 0, len(body))
        packet = struct.pack("<BBBBIQIIQ", *head, *rest) + body
        if not sealed:
            packet = packet[:4] + struct.pack("<I", crc32c(packet)) + packet[8:]
        packets.append(packet)
    return packets


class Flood:
    """So many forged packets a second to a port of this host."""

    def __init__(self, port: int, rate: float) -> None:
        self.rate = 0.0  # as it was
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(port, rate))

    def _run(self, port: int, rate: float) -> None:
        packets = forged_packets()
        burst = b"".join(packets)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            out.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, len(packets[0]))
            sent, start = 0, time.monotonic()
            while not self._stop.is_set():
                if sent > rate * (time.monotonic() - start):
                    time.sleep(0.0005)
                    continue
                out.sendto(burst, ("127.0.0.1", port))
                sent += BURST
            self.rate = sent / (time.monotonic() - start)

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def deaf_port() -> Iterator[int]:
    """A port with a socket that nobody reads, whose buffer is soon full."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        yield deaf.getsockname()[1]


class Stranger:
    """A flood from a process of its own (strangers.py): of connects by user nobody, or of ICMP."""

    def __init__(self, kind: str, target: str, rate: float) -> None:
        self.rate = 0.0  # as it was
        self._argv = [sys.executable, str(Path(__file__).with_name("strangers.py")), kind]
        self._target, self._wanted = target, rate
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        # A socket's name is known once a rank has it.
        while not self._target and not self._over.is_set():
            self._target = socket_of_child()
            time.sleep(0.01)
        if not self._target:
            return
        argv = [*self._argv, self._target, str(self._wanted)]
        with subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            self._over.wait()
            self.rate = float(process.communicate()[0])

    def __enter__(self) -> Stranger:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def socket_of_child() -> str:
    """The name of the socket by which a process that this one has started shares memory; or ""."""
    listening = {}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) == 8 and fields[7].startswith("@taco-") and fields[5] == "01":
            listening[f"socket:[{fields[6]}]"] = fields[7][1:]
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) != os.getpid():
                continue
            for descriptor in (stat.parent / "fd").iterdir():
                name = listening.get(os.readlink(descriptor))
                if name is not None:
                    return name
    return ""


@contextmanager
def deaf_socket() -> Iterator[str]:
    """A socket whose connections nobody accepts, as full of them as it can be."""
    name = f"deaf-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as deaf:
        deaf.bind(b"\0" + name.encode())
        deaf.listen(16)
        yield name


def measure(arguments: argparse.Namespace, level: str, port: int) -> Row:
    options = ["--seconds", str(arguments.seconds), "--rounds", str(arguments.messages)]
    if arguments.connects:
        options += ["--transport", "shm"]
    options += ["--bytes", str(arguments.bytes)]
    # Loopback would carry larger packets than Ethernet does.
    environment = {"TACO_HARP_SECURITY": level, "TACO_MTU": "1500"}
    text = Pair().run_harp(arguments.perf, options, port, **environment)
    return figures(text, {"us": r"half round trip median ([\d.]+) us", **BULK})


def openssl_seconds() -> float:
    """Processor seconds of AES-128-GCM for a GB in segments."""
    command = ["openssl", "speed", "-mr", "-seconds", "1", "-bytes", str(SEGMENT_BYTES)]
    done = subprocess.run(
        [*command, "-evp", "aes-128-gcm"], capture_output=True, text=True, check=True
    )
    rate = re.search(r"\+F:\d+:[^:]*:([\d.]+)", done.stdout)
    if rate is None:
        raise RuntimeError(f"openssl speed did not say how fast it was:\n{done.stdout}")
    return 1e9 / float(rate[1])


def compare_levels(arguments: argparse.Namespace) -> dict[str, Row]:
    candidates = {level: functools.partial(measure, arguments, level, 0) for level in LEVELS}
    rows = by_turns(candidates, arguments.repeat)
    result = {level: medians(rows[level]) for level in LEVELS}
    base = result["none"]
    print("level     half round trip     bulk              s a GB: sender  receiver")
    for level, row in result.items():
        print(
            f"{level:8s} {row['us']:8.2f} us {row['us'] / base['us']:6.3f}x"
            f" {row['gbit']:8.1f} Gbit/s {row['gbit'] / base['gbit']:6.3f}x"
            f" {row['sender']:10.3f} {row['receiver']:9.3f}"
        )
    limit = openssl_seconds()
    for end in ("sender", "receiver"):
        more = result["encrypt"][end] - base[end]
        print(
            f"encrypt, {end}: {more:.3f} s a GB more than none; openssl speed aes-128-gcm at "
            f"{SEGMENT_BYTES} bytes takes {limit:.3f} s: {more / limit:.2f}x"
        )
    result["openssl"] = {"seconds": limit}
    return result


@contextmanager
def flood(arguments: argparse.Namespace, at_it: bool, port: int) -> Iterator[Flood | Stranger]:
    """A flood as the arguments say, at the pair, whose receiver has the port, or elsewhere."""
    with deaf_port() as deaf, deaf_socket() as deaf_name:
        target = port if at_it else deaf
        if arguments.forged:
            one: Flood | Stranger = Flood(target, arguments.forged)
        elif arguments.icmp:
            one = Stranger("icmp", str(target), arguments.icmp)
        else:
            one = Stranger("connects", "" if at_it else deaf_name, arguments.connects)
        with one:
            yield one


def compare_floods(arguments: argparse.Namespace) -> dict[str, Row]:
    what = "packets" if arguments.forged else "ICMP" if arguments.icmp else "connects"
    rows: dict[str, list[Row]] = {"elsewhere": [], "at it": []}
    rates = []
    for turn in range(arguments.repeat):
        for where in list(rows)[:: 1 if turn % 2 == 0 else -1]:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            with flood(arguments, where == "at it", port) as one:
                rows[where].append(measure(arguments, arguments.level, port))
            rates.append(one.rate)
    result = {where: medians(found) for where, found in rows.items()}
    base = result["elsewhere"]
    print(f"{min(rates):.0f} to {max(rates):.0f} {what} a second; level {arguments.level}")
    for where, row in result.items():
        print(
            f"{where:10s} {row['us']:8.2f} us {row['us'] / base['us']:6.3f}x"
            f" {row['gbit']:8.1f} Gbit/s {row['gbit'] / base['gbit']:6.3f}x"
            f" {row['receiver']:8.3f} s a GB {row['receiver'] / base['receiver']:6.3f}x"
        )
    result["rates"] = {"least": min(rates), "most": max(rates)}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--perf", type=Path, default=PERF, help="harp-perf, as built")
    parser.add_argument("--forged", type=float, default=0, help="packets a second to the receiver")
    parser.add_argument("--icmp", type=float, default=0, help="messages a second about its port")
    parser.add_argument("--connects", type=float, default=0, help="a second to one of them")
    parser.add_argument("--level", choices=LEVELS, default="auth", help="beside a flood")
    parser.add_argument("--repeat", type=int, default=5, help="rounds of each candidate")
    parser.add_argument("--seconds", type=float, default=2, help="of bulk data a round")
    parser.add_argument("--messages", type=int, default=20_000, help="small ones a round")
    parser.add_argument("--bytes", type=int, default=4 << 20, help="of a bulk message")
    parser.add_argument("--json", type=Path, help="write the medians there")
    arguments = parser.parse_args()
    require(arguments.perf, "harp-perf")
    flooded = arguments.forged or arguments.icmp or arguments.connects
    result = compare_floods(arguments) if flooded else compare_levels(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
