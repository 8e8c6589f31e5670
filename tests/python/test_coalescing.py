"""Batches of messages and coalescing blocks: nothing of another thread's waits for their end, and
nothing that follows an error in one returns undone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks

import taco_torch

CPU = torch.device("cpu")


def all_reduce_is_done() -> None:
    tensor = torch.full((16,), float(dist.get_rank()))
    dist.all_reduce(tensor)
    assert bool((tensor == sum(range(dist.get_world_size()))).all()), "it returned undone"


def in_a_thread(function: Callable[[], None]) -> tuple[threading.Thread, list[BaseException]]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


def ring_of_messages(number: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    received = torch.zeros(64)
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((64,), rank * 1000.0 + number), (rank + 1) % world),
            dist.P2POp(dist.irecv, received, (rank - 1) % world),
        ]
    ):
        work.wait()
    assert bool((received == (rank - 1) % world * 1000.0 + number).all())


def batches_beside_collectives() -> None:
    thread, errors = in_a_thread(lambda: [ring_of_messages(i) for i in range(200)] and None)
    for _ in range(200):
        all_reduce_is_done()
    thread.join(60)
    assert not thread.is_alive()
    assert not errors, errors


def a_block_of_another_thread(device: torch.device | None) -> None:
    """It stays open until this thread's collective has returned."""
    opened, done = threading.Event(), threading.Event()
    tensor = torch.full((4,), 1.0)

    def block() -> None:
        with dist._coalescing_manager(device=device, async_ops=True) as manager:
            opened.set()
            assert done.wait(30)
            dist.all_reduce(tensor)
        manager.wait()
        assert bool((tensor == dist.get_world_size()).all())

    thread, errors = in_a_thread(block)
    assert opened.wait(30)
    all_reduce_is_done()
    done.set()
    thread.join(60)
    assert not thread.is_alive()
    assert not errors, errors
    all_reduce_is_done()


def expanded_buffer() -> None:
    peer = (dist.get_rank() + 1) % dist.get_world_size()
    dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.zeros(1).expand(4), peer)])


def negative_tag() -> None:
    peer = (dist.get_rank() + 1) % dist.get_world_size()
    dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(2), peer, tag=-5)])


def wrong_size() -> None:
    with dist._coalescing_manager(async_ops=True):
        dist.all_gather_into_tensor(torch.zeros(7), torch.ones(2))


def of_the_program() -> None:
    with dist._coalescing_manager():
        raise KeyError("the program's own")


def of_the_program_on_a_device() -> None:
    with dist._coalescing_manager(device=CPU):
        dist.all_reduce(torch.ones(1))
        raise KeyError("the program's own")


def errors_leave_no_block_open() -> None:
    for call in (
        expanded_buffer,
        negative_tag,
        wrong_size,
        of_the_program,
        of_the_program_on_a_device,
    ):
        with pytest.raises((ValueError, RuntimeError, KeyError)):
            call()
        all_reduce_is_done()
        ring_of_messages(7)
        with dist._coalescing_manager(device=CPU, async_ops=True) as manager:
            tensor = torch.ones(3)
            dist.all_reduce(tensor)
        manager.wait()
        assert bool((tensor == dist.get_world_size()).all())


def messages_to_oneself() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for size in (0, 5, 70_000, 1_000_000):
        operations = []
        received = [torch.zeros(size + peer, dtype=torch.int32) for peer in range(world)]
        for peer in range(world):
            mine = torch.full((size + rank,), rank * 10 + peer, dtype=torch.int32)
            operations.append(dist.P2POp(dist.isend, mine, peer))
            operations.append(dist.P2POp(dist.irecv, received[peer], peer))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        for peer in range(world):
            assert bool((received[peer] == peer * 10 + rank).all())
    works = [dist.isend(torch.tensor([float(tag)]), rank, tag=tag) for tag in (7, 8)]
    for tag in (8, 7):
        one = torch.zeros(1)
        work = dist.irecv(one, rank, tag=tag)
        assert work is not None
        work.wait()
        assert one.item() == tag
    for sent in works:
        assert sent is not None
        sent.wait()


VICTIM = 2


def batch_with(peers: list[int], dies: bool = False) -> None:
    """To and from each of them. Who dies has sent nothing: others might have all of it before."""
    operations = []
    for peer in peers:
        if not dies:
            operations.append(dist.P2POp(dist.isend, torch.ones(70_000), peer))
        operations.append(dist.P2POp(dist.irecv, torch.zeros(70_000), peer))
    works = dist.batch_isend_irecv(operations)
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    for work in works:
        work.wait()


def batch_of_all(dies: bool = False) -> None:
    batch_with([peer for peer in range(3) if peer != dist.get_rank()], dies)


def block_of_all(device: torch.device | None, dies: bool = False) -> None:
    tensors = [torch.ones(70_000) for _ in range(3)]
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
    manager.wait()
    assert bool((tensors[-1] == 3).all()), "it returned undone"


def captured_block(dies: bool = False) -> None:
    block_of_all(None, dies)


def started_block(dies: bool = False) -> None:
    block_of_all(CPU, dies)


def names_the_dead(call: Callable[[], object]) -> None:
    with pytest.raises(taco_torch.PeerLostError) as caught:
        call()
    assert caught.value.rank == VICTIM


def three_times(call: Callable[[bool], None]) -> None:
    for _ in range(3):
        call(False)


def one_dies_in_the_middle(call: Callable[[bool], None]) -> None:
    if dist.get_rank() == VICTIM:
        call(True)
    for again in (
        lambda: call(False),
        lambda: call(False),
        batch_of_all,
        captured_block,
        started_block,
        lambda: batch_with([1 - dist.get_rank()]),
        all_reduce_is_done,
        dist.barrier,
    ):
        names_the_dead(again)


@taco_only
@pytest.mark.parametrize("call", [batch_of_all, captured_block, started_block])
def test_a_rank_that_dies_in_the_middle_is_named_by_this_wait_and_all_later_ones(
    transport: str, call: Callable[[bool], None]
) -> None:
    with Ranks(3, {"TACO_TRANSPORT": transport, "TACO_LOG": "error"}) as ranks:
        ranks.initialise()
        # All three have returned before one dies: what it had received but not yet acknowledged
        # would be a send that failed.
        ranks.run(three_times, call)
        for rank in range(3):
            ranks.begin(rank, one_dies_in_the_middle, call)
        for outcome in ranks.gather([0, 1], 60):
            assert outcome.ok, outcome.trace
        assert ranks.gather([VICTIM])[0].exit_code == -signal.SIGKILL


@taco_only
def test_collectives_beside_batches_of_another_thread_are_done(three: Ranks) -> None:
    three.run(batches_beside_collectives)


@taco_only
@pytest.mark.parametrize("device", [None, CPU], ids=["captured", "started"])
def test_a_block_of_one_thread_puts_off_nothing_of_another(
    three: Ranks, device: torch.device | None
) -> None:
    three.run(a_block_of_another_thread, device)


@taco_only
def test_an_error_in_a_block_ends_it(three: Ranks) -> None:
    three.run(errors_leave_no_block_open)


@taco_only
def test_a_rank_exchanges_messages_with_itself_in_batches_too(three: Ranks) -> None:
    three.run(messages_to_oneself)
