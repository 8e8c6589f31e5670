"""Collectives inside callbacks of futures: any chain, any order, on every rank the same result.

Ranks attach callbacks and run them at different times on purpose. Sums are of one size, so that an
operation that was matched with another rank's wrong one would give a wrong value and no error.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

pytestmark = taco_only

Future = torch.futures.Future
COUNT = 16
STEPS = 20


def start(value: float) -> Future:
    tensor = torch.full((COUNT,), value * (dist.get_rank() + 1))
    return dist.all_reduce(tensor, async_op=True).get_future()


def total(value: float, rounds: int = 1) -> float:
    """The result of `start(value)`, all-reduced again `rounds - 1` times."""
    world = dist.get_world_size()
    return value * world * (world + 1) / 2 * world ** (rounds - 1)


def dawdle() -> None:
    time.sleep(random.Random(time.monotonic_ns() ^ dist.get_rank()).uniform(0, 0.01))


def again(tensor: torch.Tensor) -> torch.Tensor:
    dawdle()
    tensor = tensor.clone()
    dist.all_reduce(tensor)
    return tensor


def collected_and_chained() -> None:
    """Each pair of operations is collected, and its callback starts two more."""

    def both(future: Future) -> torch.Tensor:
        first, second = (part.value()[0] for part in future.value())
        return again(first) - again(second)

    results = []
    for i in range(8):
        futures = [start(2.0 * i + 5), start(i)]
        if (i + dist.get_rank()) % 2:
            dawdle()
        results.append(
            torch.futures.collect_all(futures).then(both).then(lambda f: again(f.value()))
        )
    for i, result in enumerate(results):
        expected = total(2.0 * i + 5, 3) - total(i, 3)
        assert bool((result.wait() == expected).all()), (i, result.wait()[0], expected)


def collected_twice() -> None:
    """Two collections of the same futures, and two callbacks on each."""
    futures = [start(1), start(10)]
    results = []
    for factor in (1, 100):
        collected = torch.futures.collect_all(futures)
        if dist.get_rank() % 2:
            dawdle()
        for part in (0, 1):
            results.append(
                collected.then(
                    lambda f, part=part, factor=factor: again(f.value()[part].value()[0] * factor)
                )
            )
    expected = [total(value, 2) * factor for factor in (1, 100) for value in (1, 10)]
    assert [result.wait()[0].item() for result in results] == expected


def two_callbacks_on_one_future() -> None:
    """One rank attaches both before the operation is done, the other after."""
    for _ in range(20):
        future = start(3)
        if dist.get_rank() % 2:
            future.wait()
        doubled = future.then(lambda f: again(2 * f.value()[0]))
        tripled = future.then(lambda f: again(3 * f.value()[0]))
        assert doubled.wait()[0].item() == 2 * total(3, 2)
        assert tripled.wait()[0].item() == 3 * total(3, 2)


def main_thread_goes_on() -> None:
    """The program's own collectives pass between those of callbacks."""
    results = [
        torch.futures.collect_all([start(i), start(i)]).then(
            lambda f: again(f.value()[0].value()[0])
        )
        for i in range(10)
    ]
    for _ in range(10):
        tensor = torch.full((COUNT,), float(dist.get_rank() + 1))
        dist.all_reduce(tensor)
        assert tensor[0].item() == total(1)
    for i, result in enumerate(results):
        assert result.wait()[0].item() == total(i, 2)


def across_groups() -> None:
    """The collected operations belong to two groups, and so do those of the callback."""
    other = dist.new_group()

    def both(future: Future) -> list[float]:
        world, group = (part.value()[0].clone() for part in future.value())
        dawdle()
        dist.all_reduce(group, group=other)
        dist.all_reduce(world)
        return [world[0].item(), group[0].item()]

    results = []
    for i in range(6):
        mine = torch.full((COUNT,), float(i))
        theirs = dist.all_reduce(mine, group=other, async_op=True).get_future()
        results.append(torch.futures.collect_all([start(i), theirs]).then(both))
    world = dist.get_world_size()
    for i, result in enumerate(results):
        assert result.wait() == [total(i, 2), i * world * world]
    dist.destroy_process_group(other)


def exchange_in_pairs(futures: Callable[[list[dist.P2POp]], list[Future]]) -> None:
    """Ranks 0 and 1 exchange messages, and their callback calls what the others call outside of
    any: sends and receives have no number by which it could be matched otherwise."""
    rank = dist.get_rank()
    for i in range(10):
        mine, theirs = torch.full((COUNT,), float(rank + i)), torch.zeros(COUNT)
        if rank > 1:
            result = again(mine)
        else:
            pair = [
                dist.P2POp(dist.isend, mine, 1 - rank),
                dist.P2POp(dist.irecv, theirs, 1 - rank),
            ]
            collected = torch.futures.collect_all(futures(pair))
            result = collected.then(lambda _, theirs=theirs: again(theirs)).wait()
        assert result[0].item() == sum(other + i for other in range(dist.get_world_size()))


def in_a_batch(pair: list[dist.P2POp]) -> list[Future]:
    return [work.get_future() for work in dist.batch_isend_irecv(pair)]


def one_by_one(pair: list[dist.P2POp]) -> list[Future]:
    return [one.op(one.tensor, one.peer).get_future() for one in pair]


def futures_of_other_origin() -> None:
    plain: Future = torch.futures.Future()
    collected = torch.futures.collect_all([plain])
    plain.set_result(5)
    assert [part.value() for part in collected.wait()] == [5]
    mixed = torch.futures.collect_all([plain, start(4)])
    assert mixed.then(lambda f: again(f.value()[1].value()[0])).wait()[0].item() == total(4, 2)


def network() -> nn.Module:
    torch.manual_seed(11)
    layers: list[nn.Module] = [nn.Linear(64, 64)]
    for _ in range(3):
        layers += [nn.Tanh(), nn.Linear(64, 64)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(64, 10))


def losses(module: nn.Module, steps: int) -> list[float]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    inputs = torch.randn(64, 64, generator=generator)
    labels = (inputs[:, :10] + 0.1 * torch.randn(64, 10, generator=generator)).argmax(1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(inputs), labels)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def power_sgd_beside_plain() -> tuple[int, float, float, float]:
    """Buckets, first loss, last loss with PowerSGD, last loss without."""
    plain = DistributedDataParallel(network())
    reference = losses(plain, STEPS)
    wrapped = DistributedDataParallel(network(), bucket_cap_mb=0.01)
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=4, start_powerSGD_iter=3, min_compression_rate=1
    )
    buckets: set[int] = set()

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations
        buckets.add(bucket.index())
        dawdle()
        return powerSGD_hook.powerSGD_hook(state, bucket)

    wrapped.register_comm_hook(state, hook)
    found = losses(wrapped, STEPS)
    for parameter in wrapped.parameters():
        mine = parameter.detach().clone()
        dist.broadcast(mine, src=0)
        torch.testing.assert_close(parameter.detach(), mine, rtol=0, atol=0)
    return len(buckets), reference[0], found[-1], reference[-1]


def gradients_of_those_that_still_join() -> list[float]:
    """DDP asks a Work for its future's value as soon as wait() has returned: how many ranks still
    have inputs is the number by which it divides."""
    model = DistributedDataParallel(nn.Linear(5, 5, bias=False))
    found = []
    for whole in (False, True):
        with model.join(divide_by_initial_world_size=whole):
            for _ in range(15 if dist.get_rank() == 0 else 30):
                model(torch.full((1, 5), 50.0)).sum().backward()
                found.append(round(next(model.parameters()).grad[0][0].item(), 3))
                model.zero_grad()
    return found


def test_ddp_divides_by_the_number_of_ranks_that_still_join(three: Ranks) -> None:
    first, *others = three.run(gradients_of_those_that_still_join)
    assert first == [50.0] * 30
    for found in others:
        assert found[:30] == [50.0] * 30
        assert found[30:] == [50.0] * 15 + [33.333] * 15


def test_callbacks_of_collected_futures(ranks: Ranks) -> None:
    ranks.run(collected_and_chained)


def test_futures_collected_twice(ranks: Ranks) -> None:
    ranks.run(collected_twice)


def test_callbacks_attached_before_and_after_the_end(ranks: Ranks) -> None:
    ranks.run(two_callbacks_on_one_future)


def test_callbacks_beside_the_programs_own_collectives(ranks: Ranks) -> None:
    ranks.run(main_thread_goes_on)


def test_callbacks_across_groups(ranks: Ranks) -> None:
    ranks.run(across_groups)


@pytest.mark.parametrize("futures", [in_a_batch, one_by_one])
def test_callbacks_of_sends_and_receives_are_numbered_with_the_program(
    three: Ranks, futures: Callable[[list[dist.P2POp]], list[Future]]
) -> None:
    three.run(exchange_in_pairs, futures)


def test_futures_of_other_origin_are_left_alone(ranks: Ranks) -> None:
    ranks.run(futures_of_other_origin)


def test_power_sgd_with_several_buckets_learns_as_without(three: Ranks) -> None:
    for buckets, first, compressed, plain in three.run(power_sgd_beside_plain, deadline_s=120):
        assert buckets >= 3
        assert plain < 0.7 * first
        assert abs(compressed - plain) < 0.15 * first, (first, compressed, plain)


LEAVES_EARLY = """
import sys, threading, time, torch, torch.distributed as dist, taco_torch
rank = int(sys.argv[1])
store = dist.FileStore(sys.argv[2], 2)
dist.init_process_group("taco", store=store, rank=rank, world_size=2)
if rank == 1:
    store.wait(["rank 0 has attached its callback"])
future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
begun = threading.Event()
def slow(future):
    begun.set()
    time.sleep(0.4)  # while the program ends
    print("ran to its end on", open("/proc/thread-self/comm").read(), flush=True)
if rank == 0:
    future.then(slow)
    store.set("rank 0 has attached its callback", "")
    begun.wait()
else:
    future.wait()
"""


def test_a_callback_that_still_runs_is_waited_for_at_the_exit(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", LEAVES_EARLY, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    texts = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert "ran to its end on taco-callback" in texts[0]
