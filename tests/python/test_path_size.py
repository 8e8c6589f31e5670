"""Hosts whose network carries less than their interfaces say. Nothing tells them but silence, or,
where the port at the other end of their own cable is the narrow one, a queue said to be full."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from fabric import Fabric
from hosts import host_ranks, join, needs_hosts

pytestmark = [taco_only, needs_hosts]

LARGE = 2_000_000  # floats: 8 MB
LIMIT_S = 60.0  # generous: of what should take a second or two


def reduce_large(rounds: int = 1, count: int = LARGE) -> None:
    """All_reduces of values that an addition made twice, or left out, would change."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(rounds):
        tensor = torch.arange(count, dtype=torch.float32) % 1000 + rank + step
        dist.all_reduce(tensor)
        expected = (torch.arange(count, dtype=torch.float32) % 1000 + step) * world
        expected += world * (world - 1) / 2
        assert torch.equal(tensor, expected)


def reduce_for(seconds: float) -> None:
    """As reduce_large, for some time; all ranks agree on the last round."""
    end = time.monotonic() + seconds
    while True:
        reduce_large()
        over = torch.tensor([float(time.monotonic() > end)])
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
        if over.item() > 0:
            return


def reduce_until_path_is(least: int, most: int) -> None:
    import taco_torch

    end = time.monotonic() + LIMIT_S / 2
    while True:
        reduce_large()
        size = taco_torch.stats().path_bytes
        over = torch.tensor([float(least <= size <= most)])
        dist.all_reduce(over, op=dist.ReduceOp.MIN)
        if over.item() > 0:
            return
        assert time.monotonic() < end, size


def test_jumbo_hosts_behind_an_ordinary_switch_talk() -> None:
    with Fabric(hosts=2, mtu=9000) as fabric, host_ranks(fabric) as ranks:
        fabric.set_switch_mtu(1500)
        ranks.run(join)
        ranks.run(reduce_large, 3, deadline_s=LIMIT_S)


def test_over_ipv6_too() -> None:
    with Fabric(hosts=2, mtu=9000) as fabric, host_ranks(fabric, family=6) as ranks:
        fabric.set_switch_mtu(1500)
        ranks.run(join)
        ranks.run(reduce_large, 3, deadline_s=LIMIT_S)


@pytest.mark.parametrize("family", [4, 6])
def test_large_packets_that_vanish_silently_are_found_out(family: int) -> None:
    with Fabric(hosts=2, mtu=9000) as fabric, host_ranks(fabric, family=family) as ranks:
        fabric.narrow(1, 1500)
        ranks.run(join, deadline_s=LIMIT_S)
        ranks.run(reduce_large, 3, deadline_s=LIMIT_S)


def test_a_job_goes_on_when_a_switch_narrows() -> None:
    with Fabric(hosts=3, mtu=9000) as fabric, host_ranks(fabric) as ranks:
        fabric.set_switch_mtu(9000)
        ranks.run(join)
        ranks.run(reduce_until_path_is, 8000, 9000 - 28, deadline_s=LIMIT_S)
        for rank in range(3):
            ranks.begin(rank, reduce_for, 3.0)
        time.sleep(1.0)  # somewhere in mid-job
        fabric.set_switch_mtu(1500)
        for outcome in ranks.gather(range(3), LIMIT_S):
            assert outcome.ok, outcome.trace
        ranks.run(reduce_until_path_is, 1200, 1500 - 28, deadline_s=LIMIT_S)


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
        for outcome in ranks.gather(range(2), LIMIT_S):
            assert outcome.ok, outcome.trace
