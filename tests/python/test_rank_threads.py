"""Ranks that are threads of one process, each with a group object of its own, as torchft's tests
and other simulators of clusters have them: over a store in memory, over TCPStore, and in worlds
that span processes. ``TACO_TEST_BACKEND=gloo`` runs the first kinds over gloo."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import BACKEND, taco_only
from footprint import footprint
from spawn_ranks import Ranks

DEADLINE_S = 60.0


def make_group(
    store: dist.Store, rank: int, world: int, name: str = "", timeout_s: float = 30.0
) -> dist.ProcessGroup:
    """A ProcessGroup put together by hand, as torchft does."""
    timeout = timedelta(seconds=timeout_s)
    group = dist.ProcessGroup(store, rank, world)
    if BACKEND == "gloo":
        kind = dist.ProcessGroup.BackendType.GLOO
        backend: Any = dist.ProcessGroupGloo(store, rank, world, timeout)
    else:
        import taco_torch

        kind = dist.ProcessGroup.BackendType.CUSTOM
        backend = taco_torch.ProcessGroupTaco(store, rank, world, None, timeout, name, [])
    group._set_default_backend(kind)
    backend._set_sequence_number_for_group()
    group._register_backend(torch.device("cpu"), kind, backend)
    return group


def on_threads(count: int, body: Callable[[int], Any]) -> list[Any]:
    """The results of ``body(i)``, by i; an exception of one is its result."""
    results: list[Any] = [TimeoutError("still running")] * count

    def run(index: int) -> None:
        try:
            results[index] = body(index)
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    return results


def every_collective(group: dist.ProcessGroup, rank: int, world: int, count: int) -> None:
    """Values tell who sent them; 1000 * from + to where that matters."""
    total = world * (world + 1) / 2
    value = torch.full((count,), float(rank + 1))
    group.allreduce([value]).wait()
    assert torch.equal(value, torch.full((count,), total))

    value = torch.full((count,), float(rank))
    group.broadcast(value, world - 1).wait()
    assert torch.equal(value, torch.full((count,), float(world - 1)))

    blocks = [torch.empty(count) for _ in range(world)]
    group.allgather([blocks], [torch.full((count,), float(rank))]).wait()
    assert [block[-1].item() for block in blocks] == list(map(float, range(world)))

    parts = [torch.full((count,), float(1000 * rank + to)) for to in range(world)]
    mine = torch.empty(count)
    group.reduce_scatter([mine], [parts]).wait()
    assert torch.equal(mine, torch.full((count,), sum(1000.0 * r + rank for r in range(world))))

    outputs = [torch.empty(count) for _ in range(world)]
    inputs = [torch.full((count,), float(1000 * rank + to)) for to in range(world)]
    group.alltoall(outputs, inputs).wait()
    assert [out[0].item() for out in outputs] == [1000.0 * r + rank for r in range(world)]

    # Every pair, both ways, under one tag.
    sends = [
        group.send([torch.full((count,), float(1000 * rank + to))], to, 5)
        for to in range(world)
        if to != rank
    ]
    for source in range(world):
        if source != rank:
            value = torch.empty(count)
            group.recv([value], source, 5).wait()
            assert torch.equal(value, torch.full((count,), float(1000 * source + rank)))
    for work in sends:
        work.wait()
    group.barrier().wait()


def leave(group: dist.ProcessGroup) -> None:
    if BACKEND != "gloo":
        group._get_backend(torch.device("cpu")).shutdown()


def whole_life(store: dist.Store, rank: int, world: int) -> str:
    group = make_group(store, rank, world)
    for count in (1, 3_000, 300_000):
        every_collective(group, rank, world, count)
    leave(group)
    return "fine"


@pytest.mark.parametrize("world", [2, 3, 5])
def test_ranks_may_be_threads_that_share_a_store_in_memory(world: int) -> None:
    store = dist.HashStore()
    assert on_threads(world, lambda rank: whole_life(store, rank, world)) == ["fine"] * world


def test_ranks_may_be_threads_with_a_client_of_a_tcp_store_each() -> None:
    server = dist.TCPStore("localhost", 0, None, True, wait_for_workers=False)

    def body(rank: int) -> str:
        client = dist.TCPStore("localhost", server.port, None, False, wait_for_workers=False)
        return whole_life(dist.PrefixStore("quorum/1", client), rank, 3)

    assert on_threads(3, body) == ["fine"] * 3


def test_two_jobs_of_the_same_shape_live_side_by_side_in_one_process() -> None:
    stores = [dist.HashStore(), dist.HashStore()]
    results = on_threads(6, lambda i: whole_life(stores[i // 3], i % 3, 3))
    assert results == ["fine"] * 6


@taco_only
def test_a_rank_that_aborts_fails_its_fellows_and_no_other_group() -> None:
    store, other_store = dist.HashStore(), dist.HashStore()
    barrier, aborted = threading.Barrier(3), threading.Event()

    def body(rank: int) -> str:
        group = make_group(store, rank, 3)
        other = make_group(other_store, rank, 3)
        group.barrier().wait()
        barrier.wait(DEADLINE_S)  # an abort may end a barrier that others are still in
        if rank == 1:
            group.abort()
            aborted.set()
            failure = ""
        else:
            with pytest.raises(RuntimeError) as caught:
                group.allreduce([torch.ones(4)]).wait()
            failure = str(caught.value)
        assert aborted.wait(DEADLINE_S)
        every_collective(other, rank, 3, 100)
        leave(other)
        leave(group)
        return failure

    failures = on_threads(3, body)
    assert all("rank 1" in str(failures[rank]) for rank in (0, 2)), failures
    assert failures[1] == ""


@taco_only
def test_a_rank_that_leaves_is_missed_by_its_fellows_who_need_it() -> None:
    from taco_torch import PeerLostError

    store = dist.HashStore()

    def body(rank: int) -> Any:
        group = make_group(store, rank, 3)
        group.barrier().wait()
        if rank == 2:
            leave(group)
            return None
        try:
            group.allreduce([torch.ones(4)]).wait()
        except PeerLostError as error:
            return error.rank
        finally:
            leave(group)
        return "no error"

    assert on_threads(3, body) == [2, 2, None]


@taco_only
def test_a_rank_that_leaves_one_group_of_two_is_missed_there_and_not_in_the_other() -> None:
    from taco_torch import PeerLostError

    stores = [dist.HashStore(), dist.HashStore()]

    def body(rank: int) -> Any:
        group, other = (make_group(store, rank, 3, timeout_s=300.0) for store in stores)
        group.barrier().wait()
        other.barrier().wait()
        failure: Any = None
        if rank == 2:
            leave(group)  # what runs its engine lives on
        else:
            with pytest.raises(PeerLostError, match="has left the group") as caught:
                group.allreduce([torch.ones(4)]).wait()
            failure = caught.value.rank
            leave(group)
        every_collective(other, rank, 3, 100)
        leave(other)
        return failure

    assert on_threads(3, body) == [2, 2, None]


@taco_only
def test_a_rank_that_does_not_come_is_named_when_the_time_is_up() -> None:
    from taco_torch import CollectiveTimeoutError

    store = dist.HashStore()
    gone = threading.Event()

    def body(rank: int) -> str:
        group = make_group(store, rank, 3, timeout_s=5.0)
        if rank == 1:
            assert gone.wait(DEADLINE_S)
            leave(group)
            return "absent"
        try:
            with pytest.raises(CollectiveTimeoutError) as caught:
                group.allreduce([torch.ones(4)]).wait()
        finally:
            gone.set()
        leave(group)
        return str(caught.value)

    texts = on_threads(3, body)
    assert any("rank 1" in str(texts[rank]) for rank in (0, 2)), texts


@taco_only
def test_ranks_that_name_their_group_differently_are_told() -> None:
    store = dist.HashStore()
    results = on_threads(2, lambda rank: make_group(store, rank, 2, name=f"mine-{rank}"))
    for result in results:
        assert "ranks 0 and 1 are threads of one process" in str(result)


@taco_only
def test_threads_come_and_go_and_leave_no_descriptor_or_thread() -> None:
    def life() -> None:
        store = dist.HashStore()
        assert on_threads(3, lambda rank: whole_life(store, rank, 3)) == ["fine"] * 3

    def held() -> dict[str, int]:
        now = footprint()
        return {kind: now[kind] for kind in ("descriptors", "threads", "callback threads")}

    life()
    before = held()
    for _ in range(5):
        life()
    # A thread of an earlier test may have been on its way out, and been counted, at the start.
    deadline = time.monotonic() + DEADLINE_S
    while any(now > before[kind] for kind, now in held().items()):
        assert time.monotonic() < deadline, f"{held()}, not {before}"
        time.sleep(0.01)


@taco_only
def test_statistics_are_of_all_ranks_in_the_process() -> None:
    import taco_torch

    store = dist.HashStore()
    barrier = threading.Barrier(2)

    def body(rank: int) -> Any:
        group = make_group(store, rank, 2)
        group.allreduce([torch.ones(1 << 20)]).wait()
        group.barrier().wait()
        barrier.wait(DEADLINE_S)
        stats = taco_torch.stats()
        barrier.wait(DEADLINE_S)
        leave(group)
        return stats

    for stats in on_threads(2, body):
        assert stats.shm_links == 2, stats  # one of each rank
        assert stats.shm_bytes >= 4 << 20, stats


@taco_only
def test_what_nobody_has_received_yet_is_counted() -> None:
    import taco_torch

    store = dist.HashStore()
    seen = threading.Event()

    def body(rank: int) -> int:
        group = make_group(store, rank, 2)
        value = torch.ones(2)
        if rank == 0:
            group.send([value], 1, 5).wait()
            assert seen.wait(DEADLINE_S)
            leave(group)
            return 0
        deadline = time.monotonic() + DEADLINE_S
        while taco_torch.stats().unmatched == 0 and time.monotonic() < deadline:
            time.sleep(0.001)
        unmatched = taco_torch.stats().unmatched
        group.recv([value], 0, 5).wait()
        seen.set()
        leave(group)
        return unmatched

    assert on_threads(2, body) == [0, 1]


def _several_ranks(port: int, layout: list[int]) -> list[str]:
    """This process is ``layout[rank]`` consecutive ranks of the group."""
    rank = dist.get_rank()
    first, total = sum(layout[:rank]), sum(layout)

    def body(index: int) -> str:
        client = dist.TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)
        prefix = "layout-" + "-".join(map(str, layout))
        return whole_life(dist.PrefixStore(prefix, client), first + index, total)

    results = on_threads(layout[rank], body)
    return [str(result) for result in results]


@taco_only
@pytest.mark.parametrize("layout", [[2, 1, 1, 1], [1, 3, 1, 2]])
def test_a_world_may_be_partly_threads_and_partly_processes(
    ranks: Ranks, layout: list[int]
) -> None:
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    results = ranks.run(_several_ranks, server.port, layout)
    assert results == [["fine"] * count for count in layout]
