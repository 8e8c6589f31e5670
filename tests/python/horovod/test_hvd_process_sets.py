"""Process sets: made, used beside each other, and removed."""

from __future__ import annotations

import torch
from horovod_ranks import raises, still_works
from spawn_ranks import Ranks

import taco_torch.horovod as hvd


def adds_and_removes() -> None:
    rank = hvd.rank()
    pair = hvd.add_process_set([2, 1] if rank else [1, 2])  # in any order
    assert pair.ranks == [1, 2]
    assert pair.process_set_id in hvd.process_set_ids()
    assert pair.size() == 2
    assert pair.included() == (rank in (1, 2))
    if pair.included():
        assert pair.rank() == rank - 1
        found = hvd.allreduce(torch.full((2,), float(rank)), op=hvd.Sum, process_set=pair)
        assert found.tolist() == [3.0, 3.0]
        assert hvd.allgather(torch.tensor([rank]), process_set=pair).tolist() == [1, 2]
        assert hvd.broadcast(torch.tensor([rank]), 2, process_set=pair).tolist() == [2]  # global
        raises(ValueError, lambda: hvd.broadcast(torch.ones(1), 0, process_set=pair))
        halves = hvd.alltoall(torch.tensor([10 * rank, 10 * rank + 1]), process_set=pair)
        assert halves.tolist() == [10 + rank - 1, 20 + rank - 1]
        scattered = hvd.reducescatter(torch.ones(2), op=hvd.Sum, process_set=pair)
        assert scattered.tolist() == [2.0]
        hvd.barrier(process_set=pair)
    else:
        raises(ValueError, pair.rank, "not of the process set")
        raises(ValueError, lambda: hvd.allreduce(torch.ones(1), process_set=pair), "[1, 2]")
        raises(ValueError, lambda: hvd.barrier(process_set=pair), "[1, 2]")
    assert hvd.remove_process_set(pair)
    assert pair.process_set_id is None
    assert pair.size() is pair.rank() is pair.included() is None
    assert not hvd.remove_process_set(pair)
    assert not hvd.remove_process_set(hvd.global_process_set)
    raises(ValueError, lambda: hvd.allreduce(torch.ones(1), process_set=pair), "not registered")
    still_works()


def test_a_process_set_and_its_end(hvd3: Ranks) -> None:
    hvd3.run(adds_and_removes)


def refuses() -> None:
    pair = hvd.add_process_set([0, 2])
    raises(ValueError, lambda: hvd.add_process_set([2, 0]), "already")
    raises(ValueError, lambda: hvd.add_process_set(pair), "already")
    raises(ValueError, lambda: hvd.add_process_set(range(3)), "already")
    raises(ValueError, lambda: hvd.add_process_set([]), "at least one")
    raises(ValueError, lambda: hvd.add_process_set([3]), "beyond 2")
    raises(ValueError, lambda: hvd.ProcessSet([1, 1]), "twice")
    raises(ValueError, lambda: hvd.ProcessSet([-1]), "negative")
    raises(TypeError, lambda: hvd.ProcessSet(["a"]), "list of ranks")
    hvd.remove_process_set(pair)
    raises(RuntimeError, lambda: hvd.add_process_set([0, 1] if hvd.rank() else [0, 2]))
    assert hvd.process_set_ids() == [0]
    still_works()


def test_sets_that_cannot_be(hvd3: Ranks) -> None:
    hvd3.run(refuses)


def beside_each_other() -> None:
    rank = hvd.rank()
    even, odd = hvd.add_process_set([0, 2]), hvd.add_process_set([1])
    mine = odd if rank == 1 else even
    for turn in range(20 if rank == 1 else 7):  # in their own time
        total = hvd.allreduce(torch.ones(4), name="same", op=hvd.Sum, process_set=mine)
        assert total.tolist() == [float(mine.size() or 0)] * 4, turn
    still_works()
    hvd.remove_process_set(odd)
    hvd.remove_process_set(even)


def test_disjoint_sets_do_not_wait_for_each_other(hvd3: Ranks) -> None:
    hvd3.run(beside_each_other)


def many() -> None:
    first = hvd.add_process_set([0, 1])
    assert first.process_set_id is not None
    hvd.remove_process_set(first)
    for _ in range(200):
        made = hvd.add_process_set([0, 1])
        hvd.remove_process_set(made)
    assert hvd.process_set_ids() == [0]
    still_works()


def test_many_sets_one_after_another(hvd3: Ranks) -> None:
    hvd3.run(many)
