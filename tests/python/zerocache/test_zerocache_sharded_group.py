"""The program uses the group of ranks for something else, while parameters are gathered ahead."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks
from test_zerocache_sharded import assert_same_parameters
from torch import nn
from zerocache_models import TinyGPT
from zerocache_ranks import adamw, alone, own_batches, train
from zerocache_spread import average, sharded

pytestmark = taco_only

STEPS = 4  # in the later ones, what comes next is known
CALLS = 200


def total(value: float) -> float:
    """Over all ranks."""
    summed = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(summed)
    return summed.item()


def expected(factor: float) -> float:
    return sum(factor * (1 + rank) for rank in range(dist.get_world_size()))


class Busy:
    """A program's own use of the group in between, which it checks."""

    def __init__(self) -> None:
        self.calls = 0
        self.pending: list[tuple[torch.Tensor, Any, float]] = []

    def reduce(self, *_: object) -> None:
        self.calls += 1
        assert total(self.calls * (1.0 + dist.get_rank())) == expected(self.calls)

    def begin(self, *_: object) -> None:
        """One that ends later."""
        self.calls += 1
        value = torch.full((1000,), self.calls * (1.0 + dist.get_rank()))
        self.pending.append((value, dist.all_reduce(value, async_op=True), expected(self.calls)))

    def finish(self) -> None:
        for value, work, wanted in self.pending:
            work.wait()
            assert torch.equal(value, torch.full((1000,), wanted))
        self.pending.clear()

    def hook(self, model: nn.Module) -> None:
        blocks = list(model.blocks)  # type: ignore[arg-type]
        blocks[0].register_forward_hook(self.reduce)
        blocks[1].register_forward_pre_hook(self.begin)
        blocks[0].up.register_full_backward_hook(self.reduce)
        blocks[1].down.register_full_backward_hook(self.begin)
        model.norm.weight.register_hook(self.reduce)  # type: ignore[union-attr, operator]


def train_busy(folder: str, early: bool) -> None:
    cache, model, optimizer = sharded(folder, TinyGPT(3), step_in_backward=early)
    theirs, busy, data = alone(folder, TinyGPT(3), adamw), Busy(), own_batches()
    busy.hook(model)
    for _ in range(STEPS):
        tokens = next(data)
        busy.begin()
        loss = model(tokens)
        busy.reduce()
        total(loss.item())
        loss.backward()
        objects: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(objects, {"rank": dist.get_rank()})
        assert [each["rank"] for each in objects] == list(range(dist.get_world_size()))
        busy.finish()
        optimizer.step()
        dist.barrier()
        optimizer.zero_grad()
        _, other, other_optimizer = theirs
        other_optimizer.zero_grad()
        other(tokens).backward()
        average(other)
        other_optimizer.step()
    assert busy.calls == STEPS * 7
    assert cache.stats()["gathers"]["ahead"] > 0
    assert_same_parameters(cache, theirs[0])
    cache.close()


def test_the_group_may_be_used_in_between(job: Ranks, tmp_path: Path) -> None:
    job.run(train_busy, str(tmp_path), False)


def test_the_group_may_be_used_beside_steps_in_the_backward_pass(
    job: Ranks, tmp_path: Path
) -> None:
    job.run(train_busy, str(tmp_path), True)


def train_beside_a_thread(folder: str) -> None:
    """Calls of a thread of the program come at any moment, so the cache has another group."""
    own = dist.new_group()
    cache, model, optimizer = sharded(folder, TinyGPT(3), process_group=own)
    found: list[float] = []
    thread = threading.Thread(
        target=lambda: found.extend(total(1.0 + dist.get_rank()) for _ in range(CALLS))
    )
    thread.start()
    data = own_batches()
    try:
        train(model, optimizer, STEPS, data)
    finally:
        thread.join()
    assert found == [expected(1.0)] * CALLS
    cache.close()
    dist.destroy_process_group(own)


def test_a_thread_may_use_the_default_group_where_the_cache_has_another(
    job: Ranks, tmp_path: Path
) -> None:
    job.run(train_beside_a_thread, str(tmp_path))
