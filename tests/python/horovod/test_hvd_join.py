"""Ranks that have no more data."""

from __future__ import annotations

import time

import pytest
import torch
from horovod_ranks import raises, still_works
from spawn_ranks import Ranks
from torch import nn

import taco_torch.horovod as hvd


def runs_out() -> list[int]:
    rank, size = hvd.rank(), hvd.size()
    last = []
    for _ in range(3):  # repeatable
        for turn in range(rank + 1):
            active = [r for r in range(size) if r >= turn]
            found = hvd.allreduce(torch.full((2,), 6.0), name=f"turn {turn}", op=hvd.Sum)
            assert found.tolist() == [6.0 * len(active)] * 2
            averaged = hvd.allreduce(torch.full((2,), 6.0), name=f"mean {turn}")
            assert averaged.tolist() == [6.0 * len(active) / size] * 2  # by all ranks
        last.append(hvd.join())
        still_works()
    return last


def test_joined_ranks_give_zeros_and_all_learn_who_was_last(hvd3: Ranks) -> None:
    assert hvd3.run(runs_out) == [[2, 2, 2]] * 3


def counts_anew() -> None:
    for _ in range(1 + hvd.rank()):
        hvd.allreduce(torch.ones(2))
    hvd.join()
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [float(hvd.size())] * 2


def test_unnamed_operations_match_after_a_join(hvd3: Ranks) -> None:
    hvd3.run(counts_anew)


def needs_all() -> None:
    if hvd.rank() == 0:
        assert hvd.join() in (1, 2)
        still_works()
        return
    time.sleep(0.2)  # rank 0 joins first; either way the calls below find it joined or wait for it
    for call in (
        lambda: hvd.allgather(torch.ones(2), name="g"),
        lambda: hvd.broadcast(torch.ones(2), 1, name="b"),
        lambda: hvd.alltoall(torch.ones(3), name="a"),
        lambda: hvd.reducescatter(torch.ones(3), name="r"),
    ):
        text = raises(RuntimeError, call)
        assert "join" in text
    assert hvd.join() in (1, 2)
    still_works()


def test_what_needs_every_rank_is_an_error_while_some_have_joined(hvd3: Ranks) -> None:
    hvd3.run(needs_all)


def trains_in_epochs() -> None:
    """Rank 0 has no batch in the first epoch, when the others find out whose gradients are sparse;
    one each in those that follow."""
    torch.manual_seed(2)
    table = nn.Embedding(6, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), op=hvd.Sum
    )
    for epoch in range(3):
        if epoch or hvd.rank():
            optimizer.zero_grad()
            before = table.weight.detach().clone()
            if epoch:  # sparse gradients are gathered, which needs all ranks
                table(torch.tensor([epoch])).sum().backward()
            optimizer.step()
            changed = (before - table.weight.detach())[:, 0].tolist()
            wanted = [0.0] * 6
            wanted[epoch] = float(hvd.size()) if epoch else 0.0
            assert changed == pytest.approx(wanted)
        assert hvd.join() >= 0
        hvd.broadcast_parameters(table.state_dict(), root_rank=1)
    still_works()


def test_a_rank_without_a_batch_learns_later_whose_gradients_are_sparse(hvd3: Ranks) -> None:
    hvd3.run(trains_in_epochs, deadline_s=20)
