"""Groups: subsets, splits, meshes, re-initialisation, many of them."""

from __future__ import annotations

import copy
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from conftest import BACKEND, taco_only
from footprint import footprint
from spawn_ranks import Ranks, connect, initialise
from torch._C._distributed_c10d import ErrorType
from torch.distributed.device_mesh import init_device_mesh


def subsets() -> None:
    rank = dist.get_rank()
    for members in ([0, 2], [3, 1], [2], [0, 1, 2, 3]):
        group = dist.new_group(members)
        if rank in members:
            tensor = torch.tensor([float(rank)])
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == sum(members)
            dist.destroy_process_group(group)


def opposite_order() -> None:
    """Two ranks use two groups in opposite order: asynchronous operations must not block."""
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    rank = dist.get_rank()
    if rank < 2:
        order = [first, second] if rank == 0 else [second, first]
        for _ in range(20):
            tensors = [torch.ones(300_000) for _ in order]
            works = [
                dist.all_reduce(tensor, group=group, async_op=True)
                for tensor, group in zip(tensors, order, strict=True)
            ]
            for work in works:
                work.wait()
            assert all(bool((tensor == 2).all()) for tensor in tensors)


def two_hundred_groups() -> float:
    begin = time.monotonic()
    for _ in range(200):
        group = dist.new_group()
        dist.destroy_process_group(group)
    return time.monotonic() - begin


def live_groups_cost_nothing(count: int) -> tuple[dict[str, int], dict[str, int]]:
    dist.barrier()
    before = footprint()
    groups = [dist.new_group() for _ in range(count)]
    for group in groups[:: max(1, count // 20)]:
        tensor = torch.ones(4)
        dist.all_reduce(tensor, group=group)
        assert tensor[0].item() == dist.get_world_size()
    after = footprint()
    for group in groups:
        dist.destroy_process_group(group)
    return before, after


def mesh_slices() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    rank = dist.get_rank()
    for name, members in (
        ("inner", [rank // 2 * 2, rank // 2 * 2 + 1]),
        ("outer", [rank % 2, rank % 2 + 2]),
    ):
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=mesh[name].get_group())
        assert tensor.item() == sum(members)


def split_and_merge() -> None:
    world = dist.group.WORLD
    rank = dist.get_rank()
    members = [0, 1] if rank < 2 else [2, 3]
    half = world.split_group(members, timedelta(seconds=30), None, f"half{rank // 2}", "a half")
    tensor = torch.tensor([float(rank)])
    half.allreduce([tensor]).wait()
    assert tensor.item() == sum(members)
    assert half.size() == 2
    options = world._get_backend(torch.device("cpu")).options
    assert copy.deepcopy(options)._timeout == options._timeout
    assert copy.copy(options)._timeout == options._timeout


def merge(port: int) -> None:
    """Two halves, each a group of its own, become one group again."""
    world, rank = dist.group.WORLD, dist.get_rank()
    members = [0, 1] if rank < 2 else [2, 3]
    half = world.split_group(members, timedelta(seconds=30), None, f"part{rank // 2}", "a half")
    store = dist.PrefixStore("merged", connect(port, 4))
    whole = half.merge_remote_group(store, 4, timedelta(seconds=30), "whole", "both halves")
    assert whole.size() == 4
    tensor = torch.tensor([float(rank), 1.0])
    whole.allreduce([tensor]).wait()
    assert tensor.tolist() == [6.0, 4.0]
    gathered = [torch.zeros(1) for _ in range(4)]
    whole.allgather([gathered], [torch.tensor([float(whole.rank())])]).wait()
    assert [part.item() for part in gathered] == [0, 1, 2, 3]
    tensor = torch.tensor([float(rank)])
    half.allreduce([tensor]).wait()  # the half lives on
    assert tensor.item() == sum(members)
    whole.shutdown()
    half.shutdown()


def small_ones_pass_a_stuck_one() -> None:
    """A large operation of one group waits for a rank; another group's are not held up by it."""
    large, small = dist.new_group(), dist.new_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((8_000_000,), float(rank))
    work = dist.all_reduce(tensor, group=large, async_op=True) if rank != 2 else None
    for i in range(50):
        one = torch.tensor([float(rank + i)])
        dist.all_reduce(one, group=small)
        assert one.item() == sum(range(world)) + world * i
    if work is None:
        work = dist.all_reduce(tensor, group=large, async_op=True)
    else:
        assert not work.is_completed()
    dist.barrier(group=small)
    work.wait()
    assert bool((tensor == sum(range(world))).all())


def all_to_all_of_many() -> int:
    import taco_torch

    rank, world = dist.get_rank(), dist.get_world_size()
    received = torch.zeros(world * 20_000)
    for _ in range(3):
        dist.all_to_all_single(received, torch.full((world * 20_000,), float(rank)))
        expected = torch.arange(float(world)).repeat_interleave(20_000)
        assert torch.equal(received, expected)
    return taco_torch.stats().socket_overflows


def re_initialise(rank: int, world: int, port: int) -> None:
    dist.destroy_process_group()
    initialise(rank, world, port, BACKEND)
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    assert bool((tensor == world).all())


def shutdown_twice() -> None:
    import taco_torch

    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    dist.barrier(group=group)
    backend.shutdown()
    backend.shutdown()
    with pytest.raises(taco_torch.AbortedError, match="destroyed"):
        backend.allreduce([torch.ones(1)])


def name_and_timeout() -> None:
    import taco_torch

    group = dist.new_group(timeout=timedelta(seconds=7), pg_options=taco_torch.Options())
    backend = group._get_backend(torch.device("cpu"))
    assert backend.name() == "taco"
    assert backend.options._timeout == timedelta(seconds=7)
    backend.set_timeout(timedelta(seconds=9))
    assert backend.options._timeout == timedelta(seconds=9)
    assert backend.get_error() == ErrorType.SUCCESS
    dist.destroy_process_group(group)


@taco_only
@pytest.mark.parametrize(("wrong", "right"), [("rnig", "ring"), ("all_reduce=direkt", "direct")])
def test_an_algorithm_that_does_not_exist_is_refused_where_it_is_named(
    wrong: str, right: str
) -> None:
    import taco_torch

    with pytest.raises(ValueError, match=rf"Options.*{wrong}.*did you mean {right}\?"):
        taco_torch.Options(algorithm=wrong)


def test_subsets_of_ranks(ranks: Ranks) -> None:
    ranks.run(subsets)


def test_groups_used_in_opposite_order(ranks: Ranks) -> None:
    ranks.run(opposite_order)


@taco_only
def test_two_hundred_groups_come_and_go(ranks: Ranks) -> None:
    ranks.run(two_hundred_groups)


@taco_only
def test_a_live_group_costs_no_thread_and_no_descriptor(ranks: Ranks) -> None:
    for before, after in ranks.run(live_groups_cost_nothing, 1000, deadline_s=120):
        started = sum(after[kind] - before[kind] for kind in ("threads", "callback threads"))
        assert started <= 1  # the one for completions may have
        assert after["descriptors"] <= before["descriptors"] + 2


def test_device_mesh_slices(ranks: Ranks) -> None:
    ranks.run(mesh_slices)


@taco_only
def test_split_group_and_copies_of_its_options(ranks: Ranks) -> None:
    ranks.run(split_and_merge)


@taco_only
def test_two_groups_merge_into_one(ranks: Ranks) -> None:
    ranks.run(merge, ranks.port)


def test_small_operations_pass_a_large_one_of_another_group_that_waits(ranks: Ranks) -> None:
    ranks.run(small_ones_pass_a_stuck_one)


@taco_only
def test_sixteen_ranks_exchange_all_to_all_without_overflow(transport: str) -> None:
    with Ranks(16, {"TACO_TRANSPORT": transport, "TACO_LOG": "warning"}) as many:
        assert many.initialise().run(all_to_all_of_many, deadline_s=120) == [0] * 16


@taco_only
def test_shutdown_is_idempotent(ranks: Ranks) -> None:
    ranks.run(shutdown_twice)


def drop_the_last_reference(port: int) -> None:
    """Drops a group that torch.distributed does not know, as torchft makes them."""
    import taco_torch

    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("dropped", connect(port, world))
    group = taco_torch.ProcessGroupTaco(store, rank, world, None, timedelta(seconds=60), "x", [])
    group.allreduce([torch.ones(4)]).wait()
    if rank == world - 1:
        del group
    else:
        group.allreduce([torch.ones(4)]).wait()


@taco_only
def test_a_group_that_nobody_refers_to_any_more_has_left(ranks: Ranks) -> None:
    *others, dropped = ranks.outcomes(drop_the_last_reference, ranks.port)
    assert dropped.ok, dropped
    for outcome in others:
        assert outcome.error_type == "PeerLostError", outcome
        assert outcome.fields is not None
        assert outcome.fields["rank"] == 3


@taco_only
def test_name_options_and_timeout(ranks: Ranks) -> None:
    ranks.run(name_and_timeout)


@taco_only
def test_initialising_again_with_ranks_permuted(transport: str) -> None:
    """Under a store that outlives the groups, with the same key prefix every time."""
    with Ranks(3, {"TACO_TRANSPORT": transport, "TACO_LOG": "warning"}) as ranks:
        ranks.initialise(BACKEND)
        for shift in range(1, 8):
            arguments = [((rank + shift) % 3, 3, ranks.port) for rank in range(3)]
            ranks.run_each(re_initialise, arguments)
