"""Ranks on several hosts: which addresses they choose, over IPv4 and IPv6, and what it means when a
host falls silent."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from fabric import Fabric
from hosts import host_ranks, join, needs_hosts, sent_by, total
from spawn_ranks import Outcome, Ranks

pytestmark = [taco_only, needs_hosts]

PEER_TIMEOUT = {"TACO_PEER_TIMEOUT_MS": "2000"}
DOCKER = """
ip link add docker0 type veth peer name container
ip addr add 172.17.0.1/16 dev docker0
ip link set docker0 up
ip link set container up
"""


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    with Fabric(hosts=3) as made:
        yield made


def everything_once() -> None:
    """Each kind of traffic between hosts, checked."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for count in (1, 1_000, 300_000):
        tensor = torch.full((count,), float(rank + 1))
        dist.all_reduce(tensor)
        assert bool((tensor == world * (world + 1) / 2).all())
    blocks = torch.arange(world * 1000) + rank * 1_000_000
    received = torch.empty_like(blocks)
    dist.all_to_all_single(received, blocks)
    for source in range(world):
        block = received[source * 1000 : (source + 1) * 1000]
        assert bool((block == torch.arange(1000) + rank * 1000 + source * 1_000_000).all())
    dist.barrier()


def join_and_try() -> None:
    join()
    everything_once()


def assert_lost(outcome: Outcome, rank: int, address: str = "") -> None:
    assert outcome.error_type == "PeerLostError", outcome
    assert outcome.fields is not None
    assert outcome.fields["rank"] == rank, outcome.error
    assert address in outcome.fields["address"]
    assert address in outcome.error


# -- silence


def test_a_host_whose_cable_is_cut_is_lost_when_its_time_is_up(fabric: Fabric) -> None:
    with host_ranks(fabric, PEER_TIMEOUT) as ranks:
        ranks.run(join)
        ranks.run(total)
        fabric.cut(2)
        for rank in range(3):
            ranks.begin(rank, total)
        others = ranks.gather([0, 1], 30)
        for outcome in others:
            assert_lost(outcome, 2, fabric.address(2))
            assert outcome.seconds < 9.5  # 10 s are the default
            assert "TACO_PEER_TIMEOUT_MS" in outcome.error
        # One who begins late hears of it from the other one.
        assert max(outcome.seconds for outcome in others) > 1.5
        # The one that is cut off can only blame those that it waits for.
        alone = ranks.gather([2], 30)[0]
        assert alone.error_type == "PeerLostError", alone
        assert alone.fields is not None
        assert alone.fields["rank"] in (0, 1)


def is_cut_in_time(fabric: Fabric, ranks: Ranks) -> bool:
    """Whether an all_reduce, which is right in any case, was interrupted."""
    begin = time.monotonic()
    for rank in range(3):
        ranks.begin(rank, total, 8_000_000)
    time.sleep(0.1)  # an all_reduce of 32 MB takes 0.9 s at this rate
    fabric.cut(2)
    in_time = time.monotonic() - begin < 0.6
    time.sleep(1.5)
    fabric.mend(2)
    outcomes = ranks.gather(range(3), 30)
    assert [outcome.error for outcome in outcomes] == [""] * 3
    assert [outcome.value for outcome in outcomes] == [3.0] * 3
    if in_time:  # the first to begin has waited throughout
        assert max(outcome.seconds for outcome in outcomes) > 1.0
    return in_time


def test_a_link_that_returns_in_time_costs_time_only() -> None:
    with Fabric(hosts=3, rate="400mbit") as fabric, host_ranks(fabric) as ranks:
        ranks.run(join)
        ranks.run(total)
        # Where this process is kept from it, the cut comes too late to interrupt anything.
        assert any(is_cut_in_time(fabric, ranks) for _ in range(5))
        assert ranks.run(total) == [3.0] * 3


@pytest.mark.parametrize("verdict", ["drop", "reject"])
def test_a_firewall_that_stops_udp_is_suspected(fabric: Fabric, verdict: str) -> None:
    chains = [
        f"chain {hook} {{ type filter hook {hook} priority 0; meta l4proto udp {verdict}; }}"
        for hook in ("input", "output")
    ]
    fabric.output(1, ["nft", f"table inet wall {{ {'; '.join(chains)}; }}"])
    with host_ranks(fabric, PEER_TIMEOUT) as ranks:
        ranks.run(join)  # TCP, to the store, passes
        outcomes = ranks.outcomes(total, deadline_s=30)
        assert all(outcome.error_type == "PeerLostError" for outcome in outcomes), outcomes
        assert_lost(outcomes[0], 1, fabric.address(1))
        assert "firewall" in outcomes[0].error


# -- IPv6


@pytest.fixture
def fabric6(fabric: Fabric) -> Fabric:
    """Hosts that have no IPv4 address."""
    for host in range(fabric.hosts):
        fabric.output(host, ["ip", "-4", "addr", "flush", "dev", "eth0"])
    return fabric


def test_everything_works_over_ipv6_alone(fabric6: Fabric) -> None:
    with host_ranks(fabric6, family=6, ranks_per_host=2) as ranks:
        ranks.run(join_and_try)


def test_a_death_is_seen_over_ipv6_too(fabric6: Fabric) -> None:
    # By refusals: silence would take longer than anybody waits here.
    with host_ranks(fabric6, {"TACO_PEER_TIMEOUT_MS": "100000"}, family=6) as ranks:
        ranks.run(join_and_try)
        ranks.begin(0, total)
        ranks.begin(1, total)
        time.sleep(0.3)
        ranks.kill(2)
        for outcome in ranks.gather([0, 1], 30):
            assert_lost(outcome, 2, f"[{fabric6.address6(2)}]:")


def test_a_master_at_ipv6_loopback_serves_the_ranks_of_one_host(transport: str) -> None:
    environment = {"MASTER_ADDR": "::1", "TACO_TRANSPORT": transport}
    with Fabric(hosts=1) as fabric, host_ranks(fabric, environment, ranks_per_host=3) as ranks:
        ranks.run(join_and_try)


# -- the choice of interfaces


def traffic_by_link(fabric: Fabric, ifname: str) -> tuple[int, int]:
    """Bytes that host 1 sends over eth0 and over eth1 once the rendezvous is over."""
    environment = {"TACO_IFNAME": ifname} if ifname else {}
    with host_ranks(fabric, environment) as ranks:
        ranks.run(join)
        before = [sent_by(fabric, 1, link) for link in (0, 1)]
        ranks.run(everything_once)
        after = [sent_by(fabric, 1, link) for link in (0, 1)]
    return after[0] - before[0], after[1] - before[1]


@pytest.mark.parametrize(
    ("ifname", "used"),
    [
        ("", {0, 1}),
        ("eth0", {0}),
        ("eth1", {1}),
        ("eth0,eth1", {0, 1}),
        ("eth1,eth0", {0, 1}),
        ("^docker0", {0, 1}),
        ("^eth0", {1}),
    ],
)
def test_interfaces_are_used_as_named_or_by_the_routes(ifname: str, used: set[int]) -> None:
    with Fabric(hosts=2, links=2) as fabric:
        for host in range(2):
            # As on real hosts: a bridge of the same address everywhere, which leads nowhere.
            fabric.output(host, ["sh", "-ec", DOCKER])
        sent = traffic_by_link(fabric, ifname)
        assert sum(sent[link] for link in used) > 1_000_000, sent
        assert all(sent[link] < 100_000 for link in {0, 1} - used), sent


def failures(ranks: Ranks) -> list[Outcome]:
    """The outcomes of a rendezvous that no rank gets through."""
    # They fail at once, if all have processors to run on.
    outcomes = ranks.outcomes(join, 60.0, deadline_s=90)
    assert all(not outcome.ok for outcome in outcomes), outcomes
    return outcomes


def test_an_interface_that_does_not_exist_is_named_beside_those_that_do(fabric: Fabric) -> None:
    with host_ranks(fabric, {"TACO_IFNAME": "eth7"}) as ranks:
        for outcome in failures(ranks):
            assert outcome.error_type == "ValueError", outcome
            assert '"eth7" does not exist' in outcome.error
            assert "eth0, lo" in outcome.error


@pytest.mark.parametrize("ifname", ["lo", "^eth0"])
def test_hosts_that_would_talk_over_loopback_get_an_error(fabric: Fabric, ifname: str) -> None:
    with host_ranks(fabric, {"TACO_IFNAME": ifname}) as ranks:
        for outcome in failures(ranks):
            assert outcome.error_type == "RendezvousError", outcome
            assert "loopback does not lead to another host" in outcome.error
            assert "TACO_IFNAME" in outcome.error


def test_one_host_on_loopback_is_an_error_on_all_that_would_talk_to_it(fabric: Fabric) -> None:
    own = [{}, {"TACO_IFNAME": "lo"}, {}]
    with host_ranks(fabric, own=own) as ranks:
        for outcome in failures(ranks):
            assert outcome.error_type == "RendezvousError", outcome
            assert "loopback does not lead to another host" in outcome.error


def test_shared_memory_alone_cannot_span_hosts(fabric: Fabric) -> None:
    with host_ranks(fabric, {"TACO_TRANSPORT": "shm"}) as ranks:
        for outcome in failures(ranks):
            assert outcome.error_type == "RendezvousError", outcome
            assert "TACO_TRANSPORT=shm" in outcome.error
            assert "another host" in outcome.error


def udp_ports() -> set[int]:
    """Those in use on this host."""
    found = set()
    for table in ("udp", "udp6"):
        for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
            found.add(int(line.split()[1].rsplit(":", 1)[1], 16))
    return found


def test_ports_for_a_firewall_rule_are_those_from_taco_port_on(fabric: Fabric) -> None:
    with host_ranks(fabric, {"TACO_PORT": "4100"}, ranks_per_host=2) as ranks:
        ranks.run(join_and_try)
        assert ranks.run(udp_ports) == [{4100, 4101}] * 6


def test_hosts_of_different_mtu_take_the_smaller(fabric: Fabric) -> None:
    fabric.output(1, ["ip", "link", "set", "eth0", "mtu", "1400"])
    with host_ranks(fabric) as ranks:
        ranks.run(join_and_try)


def test_one_host_identity_for_two_hosts_is_seen_through(fabric: Fabric) -> None:
    """As copies of one virtual machine have it: what counts is whether memory can be shared."""
    with host_ranks(fabric, {"TACO_HOST_ID": "copy", "TACO_IFNAME": "^docker0"}) as ranks:
        ranks.run(join_and_try)


def test_a_host_reads_its_own_interfaces(fabric: Fabric) -> None:
    fabric.output(1, ["ip", "link", "set", "eth0", "mtu", "1400"])
    command = [sys.executable, "-m", "taco_torch.info", "--json"]
    done = fabric.popen(1, command, stdout=subprocess.PIPE, text=True)
    facts = json.loads(done.communicate(timeout=60)[0])
    entries = {entry["address"]: entry for entry in facts["interfaces"]}
    assert entries[fabric.address(1)]["mtu"] == 1400
    assert entries[fabric.address(1)]["mbits"] == 10_000  # what a veth pair claims
    assert entries[fabric.address6(1)]["up"]
    assert entries["127.0.0.1"]["mbits"] == 0
