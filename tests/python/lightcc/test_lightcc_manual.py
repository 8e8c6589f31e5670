"""all_reduce_gradients(): a training loop that averages its gradients itself."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from lightcc_models import OWN_HOSTS, SIZES, Reference, assert_alike, chosen, close, flat, same
from lightcc_programs import resident_bytes
from spawn_ranks import Ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import taco_torch

pytestmark = taco_only

WORLD = 3
all_reduce_gradients = taco_torch.lightcc.all_reduce_gradients


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(WORLD, OWN_HOSTS) as made:
        yield made.initialise()


def parameters() -> list[torch.Tensor]:
    return [torch.zeros(n, requires_grad=True) for n in SIZES]


def give(listed: list[torch.Tensor], step: int, rank: int | None = None) -> None:
    rank = dist.get_rank() if rank is None else rank
    for parameter, gradient in zip(listed, chosen(step, rank), strict=True):
        parameter.grad = gradient


def averages(fusion_bytes: int | None) -> None:
    listed = parameters()
    for step in range(3):
        give(listed, step)
        storage = [p.grad.data_ptr() for p in listed]
        all_reduce_gradients(listed, fusion_bytes=fusion_bytes)
        expected = sum(flat(chosen(step, rank)) for rank in range(WORLD)) / WORLD
        close(flat([p.grad for p in listed]), expected)
        assert [p.grad.data_ptr() for p in listed] == storage


@pytest.mark.parametrize("fusion_bytes", [None, 0, 200, 9000, 1 << 30])
def test_gradients_are_averaged_in_place(ranks: Ranks, fusion_bytes: int | None) -> None:
    ranks.run(averages, fusion_bytes)


def compresses() -> None:
    listed = parameters()
    reference = Reference(0.1, WORLD, sum(SIZES))
    for step in range(4):
        give(listed, step)
        all_reduce_gradients(
            listed, compression="topk", ratio=0.1, threshold=0, fusion_bytes=1 << 20
        )
        gradients = flat([p.grad for p in listed])
        assert_alike(gradients)
        if step > 0:  # in the first, the bucket was new
            same(gradients, reference.step([flat(chosen(step, r)) for r in range(WORLD)]))


def test_what_is_not_sent_is_kept_for_the_next_call(ranks: Ranks) -> None:
    ranks.run(compresses)


def replaces_a_parameter() -> None:
    first = torch.zeros(100, requires_grad=True)

    def step(other: torch.Tensor, gradient: float) -> None:
        first.grad, other.grad = torch.ones(100), torch.full((500,), gradient)
        all_reduce_gradients(
            [first, other], compression="topk", ratio=0.01, threshold=0, fusion_bytes=0
        )

    used = set()
    for _ in range(50):
        old = torch.zeros(500, requires_grad=True)
        used.add(id(old))
        for _ in range(3):
            step(old, 1000.0)
        del old
        new = torch.zeros(500, requires_grad=True)
        again = id(new) in used
        for _ in range(2):
            step(new, 1.0)
            assert float(new.grad.max()) <= 2.0
        del new
        if again:
            return
    raise AssertionError("no id() came twice: this shows nothing")


def test_a_new_parameter_inherits_nothing_from_one_that_is_gone(ranks: Ranks) -> None:
    ranks.run(replaces_a_parameter)


def odd_ones() -> None:
    rank = dist.get_rank()
    transposed = torch.zeros(30, 40, requires_grad=True)
    transposed.grad = torch.full((40, 30), float(rank)).t()
    empty = torch.zeros(0, requires_grad=True)
    empty.grad = torch.zeros(0)
    without = torch.zeros(5, requires_grad=True)
    double = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    double.grad = torch.full((7,), float(rank), dtype=torch.float64)
    sparse = torch.zeros(9, requires_grad=True)
    sparse.grad = torch.sparse_coo_tensor([[rank]], [3.0], (9,))
    listed = [transposed, empty, without, double, sparse, transposed]
    all_reduce_gradients(listed, compression="topk", threshold=0)
    same(transposed.grad, torch.full((30, 40), 1.0))
    same(double.grad, torch.full((7,), 1.0, dtype=torch.float64))
    same(sparse.grad.to_dense(), torch.tensor([1.0] * WORLD + [0.0] * (9 - WORLD)))
    assert without.grad is None
    all_reduce_gradients([])
    all_reduce_gradients([without])


def test_odd_gradients_go_by_themselves(ranks: Ranks) -> None:
    ranks.run(odd_ones)


def differ() -> None:
    listed = parameters()
    give(listed, 0)
    rank = dist.get_rank()
    with pytest.raises(ValueError, match="rank 1 has gradients of 3 of 3 parameters, rank 0 of 4"):
        all_reduce_gradients(listed[:3] if rank == 1 else listed)
    if rank == 2:
        listed[0].grad = None
    with pytest.raises(ValueError, match="rank 2 has gradients of 3 of 4 parameters, rank 0 of 4"):
        all_reduce_gradients(listed)
    give(listed, 0)
    if rank == 1:
        listed[0] = torch.zeros(1, requires_grad=True)
        listed[0].grad = torch.zeros(1)
    with pytest.raises(ValueError, match="rank 1 has gradients of the same number"):
        all_reduce_gradients(listed)


def test_ranks_with_other_parameters_are_named(ranks: Ranks) -> None:
    ranks.run(differ)


def mistakes() -> None:
    listed = parameters()
    give(listed, 0)
    with pytest.raises(ValueError, match="fusion_bytes is -1"):
        all_reduce_gradients(listed, fusion_bytes=-1)
    with pytest.raises(ValueError, match="ratio is 2"):
        all_reduce_gradients(listed, compression="topk", ratio=2.0)
    for wrong in (1.5, "1MB"):
        with pytest.raises(TypeError, match=f"fusion_bytes is {wrong!r}, but must be a whole"):
            all_reduce_gradients(listed, fusion_bytes=wrong)  # type: ignore[arg-type]
    integers = Integers(3)
    with pytest.raises(TypeError, match=r"gradient 0 is of torch\.int64"):
        all_reduce_gradients([integers])
    with pytest.raises(TypeError, match="takes parameters, got one tensor: put it into a list"):
        all_reduce_gradients(listed[0])
    with pytest.raises(TypeError, match="takes parameters, but number 0 is a tuple"):
        all_reduce_gradients(nn.Linear(1, 1).named_parameters())  # type: ignore[arg-type]
    elsewhere = torch.empty(3, device="meta", requires_grad=True)
    elsewhere.grad = torch.empty(3, device="meta")
    with pytest.raises(TypeError, match="gradient 0 is on meta: taco averages those on the CPU"):
        all_reduce_gradients([elsewhere])
    fully_shard(module := nn.Linear(4, 4), mesh=init_device_mesh("cpu", (WORLD,)))
    module(torch.ones(1, 4)).sum().backward()
    with pytest.raises(TypeError, match=r"gradient 0 is a DTensor: .* has been averaged already"):
        all_reduce_gradients(module.parameters())


class Integers(torch.Tensor):
    """Torch itself gives no integer gradients."""

    grad = torch.zeros(3, dtype=torch.int64)


def only_some() -> None:
    pair = dist.new_group([0, 1])
    listed = parameters()
    give(listed, 0)
    before = flat([p.grad for p in listed])
    all_reduce_gradients(listed, group=pair)
    inside = dist.get_rank() < 2
    expected = (flat(chosen(0, 0)) + flat(chosen(0, 1))) / 2 if inside else before
    close(flat([p.grad for p in listed]), expected)


def test_a_rank_outside_the_group_keeps_its_gradients(ranks: Ranks) -> None:
    ranks.run(only_some)


def test_mistakes_are_named(ranks: Ranks) -> None:
    ranks.run(mistakes)


def uses_other_parameters_each_time() -> int:
    """By how many bytes the process has grown since the first calls."""
    listed = [torch.zeros(100_000, requires_grad=True) for _ in range(12)]
    first = 0
    for call in range(120):
        if call == 20:
            first = resident_bytes()
        draw = random.Random(call)
        for parameter in listed:
            parameter.grad = torch.ones(100_000) if draw.random() < 0.5 else None
        all_reduce_gradients(listed, compression="none")
    return resident_bytes() - first


def test_memory_does_not_grow_with_the_choices_of_parameters(ranks: Ranks) -> None:
    most = 12 * 400_000
    assert max(ranks.run(uses_other_parameters_each_time)) < 5 * most
