"""Every collective gives the right elements, on every rank, for every kind of tensor."""

from __future__ import annotations

import hashlib

import pytest
import torch
import torch.distributed as dist
from conftest import BACKEND, taco_only
from spawn_ranks import Ranks

REDUCED_TYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    *([torch.int16] if BACKEND == "taco" else []),
]
SIZES = [0, 1, 3, 1000, 70_001, 1_000_003]


def tensor_of(rank: int, count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """The same values on whichever rank computes them; sums of a few stay exact in every dtype."""
    generator = torch.Generator().manual_seed(seed * 1000 + rank)
    values = torch.randint(0, 5, (count,), generator=generator)
    return values.to(dtype)


def same(actual: torch.Tensor, expected: torch.Tensor, what: str = "") -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, msg=lambda text: f"{what}: {text}")


def stack_of(count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.stack([tensor_of(r, count, dtype, seed) for r in range(dist.get_world_size())])


# -- functions that run on the ranks ---------------------------------------------------------------


def all_reduce_sum(count: int, dtype: torch.dtype) -> None:
    tensor = tensor_of(dist.get_rank(), count, dtype)
    dist.all_reduce(tensor)
    same(tensor, stack_of(count, dtype).sum(0).to(dtype))


def all_reduce_each_op() -> None:
    world = dist.get_world_size()
    stacked = stack_of(1001, torch.int64, 7) + 1
    mine = stacked[dist.get_rank()]
    expected = {
        dist.ReduceOp.SUM: stacked.sum(0),
        dist.ReduceOp.PRODUCT: stacked.prod(0),
        dist.ReduceOp.MIN: stacked.amin(0),
        dist.ReduceOp.MAX: stacked.amax(0),
    }
    band, bor, bxor = stacked[0].clone(), stacked[0].clone(), stacked[0].clone()
    for rank in range(1, world):
        band &= stacked[rank]
        bor |= stacked[rank]
        bxor ^= stacked[rank]
    expected[dist.ReduceOp.BAND] = band
    expected[dist.ReduceOp.BOR] = bor
    expected[dist.ReduceOp.BXOR] = bxor
    for op, result in expected.items():
        tensor = mine.clone()
        dist.all_reduce(tensor, op=op)
        same(tensor, result, str(op))


def all_reduce_average_and_premultiplied() -> None:
    world = dist.get_world_size()
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        tensor = tensor_of(dist.get_rank(), 4097, dtype) * world
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        same(tensor, stack_of(4097, dtype).sum(0).to(dtype), f"AVG {dtype}")
    tensor = tensor_of(dist.get_rank(), 4097, torch.float32)
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(0.5))
    same(tensor, stack_of(4097, torch.float32).sum(0) * 0.5, "PREMUL_SUM")
    integers = tensor_of(dist.get_rank(), 99, torch.int32)
    dist.all_reduce(integers, op=dist.ReduceOp.AVG)
    same(integers, (stack_of(99, torch.int32).sum(0) // world).to(torch.int32), "integer AVG")


def all_reduce_of_complex_and_bool() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.complex64, torch.complex128):
        tensor = torch.full((333,), complex(rank, -rank), dtype=dtype)
        dist.all_reduce(tensor)
        total = sum(range(world))
        same(tensor, torch.full((333,), complex(total, -total), dtype=dtype))
    flags = torch.arange(50) % world == rank
    dist.all_reduce(flags, op=dist.ReduceOp.BOR)
    assert bool(flags.all())


def sums_of_complex_halves() -> None:
    """In every call that adds up."""
    rank, world = dist.get_rank(), dist.get_world_size()
    total = sum(range(world))
    parts = torch.tensor([float(rank), -1.0]).half().repeat(12 * world)
    mine = torch.view_as_complex(parts.view(-1, 2))
    expected = torch.tensor([float(total), -float(world)]).half()

    def right(result: torch.Tensor) -> None:
        assert torch.equal(torch.view_as_real(result), expected.expand(result.numel(), 2))

    everywhere, to_one, shard = mine.clone(), mine.clone(), mine[:12].clone()
    dist.all_reduce(everywhere)
    right(everywhere)
    dist.reduce(to_one, 0)
    if rank == 0:
        right(to_one)
    dist.reduce_scatter_tensor(shard, mine)
    right(shard)
    mean = mine.clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    half = torch.view_as_real(mean)
    assert torch.equal(half, (expected / world).expand(half.shape))
    with pytest.raises(TypeError, match="PRODUCT of complex32 is not supported"):
        dist.reduce(everywhere, 0, op=dist.ReduceOp.PRODUCT)


def broadcast_from(root: int, count: int, dtype: torch.dtype) -> None:
    tensor = tensor_of(dist.get_rank(), count, dtype)
    dist.broadcast(tensor, src=root)
    same(tensor, tensor_of(root, count, dtype))


def reduce_to(root: int, count: int) -> None:
    before = tensor_of(dist.get_rank(), count, torch.float32)
    tensor = before.clone()
    dist.reduce(tensor, dst=root)
    if dist.get_rank() == root:
        same(tensor, stack_of(count, torch.float32).sum(0))
    elif BACKEND == "taco":
        same(tensor, before, "only the root's tensor changes")


def all_gather_list(count: int, dtype: torch.dtype) -> None:
    tensor = tensor_of(dist.get_rank(), count, dtype)
    outputs = [torch.zeros_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, tensor)
    for rank, output in enumerate(outputs):
        same(output, tensor_of(rank, count, dtype))


def all_gather_uneven() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    outputs = [torch.zeros(peer * 3, dtype=torch.int32) for peer in range(world)]
    dist.all_gather(outputs, tensor_of(rank, rank * 3, torch.int32))
    for peer, output in enumerate(outputs):
        same(output, tensor_of(peer, peer * 3, torch.int32))


def all_gather_into_tensor(count: int, dtype: torch.dtype) -> None:
    tensor = tensor_of(dist.get_rank(), count, dtype)
    flat = torch.zeros(count * dist.get_world_size(), dtype=dtype)
    dist.all_gather_into_tensor(flat, tensor)
    same(flat, stack_of(count, dtype).flatten())
    shaped = torch.zeros(dist.get_world_size(), count, dtype=dtype)
    dist.all_gather_into_tensor(shaped, tensor)
    same(shaped, stack_of(count, dtype))


def all_gather_in_place() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    flat = torch.zeros(world * 5000)
    mine = flat[rank * 5000 : (rank + 1) * 5000]
    mine.copy_(tensor_of(rank, 5000, torch.float32))
    dist.all_gather_into_tensor(flat, mine)
    same(flat, stack_of(5000, torch.float32).flatten())


def all_gather_into_one_memory() -> None:
    """Outputs that alias: the last rank's data is what stays, on every run."""
    world = dist.get_world_size()
    output = torch.zeros(100_000)
    dist.all_gather([output] * world, tensor_of(dist.get_rank(), 100_000, torch.float32))
    same(output, tensor_of(world - 1, 100_000, torch.float32))


def reduce_scatter_forms(count: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    inputs = [tensor_of(rank, count, torch.float32, seed) for seed in range(world)]
    expected = stack_of(count, torch.float32, rank).sum(0)
    output = torch.zeros(count)
    dist.reduce_scatter(output, inputs)
    same(output, expected, "list")
    output = torch.zeros(count)
    dist.reduce_scatter_tensor(output, torch.cat(inputs))
    same(output, expected, "tensor")
    if BACKEND == "taco":
        output = torch.zeros(count)
        dist.reduce_scatter_tensor(output, torch.cat(inputs) * world, op=dist.ReduceOp.AVG)
        same(output, expected, "AVG")


def reduce_scatter_uneven() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    inputs = [tensor_of(rank, peer * 7, torch.int64, peer) for peer in range(world)]
    output = torch.zeros(rank * 7, dtype=torch.int64)
    dist.reduce_scatter(output, inputs)
    same(output, stack_of(rank * 7, torch.int64, rank).sum(0))


def gather_and_scatter(root: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    tensor = tensor_of(rank, 501, torch.float64)
    outputs = (
        [torch.zeros(501, dtype=torch.float64) for _ in range(world)] if rank == root else None
    )
    dist.gather(tensor, outputs, dst=root)
    if outputs is not None:
        for peer, output in enumerate(outputs):
            same(output, tensor_of(peer, 501, torch.float64))
    inputs = [tensor_of(peer, 77, torch.int8, 3) for peer in range(world)] if rank == root else None
    received = torch.zeros(77, dtype=torch.int8)
    dist.scatter(received, inputs, src=root)
    same(received, tensor_of(rank, 77, torch.int8, 3))


def all_to_all_forms() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    count = 1234
    flat = torch.cat([tensor_of(rank, count, torch.float32, peer) for peer in range(world)])
    output = torch.zeros_like(flat)
    dist.all_to_all_single(output, flat)
    expected = torch.cat([tensor_of(peer, count, torch.float32, rank) for peer in range(world)])
    same(output, expected, "equal")
    # Rank r sends (r + peer) % 3 rows to each peer: uneven, with zeros.
    rows_out = [(rank + peer) % 3 for peer in range(world)]
    source = torch.arange(sum(rows_out) * 5, dtype=torch.int64).reshape(-1, 5) + 1000 * rank
    target = torch.zeros(sum(rows_out), 5, dtype=torch.int64)
    dist.all_to_all_single(target, source, rows_out, rows_out)
    parts = []
    for peer in range(world):
        rows = [(peer + other) % 3 for other in range(world)]
        theirs = torch.arange(sum(rows) * 5, dtype=torch.int64).reshape(-1, 5) + 1000 * peer
        parts.append(theirs.split(rows)[rank])
    same(target, torch.cat(parts), "uneven")
    if BACKEND == "taco":
        inputs = [tensor_of(rank, peer + 2 * rank, torch.uint8) for peer in range(world)]
        outputs = [torch.zeros(rank + 2 * peer, dtype=torch.uint8) for peer in range(world)]
        dist.all_to_all(outputs, inputs)
        for peer, received in enumerate(outputs):
            same(received, tensor_of(peer, rank + 2 * peer, torch.uint8), "list")


def all_to_all_of_mixed_calls() -> None:
    """One rank gives no split sizes, the others do; as gloo and MPI allow when sizes agree."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for count in (0, 1, 500, 200_000):
        # Rank 0 exchanges `count` with everyone; the others shift one element round among them.
        rows = [[count] * world for _ in range(world)]
        for sender in range(1, world):
            if count and world > 2:
                rows[sender][sender % (world - 1) + 1] += 1
                rows[sender][(sender + 1) % (world - 1) + 1] -= 1
        mine, theirs = rows[rank], [rows[peer][rank] for peer in range(world)]
        source = torch.cat(
            [tensor_of(rank, mine[peer], torch.float32, peer) for peer in range(world)]
        )
        target = torch.zeros(sum(theirs))
        if rank == 0:
            dist.all_to_all_single(target, source)
        else:
            dist.all_to_all_single(target, source, theirs, mine)
        parts = [tensor_of(peer, theirs[peer], torch.float32, rank) for peer in range(world)]
        same(target, torch.cat(parts), f"{count}")


def views_are_staged() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    base = torch.arange(60.0).reshape(6, 10)
    mine = (base + rank).t()
    dist.all_reduce(mine)
    same(mine, (base * world + sum(range(world))).t(), "all_reduce of a transpose")
    every_other = (base + rank)[:, ::2]
    around = every_other.clone()
    dist.broadcast(every_other, src=1)
    same(every_other, (base + 1)[:, ::2], "broadcast of a strided view")
    assert around.shape == every_other.shape
    outputs = [torch.zeros(10, 6).t() for _ in range(world)]
    dist.all_gather(outputs, (base + rank))
    for peer, output in enumerate(outputs):
        same(output, base + peer, "all_gather into transposes")
    pending = (base + rank).t()
    work = dist.all_reduce(pending, async_op=True)
    work.wait()
    same(pending, (base * world + sum(range(world))).t(), "asynchronous")
    conjugate = torch.full((8,), complex(1, rank)).conj()
    options = dist.BroadcastOptions()
    options.rootRank = 1
    # dist.broadcast refuses such views, and torch's dispatcher hands on a copy.
    dist.group.WORLD._get_backend(torch.device("cpu")).broadcast([conjugate], options).wait()
    same(conjugate.resolve_conj(), torch.full((8,), complex(1, -1)), "conjugate view")


def types_that_only_move() -> None:
    rank = dist.get_rank()
    for dtype in (torch.float8_e4m3fn, torch.uint16, torch.uint32, torch.uint64):
        tensor = torch.full((100,), rank + 1, dtype=torch.int64).to(dtype)
        dist.broadcast(tensor, src=2)
        same(tensor.to(torch.float64), torch.full((100,), 3, dtype=torch.float64), str(dtype))


def sparse_all_reduce() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    # Rank r names row r % 3 twice, and a row of its own; the last rank has no entries at all.
    if rank == world - 1:
        indices, values = torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0, 4)
    else:
        indices = torch.tensor([[rank % 3, rank % 3, 3 + rank]])
        values = torch.full((3, 4), float(rank + 1))
    tensor = torch.sparse_coo_tensor(indices, values, (10, 4), check_invariants=True)
    expected = torch.zeros(10, 4)
    for peer in range(world - 1):
        expected[peer % 3] += 2 * (peer + 1)
        expected[3 + peer] += peer + 1
    dist.all_reduce(tensor)
    same(tensor.to_dense(), expected)


def sparse_calls_overlap_with_dense_ones() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    works, sparse, dense = [], [], []
    for step in range(10):
        indices = torch.arange(rank + step + 1)[None]
        sparse.append(
            torch.sparse_coo_tensor(
                indices, torch.ones(rank + step + 1), (50,), check_invariants=True
            )
        )
        dense.append(torch.full((step + 1,), float(rank)))
        works.append(dist.all_reduce(sparse[-1], async_op=True))
        works.append(dist.all_reduce(dense[-1], async_op=True))
    for work in works:
        work.wait()
    for step in range(10):
        expected = torch.zeros(50)
        for peer in range(world):
            expected[: peer + step + 1] += 1
        same(sparse[step].to_dense(), expected)
        same(dense[step], torch.full((step + 1,), float(sum(range(world)))))


def objects() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    everybody: list[object] = [None] * world
    dist.all_gather_object(everybody, {"rank": rank, "text": "x" * rank * 1000})
    assert everybody == [{"rank": r, "text": "x" * r * 1000} for r in range(world)]
    box = [f"from {rank}"]
    dist.broadcast_object_list(box, src=1)
    assert box == ["from 1"]
    mine: list[object] = [None]
    dist.scatter_object_list(mine, list(range(world)) if rank == 0 else [None] * world, src=0)
    assert mine == [rank]
    gathered: list[object] | None = [None] * world if rank == 2 else None
    dist.gather_object(rank * rank, gathered, dst=2)
    assert gathered is None or gathered == [r * r for r in range(world)]


def digest_of_float_sums(flush: bool) -> str:
    """Sums whose value depends on the order of addition, and denormals."""
    digest = hashlib.sha256()
    generator = torch.Generator().manual_seed(dist.get_rank())
    tensors = [
        torch.randn(count, generator=generator) * scale
        for count in (5, 1000, 100_000, 1_500_001)
        for scale in (1.0, 1e-40)
    ]
    torch.set_flush_denormal(flush and dist.get_rank() == 1)
    for tensor in tensors:
        dist.all_reduce(tensor)
        digest.update(tensor.numpy().tobytes())
    torch.set_flush_denormal(False)
    return digest.hexdigest()


def many_tiny_at_once() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    tensors = [torch.full((3,), float(rank + i)) for i in range(1000)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    for i, tensor in enumerate(tensors):
        same(tensor, torch.full((3,), float(sum(range(world)) + world * i)))


# -- tests -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", REDUCED_TYPES, ids=str)
def test_all_reduce_sums_every_size(ranks: Ranks, dtype: torch.dtype) -> None:
    for count in SIZES:
        ranks.run(all_reduce_sum, count, dtype)


def test_all_reduce_with_three_ranks(three: Ranks) -> None:
    for count in SIZES:
        three.run(all_reduce_sum, count, torch.float32)


def test_every_reduction(ranks: Ranks) -> None:
    ranks.run(all_reduce_each_op)


@taco_only
def test_average_and_premultiplied_sum(ranks: Ranks) -> None:
    ranks.run(all_reduce_average_and_premultiplied)


@taco_only
def test_complex_and_bool(ranks: Ranks) -> None:
    ranks.run(all_reduce_of_complex_and_bool)


@taco_only
def test_complex_halves_are_added_up(ranks: Ranks) -> None:
    ranks.run(sums_of_complex_halves)


@pytest.mark.parametrize("root", [0, 2])
def test_broadcast(ranks: Ranks, root: int) -> None:
    for count in SIZES:
        ranks.run(broadcast_from, root, count, torch.float32)
    ranks.run(broadcast_from, root, 1001, torch.bool)


@pytest.mark.parametrize("root", [0, 3])
def test_reduce(ranks: Ranks, root: int) -> None:
    for count in SIZES:
        ranks.run(reduce_to, root, count)


def test_all_gather(ranks: Ranks) -> None:
    for count in SIZES:
        ranks.run(all_gather_list, count, torch.float32)
    ranks.run(all_gather_list, 31, torch.uint8)


@taco_only
def test_all_gather_of_unequal_sizes(ranks: Ranks) -> None:
    ranks.run(all_gather_uneven)


def test_all_gather_into_tensor(ranks: Ranks) -> None:
    for count in SIZES if BACKEND == "taco" else SIZES[1:]:
        ranks.run(all_gather_into_tensor, count, torch.float32)


def test_all_gather_of_a_slice_of_its_own_output(ranks: Ranks) -> None:
    ranks.run(all_gather_in_place)


@taco_only
def test_aliased_outputs_end_with_the_last_ranks_data(ranks: Ranks) -> None:
    ranks.run(all_gather_into_one_memory)


def test_reduce_scatter(ranks: Ranks) -> None:
    for count in (1, 1000, 300_001):
        ranks.run(reduce_scatter_forms, count)


@taco_only
def test_reduce_scatter_of_unequal_sizes(ranks: Ranks) -> None:
    ranks.run(reduce_scatter_uneven)


@pytest.mark.parametrize("root", [0, 1])
def test_gather_and_scatter(ranks: Ranks, root: int) -> None:
    ranks.run(gather_and_scatter, root)


def test_all_to_all(ranks: Ranks) -> None:
    ranks.run(all_to_all_forms)


def test_all_to_all_with_split_sizes_on_some_ranks_only(ranks: Ranks) -> None:
    ranks.run(all_to_all_of_mixed_calls)


@taco_only
def test_tensors_that_are_not_contiguous(ranks: Ranks) -> None:
    ranks.run(views_are_staged)


@taco_only
def test_types_without_arithmetic_still_move(ranks: Ranks) -> None:
    ranks.run(types_that_only_move)


def test_sparse_all_reduce_adds_duplicate_indices(ranks: Ranks) -> None:
    ranks.run(sparse_all_reduce)


def test_sparse_and_dense_operations_overlap(ranks: Ranks) -> None:
    ranks.run(sparse_calls_overlap_with_dense_ones)


def test_objects(ranks: Ranks) -> None:
    ranks.run(objects)


@taco_only
def test_sums_are_bit_identical_on_all_ranks_and_runs(ranks: Ranks) -> None:
    digests = ranks.run(digest_of_float_sums, False) + ranks.run(digest_of_float_sums, True)
    assert len(set(digests)) == 1


def test_a_thousand_tiny_operations_in_flight(ranks: Ranks) -> None:
    ranks.run(many_tiny_at_once)
