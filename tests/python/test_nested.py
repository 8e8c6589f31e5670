"""Operations that callbacks start, and those of several stages: they go on when the program drops
them, need no thread, and end with the group that they belong to."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks

import taco_torch

pytestmark = taco_only

DEADLINE_S = 30  # far below the groups' timeout, which a wait that nobody ends would last
GROUP_TIMEOUT_S = 120
SHORT = timedelta(seconds=4)  # and long enough for ranks to come to one operation
CALLBACK_THREADS = 64  # all that a process has

Future = torch.futures.Future


@pytest.fixture
def fresh(transport: str) -> Iterator[Ranks]:
    with Ranks(3, {"TACO_TRANSPORT": transport, "TACO_LOG": "error"}) as ranks:
        yield ranks.initialise(timeout_s=GROUP_TIMEOUT_S)


def store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()


def backend() -> dist.Backend:
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def await_that(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def sparse(value: float) -> torch.Tensor:
    return torch.sparse_coo_tensor(
        torch.tensor([[0, 2]]), torch.full((2,), value), (4,), check_invariants=True
    )


def forgotten_by_all_but_one() -> None:
    """Rank 0's callback starts an operation whose future it drops, and so is its own."""
    tensor = torch.full((5,), dist.get_rank() + 1.0)

    def begin(_: Future) -> None:
        dist.all_reduce(tensor, async_op=True)

    first = dist.all_reduce(torch.ones(3), async_op=True)
    if dist.get_rank() == 1:
        first.wait()
        time.sleep(1.5)  # longer than a group that is closed waits for what is open
    first.get_future().then(begin)
    del first
    await_that(lambda: bool((tensor == 6).all()))
    dist.barrier()


def sparse_in_callbacks() -> None:
    """The callbacks start theirs in one order on even ranks, in the other on odd ones."""
    started = [threading.Event(), threading.Event()]
    others_first = dist.get_rank() % 2
    tensors = [sparse(10.0**i * (dist.get_rank() + 1)) for i in range(2)]

    def begin(i: int) -> Callable[[Future], None]:
        def callback(_: Future) -> None:
            if i != others_first:
                assert started[others_first].wait(DEADLINE_S)
            work = dist.all_reduce(tensors[i], async_op=True)
            started[i].set()
            work.wait()

        return callback

    futures = [dist.all_reduce(torch.ones(3), async_op=True).get_future() for _ in range(2)]
    order = [others_first, 1 - others_first]  # one that is done runs its callback at once
    threads = [threading.Thread(target=lambda i=i: futures[i].then(begin(i)).wait()) for i in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    world = dist.get_world_size()
    total = world * (world + 1) / 2
    for i, tensor in enumerate(tensors):
        expected = torch.tensor([total, 0, total, 0]) * 10.0**i
        assert torch.equal(tensor.to_dense(), expected), (i, tensor)


def await_open(group: str) -> None:
    """Until on each rank but 1 an operation of a group with that ending waits for rank 1."""
    if dist.get_rank() != 1:
        open_there = re.compile(rf"{group}'[^\n]*\n  (?!nothing)")
        await_that(lambda: open_there.search(taco_torch.dump()) is not None)
        store().set(f"{dist.get_rank()} is open", "")
    store().wait(["0 is open", "2 is open"], timedelta(seconds=DEADLINE_S))


def open_nested() -> Future:
    """An operation that rank 1 never starts."""
    first = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    if dist.get_rank() == 1:
        first.wait()
        return first

    def begin(_: Future) -> Future:
        return dist.all_reduce(torch.ones(4), async_op=True)

    return first.then(begin).wait()


@contextlib.contextmanager
def no_thread_for_callbacks() -> Iterator[None]:
    """Callbacks of rank 1 wait while this lasts."""
    begun, free = threading.Semaphore(0), threading.Event()

    def hold(_: Future) -> None:
        begun.release()
        free.wait(2 * DEADLINE_S)

    if dist.get_rank() != 1:
        store().wait(["attached"], timedelta(seconds=DEADLINE_S))
    works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(CALLBACK_THREADS)]
    if dist.get_rank() == 1:
        for work in works:
            work.get_future().then(hold)
        store().set("attached", "")
        for _ in works:
            assert begun.acquire(timeout=DEADLINE_S)
    try:
        yield
    finally:
        free.set()


def sparse_beside_blocked_callbacks() -> None:
    with no_thread_for_callbacks():
        tensor = sparse(dist.get_rank() + 1.0)
        dist.all_reduce(tensor)
    world = dist.get_world_size()
    total = world * (world + 1) / 2
    assert torch.equal(tensor.to_dense(), torch.tensor([total, 0, total, 0]))


def sparse_ends_by(until: Callable[[], None]) -> None:
    """Rank 1 never starts its own."""
    if until is time_passes:
        backend().set_timeout(SHORT)
    if dist.get_rank() == 1:
        store().wait(["0 is done", "2 is done"], timedelta(seconds=DEADLINE_S))
        return
    try:
        work = dist.all_reduce(sparse(1.0), async_op=True)
        store().set(f"{dist.get_rank()} has started", "")
        store().wait(["0 has started", "2 has started"], timedelta(seconds=DEADLINE_S))
        until()
        with pytest.raises(expected_of(until)):
            work.wait()
    finally:
        store().set(f"{dist.get_rank()} is done", "")


def expected_of(until: Callable[[], None]) -> type[Exception]:
    return {
        time_passes: taco_torch.CollectiveTimeoutError,
        abort_on_rank_0: taco_torch.AbortedError,
        disagree: taco_torch.MismatchError,
    }[until]


def time_passes() -> None:
    pass


def abort_on_rank_0() -> None:
    if dist.get_rank() == 0:
        backend().abort()


def disagree() -> None:
    tensor = torch.ones(3 + dist.get_rank())
    with pytest.raises(taco_torch.MismatchError):
        dist.all_reduce(tensor)


def nested_ends_by(until: Callable[[], None]) -> None:
    if until is time_passes:
        backend().set_timeout(SHORT)
    work = open_nested()
    if until is not time_passes:
        await_open("/callback")
    until()
    if dist.get_rank() != 1:
        with pytest.raises(expected_of(until)):
            work.wait()


def started_after_the_failure() -> None:
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    future.wait()
    dist.barrier()
    disagree()

    def begin(_: Future) -> None:
        dist.all_reduce(torch.ones(4))

    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match="disagree about operation"):
            future.then(begin).wait()


def test_an_operation_whose_future_is_dropped_waits_for_the_others(fresh: Ranks) -> None:
    fresh.run(forgotten_by_all_but_one, deadline_s=2 * DEADLINE_S)


def test_sparse_operations_of_callbacks_are_numbered_by_their_callback(fresh: Ranks) -> None:
    fresh.run(sparse_in_callbacks, deadline_s=2 * DEADLINE_S)


@pytest.mark.parametrize("until", [abort_on_rank_0, disagree])
def test_what_a_callback_waits_for_ends_with_its_group(
    fresh: Ranks, until: Callable[[], None]
) -> None:
    fresh.run(nested_ends_by, until, deadline_s=DEADLINE_S)


def test_a_sparse_operation_needs_no_thread_for_callbacks(fresh: Ranks) -> None:
    fresh.run(sparse_beside_blocked_callbacks, deadline_s=2 * DEADLINE_S)


def test_a_sparse_operation_ends_with_its_group(fresh: Ranks) -> None:
    fresh.run(sparse_ends_by, abort_on_rank_0, deadline_s=DEADLINE_S)


def test_a_callback_learns_that_its_group_has_failed(fresh: Ranks) -> None:
    fresh.run(started_after_the_failure, deadline_s=DEADLINE_S)


@pytest.mark.parametrize("function", [nested_ends_by, sparse_ends_by])
def test_a_groups_new_timeout_is_that_of_what_belongs_to_it(
    fresh: Ranks, function: Callable[[Callable[[], None]], None]
) -> None:
    fresh.run(function, time_passes, deadline_s=DEADLINE_S)
