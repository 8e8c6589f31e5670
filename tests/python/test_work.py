"""Work objects: futures, callbacks, polling, timing, coalescing, profiling."""

from __future__ import annotations

import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks
from torch.profiler import ProfilerActivity, profile


def total() -> float:
    return float(sum(range(dist.get_world_size())))


def mine(count: int = 10) -> torch.Tensor:
    return torch.full((count,), float(dist.get_rank()))


def future_holds_the_tensors() -> None:
    tensor = mine(100_000)
    work = dist.all_reduce(tensor, async_op=True)
    value = work.get_future().wait()
    assert isinstance(value, list)
    assert value[0].data_ptr() == tensor.data_ptr()
    assert bool((tensor == total()).all())
    output = torch.zeros(10)
    inputs = torch.cat([mine()] * dist.get_world_size())
    dist.reduce_scatter_tensor(output, inputs, async_op=True).get_future().wait()
    assert bool((output == total()).all())


def callbacks_may_start_collectives_and_wait() -> None:
    """Several at once, each waiting inside its callback, as PowerSGD with several buckets does.

    Every operation has a size of its own, and ranks attach callbacks sooner or later, so that on
    one rank a callback runs at once and on another much later: order must not depend on that."""
    rank, world = dist.get_rank(), dist.get_world_size()
    results = []

    def nested(future: torch.futures.Future) -> torch.Tensor:
        tensor = future.value()[0]
        dist.all_reduce(tensor)
        return tensor

    def nested_again(future: torch.futures.Future) -> torch.Tensor:
        tensor = future.value()
        work = dist.all_reduce(torch.cat([tensor, tensor]), async_op=True)
        return work.get_future().wait()[0][: len(tensor)]

    for i in range(12):
        future = dist.all_reduce(mine(10 + i), async_op=True).get_future()
        if (i + rank) % 3 == 0:
            time.sleep(0.02)
        results.append(future.then(nested).then(nested_again))
    for i, result in enumerate(results):
        value = result.wait()
        assert len(value) == 10 + i
        assert bool((value == total() * world * world).all())


def complete_means_that_the_future_is_done() -> None:
    """Whichever way a Work says it; as with gloo. Also when somebody has attached a callback."""
    polled, waited = 0, 0
    for i in range(300):
        work = dist.all_reduce(mine(1 + i % 7), async_op=True)
        early = work.get_future() if i % 3 else None
        outcome = work.get_future_result() if i % 5 == 0 else None
        if i % 4 == 0 and early is not None:
            early.then(lambda future: None)
        if i % 2:
            work.wait()
            waited += early is not None and not early.done()
        else:
            end = time.monotonic() + 30
            while not work.is_completed():
                assert time.monotonic() < end
            polled += early is not None and not early.done()
        assert work.get_future().done()
        assert outcome is None or outcome.done()
        assert work.get_future().value()[0][0].item() == total()
    assert (waited, polled) == (0, 0), "futures that were not done although the Work was"


def callbacks_of_either_future_may_wait_for_the_work() -> None:
    for i in range(20):
        work = dist.all_reduce(mine(), async_op=True)
        value, outcome = work.get_future(), work.get_future_result()
        first, second = (outcome, value) if i % 2 else (value, outcome)
        waited = [f.then(lambda _, work=work: work.wait()) for f in (first, second)]
        work.wait(timedelta(seconds=30))
        assert [future.wait() for future in waited] == [True, True]


def callbacks_of_a_done_future_run_inline() -> None:
    here = threading.get_ident()
    for i in range(20):
        work = dist.all_reduce(mine(), async_op=True)
        future = work.get_future()
        work.wait()
        seen = future.then(lambda future: (threading.get_ident(), future.value()[0][0].item()))
        assert seen.done()
        assert seen.value() == (here, total()), i


def callbacks_attached_early_run_on_their_own_thread() -> None:
    """The waiter completes the future, but does not run what somebody else attached to it: that may
    need a lock which the waiter holds."""
    rank, world = dist.get_rank(), dist.get_world_size()
    held = threading.Lock()
    seen = []

    def note(future: torch.futures.Future) -> None:
        with held:
            seen.append((threading.get_ident(), future.value()[0][0].item()))

    for _ in range(50):
        work = dist.irecv(torch.zeros(3), (rank - 1) % world)
        chained = work.get_future().then(note)
        dist.barrier()  # nobody has sent before everybody has attached
        sent = dist.isend(mine(3), (rank + 1) % world)
        with held:
            work.wait()
            assert work.get_future().done()
        chained.wait()
        sent.wait()
    assert [value for _, value in seen] == [float((rank - 1) % world)] * 50
    assert threading.get_ident() not in {thread for thread, _ in seen}


def callbacks_of_collected_receives_run_on_their_own_thread() -> None:
    """As those of a single future: whoever waits for a receive does not run them."""
    rank, world = dist.get_rank(), dist.get_world_size()
    seen = []
    for _ in range(50):
        works = [dist.irecv(torch.zeros(3), (rank - 1) % world, tag=tag) for tag in (0, 1)]
        collected = torch.futures.collect_all([work.get_future() for work in works])
        chained = collected.then(lambda _: seen.append(threading.get_ident()))
        dist.barrier()  # nobody has sent before everybody has attached
        sent = [dist.isend(mine(3), (rank + 1) % world, tag=tag) for tag in (0, 1)]
        for work in works + sent:
            work.wait()
        chained.wait()
    assert len(seen) == 50
    assert threading.get_ident() not in seen


def polling_sees_completion() -> None:
    """Nobody waits: what is_completed() says must be so already."""
    tensor = mine(1_000_000)
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
    looked = [f"looked too early/{other}" for other in range(dist.get_world_size()) if other != 1]
    if rank == 1:
        store.wait(looked, timedelta(seconds=30))
    work = dist.all_reduce(tensor, async_op=True)
    if rank != 1:
        assert not work.is_completed()
        store.set(f"looked too early/{rank}", "")
    end = time.monotonic() + 30
    while not work.is_completed():
        assert time.monotonic() < end
    assert bool((tensor == total()).all())
    dist.barrier()
    if rank != 1:
        store.delete_key(f"looked too early/{rank}")


def dropped_work_still_completes() -> None:
    target = torch.zeros(200, 300).t()  # staged: the copy back must happen as well
    target.fill_(dist.get_rank())
    dist.all_reduce(target, async_op=True)
    end = time.monotonic() + 30
    while not bool((target == total()).all()):
        assert time.monotonic() < end
        time.sleep(0.01)
    dist.barrier()


def finite_wait_expires() -> float:
    if dist.get_rank() == 0:
        work = dist.irecv(torch.zeros(1), 1)
        begin = time.monotonic()
        with pytest.raises(RuntimeError, match=r" (Timed out|closed|timeout) "):
            work.wait(timedelta(milliseconds=300))
        elapsed = time.monotonic() - begin
        dist.barrier()
        work.wait()
        return elapsed
    dist.barrier()
    if dist.get_rank() == 1:
        dist.send(torch.zeros(1), 0)
    return 0.3


def work_describes_itself() -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = backend._get_sequence_number_for_group()
    work = dist.all_reduce(mine(), async_op=True)
    work.wait()
    assert work._get_duration() > 0
    assert backend._get_sequence_number_for_group() == before + 1


def coalescing_manager() -> None:
    tensors = [mine(i + 1) for i in range(5)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert all(bool((tensor == total()).all()) for tensor in tensors)
    world = dist.get_world_size()
    outputs = [torch.zeros(world * 3) for _ in range(4)]
    with dist._coalescing_manager():
        for output in outputs:
            dist.all_gather_into_tensor(output, mine(3))
    for output in outputs:
        expected = torch.arange(world).repeat_interleave(3).float()
        torch.testing.assert_close(output, expected)
    scattered = [torch.zeros(3) for _ in range(4)]
    with dist._coalescing_manager():
        for output in scattered:
            dist.reduce_scatter_tensor(output, mine(3 * world))
    assert all(bool((output == total()).all()) for output in scattered)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        first, second = mine(4), mine(5)
        dist.all_reduce(first)
        dist.broadcast(second, src=1)
    manager.wait()
    assert bool((second == 1).all())
    assert bool((first == total()).all())


def profiler_names_operations() -> list[str]:
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        dist.all_reduce(mine())
        dist.barrier()
    return [event.name for event in profiled.events()]


def completion_hook_sees_every_operation() -> int:
    seen = []
    group = dist.new_group()
    group._get_backend(torch.device("cpu"))
    group._register_on_completion_hook(lambda info: seen.append(info.seq))
    for _ in range(5):
        dist.all_reduce(mine(), group=group)
    dist.destroy_process_group(group)
    return len(seen)


def references_to_a_hook_during_an_operation() -> int:
    """That it is counted more often than before. It would have been counted without the GIL."""

    def hook(info: object) -> None:
        pass

    group = dist.new_group()
    group._register_on_completion_hook(hook)
    before = sys.getrefcount(hook)
    more = 0
    if dist.get_rank() == 0:
        works = [dist.all_reduce(mine(), group=group, async_op=True) for _ in range(3)]
        more = sys.getrefcount(hook) - before
        dist.barrier()
    else:
        dist.barrier()
        works = [dist.all_reduce(mine(), group=group, async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    dist.destroy_process_group(group)
    return more


def many_threads_many_groups() -> None:
    groups = [dist.new_group() for _ in range(4)]
    failures: list[BaseException] = []

    def work(group: dist.ProcessGroup, size: int) -> None:
        try:
            for _ in range(30):
                tensor = mine(size)
                dist.all_reduce(tensor, group=group)
                assert bool((tensor == total()).all())
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=(group, 10 ** (i + 1))) for i, group in enumerate(groups)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for group in groups:
        dist.destroy_process_group(group)
    if failures:
        raise failures[0]


@taco_only
def test_future_holds_the_tensors(ranks: Ranks) -> None:
    ranks.run(future_holds_the_tensors)


@taco_only
def test_callbacks_may_start_collectives_and_wait(ranks: Ranks) -> None:
    ranks.run(callbacks_may_start_collectives_and_wait)


def test_a_work_that_is_complete_has_its_future_done(ranks: Ranks) -> None:
    ranks.run(complete_means_that_the_future_is_done)


@taco_only
def test_callbacks_of_either_future_may_wait_for_the_work(ranks: Ranks) -> None:
    ranks.run(callbacks_of_either_future_may_wait_for_the_work)


@taco_only
def test_callbacks_of_a_done_future_run_inline(ranks: Ranks) -> None:
    ranks.run(callbacks_of_a_done_future_run_inline)


@taco_only
def test_callbacks_attached_early_run_on_their_own_thread(ranks: Ranks) -> None:
    ranks.run(callbacks_attached_early_run_on_their_own_thread)


@taco_only
def test_callbacks_of_collected_receives_run_on_their_own_thread(ranks: Ranks) -> None:
    ranks.run(callbacks_of_collected_receives_run_on_their_own_thread)


def test_polling_sees_completion(ranks: Ranks) -> None:
    ranks.run(polling_sees_completion)


@taco_only
def test_a_dropped_work_still_completes(ranks: Ranks) -> None:
    ranks.run(dropped_work_still_completes)


@taco_only
def test_a_finite_wait_expires_and_the_operation_goes_on(ranks: Ranks) -> None:
    for elapsed in ranks.run(finite_wait_expires):
        assert 0.25 <= elapsed < 5


@taco_only
def test_work_has_duration_and_sequence_number(ranks: Ranks) -> None:
    ranks.run(work_describes_itself)


@taco_only
def test_coalescing(ranks: Ranks) -> None:
    ranks.run(coalescing_manager)


@taco_only
def test_profiler_names_operations(ranks: Ranks) -> None:
    for names in ranks.run(profiler_names_operations):
        assert "taco:all_reduce" in names
        assert "taco:barrier" in names


@taco_only
def test_completion_hook_sees_every_operation(ranks: Ranks) -> None:
    assert ranks.run(completion_hook_sees_every_operation) == [5] * ranks.world


@taco_only
def test_operations_do_not_count_references_to_a_completion_hook(ranks: Ranks) -> None:
    assert ranks.run(references_to_a_hook_during_an_operation) == [0] * ranks.world


def test_groups_used_from_several_threads(ranks: Ranks) -> None:
    ranks.run(many_threads_many_groups)


def waits_for_centuries() -> None:
    for limit in (timedelta(days=365 * 300), timedelta(days=365 * 100_000)):
        work = dist.all_reduce(mine(), async_op=True)
        assert work.wait(limit)
        options = dist.AllreduceOptions()
        options.timeout = limit
        dist.group.WORLD.allreduce([mine()], options).wait()
        group = dist.new_group(timeout=limit)
        tensor = mine()
        dist.all_reduce(tensor, group=group)
        assert bool((tensor == total()).all())
        import taco_torch

        taco_torch.monitored_barrier(group, timeout=limit)
        dist.destroy_process_group(group)


@taco_only
def test_a_timeout_of_centuries_ends_nothing(ranks: Ranks) -> None:
    ranks.run(waits_for_centuries)
