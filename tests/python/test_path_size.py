"""Hosts whose network carries less than their interfaces say: nothing tells them but silence."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from conftest import taco_only
from fabric import Fabric
from hosts import host_ranks, join, needs_hosts

pytestmark = [taco_only, needs_hosts]

LARGE = 2_000_000  # floats: 8 MB


def reduce_large(rounds: int = 1, count: int = LARGE) -> float:
    """All_reduces of values that an addition made twice, or left out, would change. Returns the
    longest round in seconds."""
    rank, world = dist.get_rank(), dist.get_world_size()
    longest = 0.0
    for step in range(rounds):
        tensor = torch.arange(count, dtype=torch.float32) % 1000 + rank + step
        begin = time.monotonic()
        dist.all_reduce(tensor)
        longest = max(longest, time.monotonic() - begin)
        expected = (torch.arange(count, dtype=torch.float32) % 1000 + step) * world
        expected += world * (world - 1) / 2
        assert torch.equal(tensor, expected)
    return longest


def reduce_for(seconds: float) -> float:
    """As reduce_large, for some time; all ranks agree on the last round."""
    end = time.monotonic() + seconds
    longest = 0.0
    while True:
        longest = max(longest, reduce_large())
        over = torch.tensor([float(time.monotonic() > end)])
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
        if over.item() > 0:
            return longest


def test_jumbo_hosts_behind_an_ordinary_switch_talk() -> None:
    with Fabric(hosts=2, mtu=9000) as fabric, host_ranks(fabric) as ranks:
        fabric.set_switch_mtu(1500)
        ranks.run(join)
        for seconds in ranks.run(reduce_large, 3, deadline_s=40):
            assert seconds < 5


def test_over_ipv6_too() -> None:
    with Fabric(hosts=2, mtu=9000) as fabric, host_ranks(fabric, family=6) as ranks:
        fabric.set_switch_mtu(1500)
        ranks.run(join)
        for seconds in ranks.run(reduce_large, 3, deadline_s=40):
            assert seconds < 5


def test_a_switch_that_narrows_in_mid_job_costs_about_a_second_at_most() -> None:
    with Fabric(hosts=3, mtu=9000) as fabric, host_ranks(fabric) as ranks:
        fabric.set_switch_mtu(9000)
        ranks.run(join)
        ranks.run(reduce_large)
        for rank in range(3):
            ranks.begin(rank, reduce_for, 3.0)
        time.sleep(1.0)  # somewhere in mid-job
        fabric.set_switch_mtu(1500)
        for outcome in ranks.gather(range(3), 60):
            assert outcome.ok, outcome.trace
            assert outcome.value < 5


def test_an_interface_whose_own_mtu_is_lowered_goes_on_sending() -> None:
    with Fabric(hosts=2, mtu=9000) as fabric, host_ranks(fabric) as ranks:
        ranks.run(join)
        ranks.run(reduce_large)
        for rank in range(2):
            ranks.begin(rank, reduce_for, 2.0)
        time.sleep(0.5)  # somewhere in mid-job
        fabric.set_switch_mtu(1500)
        for host in range(2):
            fabric.output(host, ["ip", "link", "set", "eth0", "mtu", "1500"])
        for outcome in ranks.gather(range(2), 60):
            assert outcome.ok, outcome.trace
            assert outcome.value < 5
