"""Mistakes: what differs between ranks is an error on all of them and leaves the job usable; local
ones are errors at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from horovod_ranks import raises, still_works
from spawn_ranks import Ranks

import taco_torch.horovod as hvd


def other_shape() -> object:
    return hvd.allreduce(torch.ones(3 + (hvd.rank() == 1)), name="m")


def other_dimensions() -> object:
    return hvd.allreduce(torch.ones((6,) if hvd.rank() else (2, 3)), name="m")


def other_dtype() -> object:
    kind = torch.float64 if hvd.rank() == 2 else torch.float32
    return hvd.allreduce(torch.ones(3, dtype=kind), name="m")


def other_reduction() -> object:
    return hvd.allreduce(torch.ones(3), name="m", op=hvd.Max if hvd.rank() else hvd.Min)


def other_factor() -> object:
    return hvd.allreduce(torch.ones(3), name="m", prescale_factor=1.0 + hvd.rank())


def other_root() -> object:
    return hvd.broadcast(torch.ones(3), root_rank=hvd.rank(), name="m")


def other_broadcast_shape() -> object:
    return hvd.broadcast(torch.ones(3 + hvd.rank()), root_rank=0, name="m")


def other_trailing_dimension() -> object:
    return hvd.allgather(torch.ones(2, 3 + hvd.rank()), name="m")


def other_gathered_dtype() -> object:
    kind = torch.uint8 if hvd.rank() else torch.int8
    return hvd.allgather(torch.ones(2, dtype=kind), name="m")


def other_trailing_dimension_in_alltoall() -> object:
    return hvd.alltoall(torch.ones(3, 1 + hvd.rank()), name="m")


def other_scattered_shape() -> object:
    return hvd.reducescatter(torch.ones(3 + hvd.rank()), name="m")


def other_group() -> object:
    tensors = [torch.ones(2), torch.ones(2 + hvd.rank())]
    return hvd.grouped_allreduce(tensors, name="m")


MISMATCHES = [
    other_shape,
    other_dimensions,
    other_dtype,
    other_reduction,
    other_factor,
    other_root,
    other_broadcast_shape,
    other_trailing_dimension,
    other_gathered_dtype,
    other_trailing_dimension_in_alltoall,
    other_scattered_shape,
    other_group,
]


def differs(call: Callable[[], object]) -> str:
    text = raises(RuntimeError, call, "rank")
    with pytest.raises(RuntimeError) as caught:
        call()
    assert not isinstance(caught.value, hvd.HorovodInternalError)  # nothing to recover from
    still_works()
    return text


@pytest.mark.parametrize("call", MISMATCHES, ids=lambda call: call.__name__)
def test_what_differs_is_an_error_on_every_rank(hvd3: Ranks, call: Callable[[], object]) -> None:
    hvd3.run(differs, call)


def takes_a_name_twice() -> None:
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(2), name="twice")
        raises(ValueError, lambda: hvd.allreduce_async(torch.ones(2), name="twice"), "twice")
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(torch.ones(2), name="twice")
    assert hvd.synchronize(handle).tolist() == [1.0, 1.0]
    hvd.allreduce(torch.ones(2), name="twice")  # free again


def test_a_name_that_is_pending_is_refused_at_once(hvd3: Ranks) -> None:
    hvd3.run(takes_a_name_twice)


def local_mistakes() -> None:
    crossed = torch.ones(2, 3).t()
    for call in (hvd.allreduce, hvd.allgather, hvd.reducescatter, hvd.allreduce_):
        raises(ValueError, lambda call=call: call(crossed), "not contiguous")
    raises(ValueError, lambda: hvd.broadcast_(crossed, 0), "not contiguous")
    for dtype in (torch.uint8, torch.int16, torch.complex64):
        wrong = torch.ones(3, dtype=dtype)
        raises(ValueError, lambda wrong=wrong: hvd.allreduce(wrong), str(dtype))
        raises(ValueError, lambda wrong=wrong: hvd.grouped_allreduce([wrong]), str(dtype))
    sparse = torch.eye(3).to_sparse()
    raises(ValueError, lambda: hvd.allreduce(sparse), "sparse_allreduce_async")
    raises(TypeError, lambda: hvd.allreduce_async([1.0]), "tensors")
    raises(NotImplementedError, lambda: hvd.allreduce(torch.ones(2, device="meta")), "meta")
    raises(ValueError, lambda: hvd.broadcast(torch.ones(2), root_rank=3), "3")
    raises(ValueError, lambda: hvd.broadcast(torch.ones(2), root_rank=-1), "-1")
    raises(TypeError, lambda: hvd.allreduce(torch.ones(2), process_set=0), "process_set")
    still_works()


def test_local_mistakes_need_no_other_rank(hvd3: Ranks) -> None:
    hvd3.run(local_mistakes)


def wrong_splits() -> None:
    six = torch.ones(6)
    for splits, text in (
        ([3, 3, 3], "6 rows"),
        ([7, -1, 0], "6 rows"),
        ([3, 3], "each of the 3"),
        (torch.tensor([2, 2, 2]), "int32"),
        (torch.tensor([2.0, 2.0, 2.0]), "int32"),
        (torch.ones(3, 1, dtype=torch.int32), "each of the 3"),
    ):
        raises(ValueError, lambda splits=splits: hvd.alltoall(six, splits), text)
    raises(ValueError, lambda: hvd.alltoall(torch.ones(7)), "cannot be shared")
    still_works()


def test_splits_that_do_not_fit(hvd3: Ranks) -> None:
    hvd3.run(wrong_splits)


def wrong_scatters() -> None:
    for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
        raises(RuntimeError, lambda op=op: hvd.reducescatter(torch.ones(3), op=op), op.name)
    scalar = torch.tensor(1.0)
    raises(RuntimeError, lambda: hvd.reducescatter(scalar), "without dimensions")
    raises(RuntimeError, lambda: hvd.allgather(scalar), "without dimensions")
    raises(RuntimeError, lambda: hvd.alltoall(scalar), "without dimensions")
    still_works()


def test_reducescatter_is_for_sums_of_rows(hvd3: Ranks) -> None:
    hvd3.run(wrong_scatters)
