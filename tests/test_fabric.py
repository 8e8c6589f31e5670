"""The emulated network behaves like one, and goes away on every exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fabric import Fabric, parse_rate, wait_all, why_unavailable
from signals import default_signals

FABRIC = Path(__file__).parents[1] / "benchmarks" / "fabric.py"
reason = why_unavailable()
needs_fabric = pytest.mark.skipif(reason is not None, reason=f"no fabric here: {reason}")

RECEIVE = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
# Room for all that may come while this does not run, the end marks included.
s.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
s.bind(("", 7000))
print("ready", flush=True)
count = 0
while s.recv(100) != b"end":
    count += 1
print(count)
"""
SEND = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(int(sys.argv[2])):
    s.sendto(bytes(int(sys.argv[3])), (sys.argv[1], 7000))
    time.sleep(0.0002)
"""
END = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(200):
    s.sendto(b"end", (sys.argv[1], 7000))
"""


def arrived(fabric: Fabric, source: int, target: int, count: int, size: int = 3) -> int:
    """How many of `count` datagrams, all sent without an error, reach the target; the faults end
    before the end mark."""
    python = [sys.executable, "-c"]
    receiver = fabric.popen(target, [*python, RECEIVE], stdout=subprocess.PIPE, text=True)
    assert receiver.stdout
    assert receiver.stdout.readline() == "ready\n"
    fabric.output(source, [*python, SEND, fabric.address(target), str(count), str(size)])
    fabric.mend(target)
    fabric.set_loss(0.0)
    fabric.output(source, [*python, END, fabric.address(target)])
    return int(receiver.communicate(timeout=20)[0])


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    with Fabric(hosts=3) as made:
        yield made


def test_rates_are_read_as_tc_writes_them() -> None:
    assert parse_rate("1gbit") == 1e9
    assert parse_rate("2.5Mbit") == 2.5e6
    with pytest.raises(ValueError, match="1gbyte"):
        parse_rate("1gbyte")


@needs_fabric
def test_a_lossless_fabric_delivers_everything(fabric: Fabric) -> None:
    assert arrived(fabric, 0, 2, 500) == 500


@needs_fabric
def test_loss_takes_about_its_share(fabric: Fabric) -> None:
    # The neighbour must be known before: a lost question for its address would cost a second.
    assert arrived(fabric, 0, 1, 5) == 5
    fabric.set_loss(0.2)
    assert 250 <= arrived(fabric, 0, 1, 400) <= 390


@needs_fabric
def test_a_cut_cable_carries_nothing_and_keeps_its_carrier(fabric: Fabric) -> None:
    # Known before the cut: what waits for the neighbour's address is sent after mending.
    assert arrived(fabric, 0, 1, 5) == 5
    fabric.cut(1)
    assert fabric.output(1, ["cat", "/sys/class/net/eth0/carrier"]).strip() == "1"
    assert arrived(fabric, 0, 1, 50) == 0


@needs_fabric
def test_a_narrow_stretch_loses_large_packets_without_a_word() -> None:
    with Fabric(hosts=3, mtu=9000) as fabric:
        fabric.narrow(1, 1500)
        for source, target in ((0, 1), (1, 0)):
            assert arrived(fabric, source, target, 50, size=1400) == 50
            assert arrived(fabric, source, target, 50, size=5000) == 0
        assert arrived(fabric, 0, 2, 50, size=5000) == 50


@needs_fabric
def test_hosts_have_their_own_addresses_and_sysfs(fabric: Fabric) -> None:
    assert fabric.output(1, ["ls", "/sys/class/net"]).split() == ["eth0", "lo"]
    assert fabric.address(1) in fabric.output(1, ["ip", "-4", "addr"])
    with Fabric(hosts=2, links=2) as two:
        assert two.output(1, ["ls", "/sys/class/net"]).split() == ["eth0", "eth1", "lo"]


@needs_fabric
def test_rate_is_held() -> None:
    with Fabric(hosts=2, rate="80mbit") as fabric:
        script = """
import socket, sys, time
if sys.argv[1] == "serve":
    server = socket.create_server(("", 7001))
    print("ready", flush=True)
    connection = server.accept()[0]
    start, count = time.monotonic(), 0
    while data := connection.recv(1 << 20):
        count += len(data)
    print(count * 8 / (time.monotonic() - start))
else:
    connection = socket.create_connection((sys.argv[1], 7001))
    connection.sendall(bytes(10_000_000))
"""
        command = [sys.executable, "-c", script]
        server = fabric.popen(0, [*command, "serve"], stdout=subprocess.PIPE, text=True)
        assert server.stdout
        server.stdout.readline()
        fabric.output(1, [*command, fabric.address(0)])
        assert float(server.communicate(timeout=30)[0]) < 90e6


@needs_fabric
def test_ranks_get_a_torchrun_like_environment() -> None:
    with Fabric(hosts=2) as fabric:
        show = ["sh", "-c", "echo $RANK $WORLD_SIZE $LOCAL_RANK $GROUP_RANK $MASTER_ADDR"]
        ranks = fabric.launch(show, ranks_per_host=2, stdout=subprocess.PIPE, text=True)
        lines = [rank.communicate()[0].strip() for rank in ranks]
        assert wait_all(ranks) == 0
    assert lines == [f"{r} 4 {r % 2} {r // 2} 10.77.0.1" for r in range(4)]


@needs_fabric
def test_one_failing_rank_ends_the_others() -> None:
    with Fabric(hosts=2) as fabric:
        ranks = fabric.launch(["sh", "-c", "[ $RANK = 0 ] && exit 3; exec sleep 100"])
        assert wait_all(ranks, timeout=20) == 3
        assert all(rank.poll() is not None for rank in ranks)


def alive(marker: str) -> list[int]:
    pids = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker.encode() in (entry / "cmdline").read_bytes():
                pids.append(int(entry.name))
        except OSError:
            continue
    return pids


@needs_fabric
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ending_the_fabric_ends_what_runs_in_it(number: signal.Signals) -> None:
    marker = f"fabric-test-{os.getpid()}-{number}"
    script = f"import os, time; os.write(1, b'up\\n'); time.sleep(100)  # {marker}"
    argv = [sys.executable, str(FABRIC), "--hosts", "2", "--", sys.executable, "-c", script]
    runner = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, preexec_fn=default_signals)
    assert runner.stdout
    assert runner.stdout.readline() == "up\n"
    assert runner.stdout.readline() == "up\n"
    runner.send_signal(number)
    runner.wait(20)
    deadline = time.monotonic() + 10
    while alive(marker) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(marker)
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    assert "fabric" not in names.stdout
