"""However a model's parameters lie, are named or share buckets: what is kept of each belongs to its
elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from lightcc_models import OWN_HOSTS, Bag, flat, gradients_of, near, same
from spawn_ranks import Ranks
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import taco_torch

pytestmark = taco_only

WORLD = 2
SHAPES = ((8, 6, 5, 4), (30, 40))
MANY = (60_000, 40_000, 1000)  # several of DDP's buckets
lightcc = taco_torch.lightcc


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(WORLD, OWN_HOSTS) as made:
        yield made.initialise()


class Lying(nn.Module):
    """Two parameters, row by row or not, whose gradients are the inputs."""

    def __init__(self, by_rows: bool) -> None:
        super().__init__()
        image, matrix = (torch.zeros(shape) for shape in SHAPES)
        if not by_rows:
            image = image.contiguous(memory_format=torch.channels_last)
            matrix = matrix.t().contiguous().t()
        self.image, self.matrix = nn.Parameter(image), nn.Parameter(matrix)

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        return (self.image * gradients[0]).sum() + (self.matrix * gradients[1]).sum()


def whole(step: int, rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randint(-50, 51, shape, generator=generator).float() for shape in SHAPES]


def average(steps: range) -> torch.Tensor:
    return sum(flat(whole(step, rank)) for step in steps for rank in range(WORLD)) / WORLD


def lying(by_rows: bool) -> DistributedDataParallel:
    model = DistributedDataParallel(Lying(by_rows))
    lightcc.compress(model, "topk", ratio=0.05, threshold=0)
    return model


def passes(model: DistributedDataParallel, steps: range) -> torch.Tensor:
    """The sum of the gradients that these steps delivered."""
    delivered = torch.zeros(sum(torch.Size(shape).numel() for shape in SHAPES))
    for step in steps:
        model.zero_grad()
        model(whole(step, dist.get_rank())).backward()
        delivered += gradients_of(model)
    return delivered


def in_the_state(model: DistributedDataParallel) -> torch.Tensor:
    return flat(list(lightcc.state_dict(model)["residuals"].values()))


def keeps_elements_apart(by_rows: bool) -> None:
    model = lying(by_rows)
    delivered = passes(model, range(6))
    near(delivered + in_the_state(model), average(range(6)))
    last = gradients_of(model).clone()
    lightcc.flush(model)
    near(delivered - last + gradients_of(model), average(range(6)))


@pytest.mark.parametrize("by_rows", [True, False])
def test_state_and_flush_name_each_element_however_parameters_lie(
    ranks: Ranks, by_rows: bool
) -> None:
    ranks.run(keeps_elements_apart, by_rows)


def goes_on_lying_otherwise(by_rows: bool) -> None:
    first, second = lying(not by_rows), lying(by_rows)
    delivered = passes(first, range(5))
    lightcc.load_state_dict(lightcc.state_dict(first), second)
    delivered += passes(second, range(5, 9))
    near(delivered + in_the_state(second), average(range(9)))


@pytest.mark.parametrize("by_rows", [True, False])
def test_a_state_may_be_loaded_where_parameters_lie_otherwise(ranks: Ranks, by_rows: bool) -> None:
    ranks.run(goes_on_lying_otherwise, by_rows)


def many(momentum: float, **options: Any) -> DistributedDataParallel:
    model = DistributedDataParallel(Bag(MANY), bucket_cap_mb=0.2, **options)
    lightcc.compress(model, "topk", ratio=0.02, threshold=0, momentum=momentum)
    return model


def averages(model: DistributedDataParallel, steps: range) -> list[torch.Tensor]:
    found = []
    for step in steps:
        generator = torch.Generator().manual_seed(7 * step + dist.get_rank())
        model.zero_grad()
        model([torch.randn(n, generator=generator) for n in MANY]).backward()
        found.append(gradients_of(model).clone())
    return found


def goes_on_bit_for_bit(momentum: float, after: int, options: dict[str, Any]) -> None:
    straight = many(momentum, **options)
    averages(straight, range(after))
    state = lightcc.state_dict(straight)
    expected = averages(straight, range(after, after + 4))
    resumed = many(momentum, **options)
    lightcc.load_state_dict(state, resumed)
    for found, one in zip(averages(resumed, range(after, after + 4)), expected, strict=True):
        same(found, one)
    assert int((expected[0] != 0).sum()) < sum(MANY) / 4, "compressed from the first step on"


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    "options", [{}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}]
)
def test_a_resumed_training_goes_on_bit_for_bit(
    ranks: Ranks, momentum: float, options: dict[str, Any]
) -> None:
    """DDP arranges its buckets anew after a step; a resumed one has the final ones at once."""
    ranks.run(goes_on_bit_for_bit, momentum, 6, options)


def other_buckets_take_it_up() -> None:
    straight = many(0.0)
    delivered = sum(averages(straight, range(6)))
    resumed = DistributedDataParallel(Bag(MANY), bucket_cap_mb=0.3)
    lightcc.compress(resumed, "topk", ratio=0.02, threshold=0)
    lightcc.load_state_dict(lightcc.state_dict(straight), resumed)
    delivered += sum(averages(resumed, range(6, 9)))
    total = torch.zeros(sum(MANY))
    for step in range(9):
        for rank in range(WORLD):
            generator = torch.Generator().manual_seed(7 * step + rank)
            total += flat([torch.randn(n, generator=generator) for n in MANY])
    near(delivered + in_the_state(resumed), total / WORLD)


def test_buckets_of_another_size_stay_what_the_program_asks_for(ranks: Ranks) -> None:
    ranks.run(other_buckets_take_it_up)


class WithWords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(30, 200)
        self.words = nn.EmbeddingBag(100, 30, sparse=True)
        self.unused = nn.Parameter(torch.zeros(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(self.words(x)).square().sum() + self.unused.sum() * 0


def flushes_beside_sparse_gradients() -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(WithWords())
    lightcc.compress(model, "topk", ratio=0.05, threshold=0)
    for _ in range(4):
        model.zero_grad()
        model(torch.arange(10).view(5, 2) + 20 * rank).backward()
    before = lightcc.state_dict(model)["residuals"]
    weight, bias = model.module.first.weight.grad, model.module.first.bias.grad
    expected = weight + before["first.weight"]
    words = model.module.words.weight.grad.to_dense()
    if rank == 1:
        model.module.first.bias.grad = None  # on one rank alone
    lightcc.flush(model)
    after = lightcc.state_dict(model)["residuals"]
    near(model.module.first.weight.grad, expected)
    same(after["first.weight"], torch.zeros(200, 30))
    same(after["first.bias"], before["first.bias"])
    if rank == 0:
        same(model.module.first.bias.grad, bias)
    same(model.module.words.weight.grad.to_dense(), words)


def test_flush_leaves_sparse_gradients_and_missing_ones_alone(ranks: Ranks) -> None:
    ranks.run(flushes_beside_sparse_gradients)


def trained(kind: str, wrapped: bool) -> nn.Module:
    torch.manual_seed(0)
    net: nn.Module = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 1))
    if wrapped:
        net[0] = checkpoint_wrapper(net[0])
    if kind == "fully_shard":
        mesh = init_device_mesh("cpu", (WORLD, 1), mesh_dim_names=("replicate", "shard"))
        for module in (net[0], net):
            fully_shard(module, mesh=mesh)
    else:
        net = DistributedDataParallel(net)
    lightcc.compress(net, "topk", ratio=0.1, threshold=0)
    for _ in range(4):
        net(torch.randn(4, 20)).sum().backward()
    return net


def loads_wrapped_otherwise(kind: str) -> None:
    wrapped, plain = (trained(kind, by) for by in (True, False))
    state = lightcc.state_dict(wrapped)
    assert set(state["residuals"]) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    lightcc.load_state_dict(state, plain)
    wanted = flat([full(one) for one in state["residuals"].values()])
    near(flat([full(one) for one in lightcc.state_dict(plain)["residuals"].values()]), wanted)
    # As earlier versions named them.
    old = {
        name.replace("0.", "0._checkpoint_wrapped_module."): one
        for name, one in state["residuals"].items()
    }
    lightcc.load_state_dict({**state, "residuals": old, "exact": {}}, plain)
    near(flat([full(one) for one in lightcc.state_dict(plain)["residuals"].values()]), wanted)


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


@pytest.mark.parametrize("kind", ["ddp", "fully_shard"])
def test_residuals_are_named_as_parameters_are_in_state_dicts(ranks: Ranks, kind: str) -> None:
    ranks.run(loads_wrapped_otherwise, kind)
