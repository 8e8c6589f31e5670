"""Ranks that have no more data."""

from __future__ import annotations

import time

import torch
from horovod_ranks import raises, still_works
from spawn_ranks import Ranks

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
