"""The operations compute what they say, in all their forms."""

from __future__ import annotations

import threading

import pytest
import torch
from horovod_ranks import still_works
from spawn_ranks import Ranks

import taco_torch.horovod as hvd

REDUCED = [
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
MOVED = [*REDUCED, torch.uint8, torch.int8, torch.int16, torch.bool]


def own(shape: tuple[int, ...], dtype: torch.dtype, rank: int | None = None) -> torch.Tensor:
    """Small whole numbers, which every dtype adds exactly, others on each rank."""
    count = torch.Size(shape).numel()
    first = 1 + (hvd.rank() if rank is None else rank)
    values = (torch.arange(count) * first) % 7 - (0 if dtype is torch.uint8 else 3)
    return values.view(shape).to(dtype)


def everyone(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    return [own(shape, dtype, rank) for rank in range(hvd.size())]


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected), (found, expected)


def reduces(dtype: torch.dtype) -> None:
    for shape in [(5,), (2, 3), (2, 1, 4), (), (0, 3)]:
        mine, given = own(shape, dtype), everyone(shape, dtype)
        wide = torch.stack(given).to(torch.float64)
        before = mine.clone()
        same(hvd.allreduce(mine, op=hvd.Sum), wide.sum(0).to(dtype))
        same(hvd.allreduce(mine, op=hvd.Min), wide.amin(0).to(dtype))
        same(hvd.allreduce(mine, op=hvd.Max), wide.amax(0).to(dtype))
        same(hvd.allreduce(mine, op=hvd.Product), wide.prod(0).to(dtype))
        same(mine, before)  # the input is left alone
        average = hvd.allreduce(mine)
        if dtype.is_floating_point:
            assert torch.allclose(average.double(), wide.mean(0), rtol=1e-2, atol=1e-3)
        else:
            same(average, (wide.sum(0) / hvd.size()).trunc().to(dtype))
        same(hvd.allreduce_(mine, op=hvd.Sum), wide.sum(0).to(dtype))
        same(mine, wide.sum(0).to(dtype))


@pytest.mark.parametrize("dtype", REDUCED, ids=str)
def test_allreduce_of_every_dtype_and_reduction(hvd3: Ranks, dtype: torch.dtype) -> None:
    hvd3.run(reduces, dtype)


def says_average() -> None:
    one = torch.ones(2)
    with pytest.warns(DeprecationWarning, match="op=hvd"):
        assert hvd.allreduce(one, average=False).tolist() == [hvd.size()] * 2
    with pytest.warns(DeprecationWarning, match="op=hvd"):
        assert hvd.allreduce(one, average=True).tolist() == [1.0] * 2
    with pytest.raises(ValueError, match="average"):
        hvd.allreduce(one, average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="op is 77"):
        hvd.allreduce(one, op=77)


def test_the_older_argument_average(hvd3: Ranks) -> None:
    hvd3.run(says_average)


def scales() -> None:
    whole = torch.tensor([3, 5, -7], dtype=torch.int64)
    found = hvd.allreduce(whole, op=hvd.Sum, prescale_factor=0.5)
    same(found, torch.tensor([1, 2, -3]) * hvd.size())  # 1.5 becomes 1 before the sum
    found = hvd.allreduce(whole, op=hvd.Sum, postscale_factor=0.5)
    same(found, (whole * hvd.size() * 0.5).trunc().to(torch.int64))
    half = torch.tensor([1.0, 2049.0], dtype=torch.float16)
    found = hvd.allreduce(half, op=hvd.Sum, prescale_factor=1 / 3)
    expected = (half.float() * torch.tensor(1 / 3)).half()
    same(found, sum(expected.float() for _ in range(hvd.size())).half())
    found = hvd.allreduce(torch.ones(2), prescale_factor=4.0, postscale_factor=0.5)
    same(found, torch.full((2,), 2.0))


def test_factors_before_and_after(hvd3: Ranks) -> None:
    hvd3.run(scales)


def groups() -> None:
    shapes = [(3,), (2, 2), (5, 1)]
    tensors = [own(shape, torch.float32) for shape in shapes]
    expected = [torch.stack(everyone(shape, torch.float32)).sum(0) for shape in shapes]
    for found, wanted in zip(hvd.grouped_allreduce(tensors, op=hvd.Sum), expected, strict=True):
        same(found, wanted)
    mixed = [own((3,), torch.float32), own((4,), torch.int64), own((2,), torch.float32)]
    wanted = [
        torch.stack(everyone((3,), torch.float32)).sum(0),
        torch.stack(everyone((4,), torch.int64)).sum(0),
        torch.stack(everyone((2,), torch.float32)).sum(0),
    ]
    returned = hvd.grouped_allreduce_(mixed, op=hvd.Sum, name="mixed")
    for found, kept, want in zip(returned, mixed, wanted, strict=True):
        assert found is kept
        same(found, want)


def test_grouped_allreduce_of_one_dtype_and_of_several(hvd3: Ranks) -> None:
    hvd3.run(groups)


def moves(dtype: torch.dtype) -> None:
    rank, size = hvd.rank(), hvd.size()
    rows = [own((r + 1, 2), dtype, r) for r in range(size)]
    same(hvd.allgather(rows[rank]), torch.cat(rows))
    empty = rows[rank] if rank else rows[rank][:0]  # rank 0 has nothing
    same(hvd.allgather(empty), torch.cat([rows[0][:0], *rows[1:]]))
    for root in range(size):
        same(hvd.broadcast(rows[0] if root == rank else rows[0].clone(), root), rows[0])
        mine = own((2, 3), dtype)
        before = mine.clone()
        wanted = own((2, 3), dtype, root)
        same(hvd.broadcast(mine, root), wanted)
        same(mine, before)
        same(hvd.broadcast_(mine, root), wanted)
        same(mine, wanted)
    splits = torch.arange(size, dtype=torch.int32) + rank  # r + i rows from r to i
    sent = [own((int(size * (size - 1) / 2) + size * r, 2), dtype, r) for r in range(size)]
    received, counts = hvd.alltoall(sent[rank], splits)
    starts = [sum(i + r for i in range(rank)) for r in range(size)]
    parts = [sent[r][starts[r] : starts[r] + r + rank] for r in range(size)]
    same(received, torch.cat(parts))
    assert counts.tolist() == [r + rank for r in range(size)]
    even = hvd.alltoall(own((size * 2,), dtype))
    whole = everyone((size * 2,), dtype)
    same(even, torch.cat([each[rank * 2 : rank * 2 + 2] for each in whole]))


@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_data_of_every_dtype_move(hvd3: Ranks, dtype: torch.dtype) -> None:
    hvd3.run(moves, dtype)


def sends_fewer_rows() -> None:
    rank, size = hvd.rank(), hvd.size()
    tensor = torch.arange(10.0) + 100 * rank
    received, counts = hvd.alltoall(tensor, [1] * size)
    assert received.tolist() == [float(rank + 100 * r) for r in range(size)]
    assert counts.tolist() == [1] * size
    assert counts.dtype == torch.int32


def test_alltoall_leaves_rows_that_no_split_names(hvd3: Ranks) -> None:
    hvd3.run(sends_fewer_rows)


def gathers_groups() -> None:
    rank, size = hvd.rank(), hvd.size()
    a, b = [own((r + 1,), torch.float64, r) for r in range(size)], everyone((2, 2), torch.int16)
    found = hvd.grouped_allgather([a[rank], b[rank]])
    same(found[0], torch.cat(a))
    same(found[1], torch.cat(b))


def test_grouped_allgather(hvd3: Ranks) -> None:
    hvd3.run(gathers_groups)


def scatters() -> None:
    rank, size = hvd.rank(), hvd.size()
    for rows in (size, size + 1, 2 * size - 1, 1, 0):
        total = torch.stack(everyone((rows, 2), torch.float32)).sum(0)
        counts = [rows // size + (r < rows % size) for r in range(size)]
        wanted = total.split(counts)[rank]
        same(hvd.reducescatter(own((rows, 2), torch.float32), op=hvd.Sum), wanted)
        assert torch.allclose(hvd.reducescatter(own((rows, 2), torch.float32)), wanted / size)
    scaled = hvd.reducescatter(
        torch.ones(size), op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0
    )
    assert scaled.tolist() == [6.0 * size]
    pair = hvd.grouped_reducescatter([torch.ones(size), torch.ones(size, 3)], op=hvd.Sum)
    assert [each.tolist() for each in pair] == [[float(size)], [[float(size)] * 3]]


def test_reducescatter_gives_the_first_ranks_the_extra_rows(hvd3: Ranks) -> None:
    hvd3.run(scatters)


def halves() -> None:
    for compression in (hvd.Compression.none, hvd.Compression.fp16):
        found = hvd.allreduce(torch.full((3,), 0.1), compression=compression, op=hvd.Sum)
        assert found.dtype == torch.float32
        assert torch.allclose(found, torch.full((3,), 0.1 * hvd.size()), atol=1e-3)
    exact = hvd.allreduce(torch.full((3,), 0.1), op=hvd.Sum)
    rounded = hvd.allreduce(torch.full((3,), 0.1), compression=hvd.Compression.fp16, op=hvd.Sum)
    assert not torch.equal(exact, rounded)


def test_compression_to_float16(hvd3: Ranks) -> None:
    hvd3.run(halves)


def any_order() -> None:
    names = [f"tensor {number}" for number in range(20)]
    order = names[hvd.rank() :] + names[: hvd.rank()]
    handles = {
        name: hvd.allreduce_async(torch.full((4,), float(names.index(name))), name=name, op=hvd.Sum)
        for name in order
    }
    for name in reversed(order):
        found = hvd.synchronize(handles[name])
        assert found.tolist() == [names.index(name) * float(hvd.size())] * 4


def test_operations_match_by_name_whatever_their_order(hvd3: Ranks) -> None:
    hvd3.run(any_order)


def polls() -> None:
    if hvd.rank() == 0:  # the others have not submitted it
        handle = hvd.allreduce_async(torch.ones(2), name="late")
        assert not hvd.poll(handle)
        hvd.barrier()
    else:
        hvd.barrier()  # independent of what is pending
        handle = hvd.allreduce_async(torch.ones(2), name="late")
    assert hvd.synchronize(handle).tolist() == [1.0, 1.0]
    assert hvd.poll(handle)
    assert hvd.synchronize(handle).tolist() == [1.0, 1.0]  # again
    with pytest.raises(TypeError, match="no handle"):
        hvd.poll(3)


def test_poll_and_barrier_while_an_operation_is_pending(hvd3: Ranks) -> None:
    hvd3.run(polls)


def drops() -> None:
    for _ in range(20):
        hvd.allreduce_async(torch.ones(1000))
    still_works()


def test_handles_may_be_dropped(hvd3: Ranks) -> None:
    hvd3.run(drops)


def from_threads() -> None:
    found: dict[int, float] = {}

    def one(number: int) -> None:
        for turn in range(10):
            name = f"thread {number}.{turn}"
            found[number] = float(hvd.allreduce(torch.ones(1) * number, name=name, op=hvd.Sum))

    threads = [threading.Thread(target=one, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: float(number * hvd.size()) for number in range(4)}


def test_several_threads_use_one_job(hvd3: Ranks) -> None:
    hvd3.run(from_threads)


def sums_sparse() -> None:
    rank, size = hvd.rank(), hvd.size()
    sparse = torch.sparse_coo_tensor([[0, rank + 1]], [[1.0, 2.0], [3.0, 4.0]], (size + 1, 2))
    dense = [
        torch.sparse_coo_tensor([[0, r + 1]], [[1.0, 2.0], [3.0, 4.0]], (size + 1, 2)).to_dense()
        for r in range(size)
    ]
    waiting = hvd.sparse_allreduce_async(sparse, name="sparse", op=hvd.Sum)
    assert callable(waiting)
    assert torch.equal(waiting().to_dense(), sum(dense))
    unnamed = hvd.sparse_allreduce_async(sparse, name=None, op=hvd.Average)
    assert torch.allclose(hvd.synchronize(unnamed).to_dense(), sum(dense) / size)
    with pytest.raises(ValueError, match="sparse"):
        hvd.sparse_allreduce_async(torch.ones(2), name="x", op=hvd.Sum)
    with pytest.raises(ValueError, match="MAX"):
        hvd.sparse_allreduce_async(sparse, name="x", op=hvd.Max)


def test_sparse_allreduce_returns_what_waits(hvd3: Ranks) -> None:
    hvd3.run(sums_sparse)


def adasum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    dot = float(a @ b)
    return (1 - dot / (2 * float(a @ a))) * a + (1 - dot / (2 * float(b @ b))) * b


def combines() -> None:
    given = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, -1.0, 0.5])]
    wanted = adasum(*(each.double() for each in given)).float()
    found = hvd.allreduce(given[hvd.rank()], op=hvd.Adasum)
    assert torch.allclose(found, wanted, atol=1e-5), (found, wanted)
    with pytest.raises(ValueError, match="floating-point"):
        hvd.allreduce(torch.ones(3, dtype=torch.int32), op=hvd.Adasum)


def test_adasum_of_two(hvd2: Ranks) -> None:
    hvd2.run(combines)


def refuses_adasum() -> None:
    with pytest.raises(NotImplementedError, match="power of two"):
        hvd.allreduce(torch.ones(3), op=hvd.Adasum)


def test_adasum_of_three_is_refused(hvd3: Ranks) -> None:
    hvd3.run(refuses_adasum)
