"""Hosts with several links: what they carry together, and what a link that dies costs."""

from __future__ import annotations

import pathlib
import time

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from fabric import Fabric
from hosts import host_ranks, join, needs_hosts, sent_by
from stderr_file import stderr_into

pytestmark = [taco_only, needs_hosts]

LARGE = 3 << 20  # floats: 12 MiB


def reduce(count: int = LARGE) -> float:
    """An all_reduce of values that an addition made twice, or left out, would change; seconds."""
    rank, world = dist.get_rank(), dist.get_world_size()
    tensor = torch.arange(count, dtype=torch.float32) % 1000 + rank
    dist.barrier()
    start = time.monotonic()
    dist.all_reduce(tensor)
    seconds = time.monotonic() - start
    expected = (torch.arange(count, dtype=torch.float32) % 1000) * world + world * (world - 1) / 2
    assert torch.equal(tensor, expected)
    return seconds


def reduce_often(rounds: int = 6) -> None:
    for _ in range(rounds):
        reduce()


def wait_for_traffic(fabric: Fabric, host: int, link: int, count: int = 20_000_000) -> None:
    """Until a host has sent so many bytes more by this link."""
    enough = sent_by(fabric, host, link) + count
    end = time.monotonic() + 30
    while sent_by(fabric, host, link) < enough:
        assert time.monotonic() < end, f"host {host} hardly uses link {link}"


@pytest.mark.parametrize("hosts", [2, 4])
def test_two_links_share_what_is_sent(hosts: int) -> None:
    """How much sooner that is done is for docs/benchmarks.md: here other tests want the cores."""
    with Fabric(hosts=hosts, links=2, rate="200mbit") as fabric, host_ranks(fabric) as ranks:
        ranks.run(join)
        before = [[sent_by(fabric, host, link) for link in (0, 1)] for host in range(hosts)]
        ranks.run(reduce_often)
        for host in range(hosts):
            sent = [sent_by(fabric, host, link) - before[host][link] for link in (0, 1)]
            assert min(sent) > 0.15 * sum(sent), f"host {host} sent {sent} bytes by its links"


def paths_left() -> int:
    import taco_torch

    return int(taco_torch.stats().paths_left)


@pytest.mark.parametrize("end", ["both ways", "one way", "carrier"])
def test_a_link_that_dies_is_left_and_used_again_and_no_rank_sees_an_error(
    tmp_path: pathlib.Path, end: str
) -> None:
    """How long that takes is for benchmarks/links.py: here other tests want the cores."""
    with Fabric(hosts=3, links=2, rate="1gbit") as fabric, host_ranks(fabric) as ranks:
        ranks.run(join)
        assert ranks.run(count_paths, 4) == [4] * 3
        for link in (0, 1):
            before, stop = sum(ranks.run(paths_left)), tmp_path / f"stop{link}"
            for rank in range(3):
                ranks.begin(rank, train_until, str(stop), str(tmp_path / f"rank{rank}.log"))
            wait_for_traffic(fabric, 1, link)
            if end == "carrier":
                fabric.set_carrier(1, False, link=link)
            elif end == "one way":
                fabric.cut_from(1, link=link)
            else:
                fabric.cut(1, link=link)
            wait_for_traffic(fabric, 1, 1 - link)
            if end == "carrier":
                fabric.set_carrier(1, True, link=link)
            else:
                fabric.mend(1, link=link)
            wait_for_traffic(fabric, 1, link)
            stop.touch()
            outcomes = ranks.gather(range(3), 60)
            assert [outcome.error for outcome in outcomes] == [""] * 3
            assert ranks.run(count_paths, 4) == [4] * 3
            # Host 1's own, to two peers, at least.
            assert sum(ranks.run(paths_left)) - before >= 2


@pytest.mark.whole(instead="ManyPaths.ALinkThatSlowsDownCarriesItsShareSoon")
def test_a_link_that_slows_down_is_given_less(tmp_path: pathlib.Path) -> None:
    with Fabric(hosts=2, links=2, rate="200mbit") as fabric, host_ranks(fabric) as ranks:
        ranks.run(join)
        ranks.run(reduce_often)
        before = [sent_by(fabric, 0, link) for link in (0, 1)]
        ranks.run(reduce_often)
        equal = [sent_by(fabric, 0, link) - before[link] for link in (0, 1)]
        stop = tmp_path / "stop"
        for rank in range(2):
            ranks.begin(rank, train_until, str(stop), str(tmp_path / f"rank{rank}.log"))
        wait_for_traffic(fabric, 0, 1, count=5_000_000)
        fabric.set_rate(0, "20mbit", link=1)
        wait_for_traffic(fabric, 0, 0, count=60_000_000)  # what had been under way has left
        before = [sent_by(fabric, 0, link) for link in (0, 1)]
        wait_for_traffic(fabric, 0, 0, count=40_000_000)
        slowed = [sent_by(fabric, 0, link) - before[link] for link in (0, 1)]
        stop.touch()
        assert [outcome.error for outcome in ranks.gather(range(2), 60)] == [""] * 2
        assert slowed[1] / sum(slowed) < 0.5 * equal[1] / sum(equal), (equal, slowed)


@pytest.mark.parametrize("narrow", [0, 1])
def test_links_of_unequal_mtu_are_both_used(narrow: int) -> None:
    """All segments fit both; damage, or a path that carries none, would show in the sums."""
    with (
        Fabric(hosts=2, links=2, rate="200mbit", mtu=9000) as fabric,
        host_ranks(fabric) as ranks,
    ):
        for host in range(2):
            fabric.set_mtu(host, 1500, link=narrow)
        ranks.run(join)
        assert ranks.run(count_paths, 2) == [2, 2]
        before = [sent_by(fabric, 0, link) for link in (0, 1)]
        ranks.run(reduce_often)
        sent = [sent_by(fabric, 0, link) - before[link] for link in (0, 1)]
        assert min(sent) > 0.2 * sum(sent), sent


def test_a_link_behind_a_firewall_is_left_alone() -> None:
    with Fabric(hosts=2, links=2, rate="1gbit") as fabric, host_ranks(fabric) as ranks:
        fabric.cut(0, link=1)
        ranks.run(join)
        assert max(ranks.run(reduce)) < 60


def join_and_wait_for_hint(log: str) -> str:
    """Reduces until a rank has said that nothing answers on a path; what this one has said."""
    with stderr_into(log):
        join()
        end = time.monotonic() + 30
        over = torch.zeros(1)
        while over.item() == 0:
            reduce(100_000)
            hinted = "TACO_IFNAME" in pathlib.Path(log).read_text()
            over = torch.tensor([float(hinted or time.monotonic() > end)])
            dist.all_reduce(over, op=dist.ReduceOp.MAX)
    return pathlib.Path(log).read_text()


@pytest.mark.parametrize("link", [0, 1])
@pytest.mark.parametrize(
    ("hooks", "verdict"),
    [
        (["input", "output"], "drop"),
        (["input"], "drop"),
        (["output"], "drop"),
        (["input"], "reject"),
    ],
)
def test_a_firewall_on_one_of_two_links_is_named_and_the_other_one_serves(
    tmp_path: pathlib.Path, link: int, hooks: list[str], verdict: str
) -> None:
    chains = [
        f"chain {hook} {{ type filter hook {hook} priority 0; "
        f"{'iifname' if hook == 'input' else 'oifname'} eth{link} meta l4proto udp {verdict}; }}"
        for hook in hooks
    ]
    with (
        Fabric(hosts=2, links=2) as fabric,
        host_ranks(fabric, {"TACO_LOG": "warning"}) as ranks,
    ):
        fabric.output(0, ["nft", f"table inet wall {{ {'; '.join(chains)}; }}"])
        said = ranks.run_each(
            join_and_wait_for_hint, [(str(tmp_path / f"rank{rank}.log"),) for rank in range(2)]
        )
        # A rank that gets no processor for a moment may be taken for silent on the other path, too.
        lines = [line for text in said for line in text.splitlines() if "TACO_IFNAME" in line]
        assert len(lines) == 1, "\n".join(said)
        for host in range(2):
            assert fabric.address(host, link) in lines[0], lines[0]


def train_until(stop: str, log: str) -> str:
    """Reduces until there is a file of that name; what this rank has said meanwhile."""
    over = torch.zeros(1)
    with stderr_into(log):
        while over.item() == 0:
            reduce(1 << 18)
            over = torch.tensor([float(pathlib.Path(stop).exists())])
            dist.all_reduce(over, op=dist.ReduceOp.MAX)
    return pathlib.Path(log).read_text()


@pytest.mark.parametrize("link", [0, 1])
def test_an_address_that_goes_is_named_once_and_used_again_when_it_is_back(
    tmp_path: pathlib.Path, link: int
) -> None:
    with (
        Fabric(hosts=3, links=2, rate="1gbit") as fabric,
        host_ranks(fabric, {"TACO_LOG": "warning"}) as ranks,
    ):
        ranks.run(join)
        address, stop = fabric.address(1, link), tmp_path / "stop"
        for rank in range(3):
            ranks.begin(rank, train_until, str(stop), str(tmp_path / f"rank{rank}.log"))
        wait_for_traffic(fabric, 1, link)
        fabric.output(1, ["ip", "address", "del", f"{address}/24", "dev", f"eth{link}"])
        wait_for_traffic(fabric, 1, 1 - link)
        fabric.output(1, ["ip", "address", "add", f"{address}/24", "dev", f"eth{link}"])
        wait_for_traffic(fabric, 1, link)
        stop.touch()
        outcomes = ranks.gather(range(3), 60)
        assert [outcome.error for outcome in outcomes] == [""] * 3
        named = [line for line in outcomes[1].value.splitlines() if f"address {address}," in line]
        assert len(named) == 1, outcomes[1].value


@pytest.mark.parametrize("who", [[0], [1], [0, 1]])
def test_a_lease_that_is_renewed_with_another_address_keeps_its_path(
    tmp_path: pathlib.Path, who: list[int]
) -> None:
    with Fabric(hosts=2, links=2, rate="200mbit") as fabric, host_ranks(fabric) as ranks:
        ranks.run(join)
        assert ranks.run(count_paths, 2) == [2, 2]
        stop = tmp_path / "stop"
        for rank in range(2):
            ranks.begin(rank, train_until, str(stop), str(tmp_path / f"rank{rank}.log"))
        wait_for_traffic(fabric, 1, 1, count=2_000_000)
        for host in who:
            address = fabric.address(host, 1)
            subnet = address.rpartition(".")[0]
            fabric.output(host, ["ip", "address", "del", f"{address}/24", "dev", "eth1"])
            fabric.output(
                host, ["ip", "address", "add", f"{subnet}.{100 + host}/24", "dev", "eth1"]
            )
        for host in range(2):
            wait_for_traffic(fabric, host, 1, count=5_000_000)
        stop.touch()
        assert [outcome.error for outcome in ranks.gather(range(2), 60)] == [""] * 2
        assert ranks.run(count_paths, 2) == [2, 2]


@pytest.mark.parametrize("late", [[0, 1], [1], [0]])
@pytest.mark.parametrize("paths", [1, 3])
def test_an_address_that_comes_in_the_middle_of_a_job_is_used(
    tmp_path: pathlib.Path, late: list[int], paths: int
) -> None:
    with (
        Fabric(hosts=2, links=2, rate="200mbit") as fabric,
        host_ranks(fabric, {"TACO_PATHS": str(paths)}) as ranks,
    ):
        for host in late:
            fabric.output(host, ["ip", "address", "flush", "dev", "eth1"])
        ranks.run(join)
        ranks.run(reduce)
        assert ranks.run(count_paths, paths) == [paths, paths]
        stop = tmp_path / "stop"
        for rank in range(2):
            ranks.begin(rank, train_until, str(stop), str(tmp_path / f"rank{rank}.log"))
        for host in late:
            address = f"{fabric.address(host, 1)}/24"
            fabric.output(host, ["ip", "address", "add", address, "dev", "eth1"])
        for host in range(2):
            wait_for_traffic(fabric, host, 1, count=5_000_000)
        stop.touch()
        assert [outcome.error for outcome in ranks.gather(range(2), 60)] == [""] * 2
        assert ranks.run(count_paths, 2 * paths) == [2 * paths, 2 * paths]


def count_paths(wanted: int) -> int:
    """Reduces until all ranks have so many, or it has taken too long."""
    import taco_torch

    end = time.monotonic() + 20
    while True:
        reduce(1000)
        paths = taco_torch.stats().paths
        over = torch.tensor([float(paths >= wanted or time.monotonic() > end)])
        dist.all_reduce(over, op=dist.ReduceOp.MIN)
        if over.item() > 0:
            return paths


@pytest.mark.parametrize("cut", [False, True])
def test_the_paths_to_each_host_are_listed_once(tmp_path: pathlib.Path, cut: bool) -> None:
    """Though there are two processes on each."""
    with (
        Fabric(hosts=2, links=2) as fabric,
        host_ranks(fabric, {"TACO_LOG": "info"}, ranks_per_host=2) as ranks,
    ):
        if cut:
            fabric.cut(1, link=1)
        said = ranks.run_each(
            join_and_wait_for_list, [(str(tmp_path / f"rank{rank}.log"),) for rank in range(4)]
        )
        for rank, text in enumerate(said):
            lines = [line for line in text.splitlines() if "paths to " in line]
            assert len(lines) == 1, (rank, text)
            assert ("1 of 2 paths" if cut else "2 of 2 paths") in lines[0]
            for host in range(2):
                for link in (0,) if cut else (0, 1):
                    assert f"{fabric.address(host, link)}:" in lines[0]


def join_and_wait_for_list(log: str) -> str:
    """Reduces until every rank has listed its paths; what this one has said."""
    with stderr_into(log):
        join()
        end = time.monotonic() + 30
        over = torch.zeros(1)
        while over.item() == 0:
            reduce(1000)
            listed = "paths to " in pathlib.Path(log).read_text()
            over = torch.tensor([float(listed or time.monotonic() > end)])
            dist.all_reduce(over, op=dist.ReduceOp.MIN)
    return pathlib.Path(log).read_text()


def test_several_ports_are_several_paths() -> None:
    with Fabric(hosts=2) as fabric, host_ranks(fabric, {"TACO_PATHS": "3"}) as ranks:
        ranks.run(join)
        assert ranks.run(count_paths, 3) == [3, 3]


@pytest.mark.parametrize("value", ["0", "9", "many"])
def test_a_number_of_paths_that_is_none_is_refused(value: str) -> None:
    with Fabric(hosts=2) as fabric, host_ranks(fabric, {"TACO_PATHS": value}) as ranks:
        for outcome in ranks.outcomes(join):
            assert "TACO_PATHS" in (outcome.trace or "")
            assert value in (outcome.trace or "")
