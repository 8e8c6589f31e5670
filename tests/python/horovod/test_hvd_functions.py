"""Parameters, optimizer states and objects from one rank to all, and from all to all."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from horovod_ranks import raises, still_works
from spawn_ranks import Ranks
from torch import nn

import taco_torch.horovod as hvd


def net(rank: int | None = None) -> nn.Module:
    torch.manual_seed(hvd.rank() if rank is None else rank)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.LazyLinear(3))


def made(rank: int | None = None) -> nn.Module:
    model = net(rank)
    model(torch.rand(4, 1, 4, 4))
    return model


def gives_parameters() -> None:
    wanted = made(1).state_dict()
    model = made()
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    for name, value in model.state_dict().items():
        assert torch.equal(value, wanted[name]), name
    for given in (list(made(1).named_parameters()), made(1).named_parameters()):
        hvd.broadcast_parameters(given, root_rank=1)
    model = made().to(memory_format=torch.channels_last)  # not contiguous
    hvd.broadcast_parameters(list(model.parameters()), root_rank=2)
    for value, want in zip(model.parameters(), made(2).parameters(), strict=True):
        assert torch.equal(value, want)
    still_works()


def test_parameters_in_all_the_forms_of_a_model(hvd3: Ranks) -> None:
    hvd3.run(gives_parameters)


def refuses_parameters() -> None:
    raises(ValueError, lambda: hvd.broadcast_parameters(torch.ones(2), 0), "Tensor")
    raises(ValueError, lambda: hvd.broadcast_parameters(5, 0), "int")
    raises(ValueError, lambda: hvd.broadcast_parameters({"a": 3}, 0), "broadcast_object")
    still_works()


def test_what_is_no_parameter_is_refused(hvd3: Ranks) -> None:
    hvd3.run(refuses_parameters)


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"lr": 0.1, "betas": (0.8, 0.95), "weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {"lr": 0.1, "amsgrad": True}),
    "nadam": (torch.optim.NAdam, {"lr": 0.1}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.1, "centered": True}),
    "rprop": (torch.optim.Rprop, {"lr": 0.1}),
    "adadelta": (torch.optim.Adadelta, {}),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int = 5) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.rand(2, 4, generator=generator)).square().sum().backward()
        optimizer.step()


def resumes(name: str, wraps: bool) -> None:
    """Rank 1 has trained; all go on as it would alone. The others' options are others."""
    kind, options = OPTIMIZERS[name]
    torch.manual_seed(9)
    reference = nn.Linear(4, 3)
    alone = kind(reference.parameters(), **options)
    train(reference, alone, 3)
    model = nn.Linear(4, 3)
    is_root = hvd.rank() == 1
    optimizer = kind(model.parameters(), **(options if is_root else {**options, "lr": 0.7}))
    if is_root:
        model.load_state_dict(reference.state_dict())
        optimizer.load_state_dict(copy.deepcopy(alone.state_dict()))  # else they share it
    if wraps:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    train(reference, alone, 2, seed=6)
    train(model, optimizer, 2, seed=6)
    for value, want in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(value, want, atol=1e-5), (name, value, want)
    for found, want in zip(optimizer.param_groups, alone.param_groups, strict=True):
        for key in want:
            if key != "params":
                assert found[key] == want[key]
                assert type(found[key]) is type(want[key]), key


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_ranks_go_on_as_the_root_would(hvd3: Ranks, name: str, wraps: bool) -> None:
    hvd3.run(resumes, name, wraps)


def begins_alike(name: str) -> None:
    """Nobody has trained: the state is made without touching the parameters."""
    kind, options = OPTIMIZERS[name]
    torch.manual_seed(3)
    model, reference = nn.Linear(4, 3), nn.Linear(4, 3)
    reference.load_state_dict(model.state_dict())
    optimizer, alone = (kind(m.parameters(), **options) for m in (model, reference))
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())
    assert bool(optimizer.state_dict()["state"]) == (name != "sgd")
    train(model, optimizer, 3)
    train(reference, alone, 3)
    for value, want in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(value, want, atol=1e-6), (name, value, want)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_that_is_still_empty_changes_nothing(hvd3: Ranks, name: str) -> None:
    hvd3.run(begins_alike, name)


def resumes_by_adasum() -> None:
    """Rank 1 has trained, and so makes no state: the others must not wait for it in their step."""
    torch.manual_seed(9)
    model = nn.Linear(4, 3)
    own = torch.optim.Adam(model.parameters(), lr=0.1)
    if hvd.rank() == 1:
        train(model, own, 3)
    optimizer = hvd.DistributedOptimizer(own, model.named_parameters(), op=hvd.Adasum)
    before = [p.detach().clone() for p in model.parameters()]
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    for value, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(value, old), "no step was made"
    for state in optimizer.state_dict()["state"].values():
        assert float(state["step"]) == 3.0


def test_a_state_is_given_to_optimizers_that_combine_by_adasum(hvd2: Ranks) -> None:
    hvd2.run(resumes_by_adasum, deadline_s=30)


def refuses_states() -> None:
    weights = [torch.zeros(2, requires_grad=True)]
    lbfgs = torch.optim.LBFGS(weights)
    raises(ValueError, lambda: hvd.broadcast_optimizer_state(lbfgs, 0), "LBFGS")
    count = 1 if hvd.rank() == 0 else 2
    others = torch.optim.SGD([torch.zeros(2, requires_grad=True) for _ in range(count)], 0.1)
    if hvd.rank() == 0:
        hvd.broadcast_optimizer_state(others, 0)
    else:
        raises(ValueError, lambda: hvd.broadcast_optimizer_state(others, 0), "[1]", "[2]")
    still_works()


def test_states_that_cannot_be_taken_up(hvd3: Ranks) -> None:
    hvd3.run(refuses_states)


def gives_objects() -> None:
    rank = hvd.rank()
    thing = {"rank": rank, "list": [1, (2, 3)], "tensor": torch.full((2,), float(rank))}
    found = hvd.broadcast_object(thing, root_rank=2)
    assert found["rank"] == 2
    assert found["list"] == [1, (2, 3)]
    assert found["tensor"].tolist() == [2.0, 2.0]
    assert (found is thing) == (rank == 2)
    assert hvd.broadcast_object("x" * 3000 if rank == 0 else None, 0, name="text") == "x" * 3000
    everyone = hvd.allgather_object({"rank": rank, "text": "y" * rank})
    assert everyone == [{"rank": r, "text": "y" * r} for r in range(hvd.size())]
    assert hvd.allgather_object(None, name="nothing") == [None] * hvd.size()
    pair = hvd.add_process_set([0, 2])
    if pair.included():
        assert hvd.broadcast_object(rank, 2, process_set=pair) == 2
        assert hvd.allgather_object(rank, process_set=pair) == [0, 2]
    hvd.remove_process_set(pair)


def test_objects(hvd3: Ranks) -> None:
    hvd3.run(gives_objects)


def refuses_objects() -> None:
    unpicklable = threading.Lock()
    if hvd.rank() == 0:
        with pytest.raises(TypeError, match="pickle"):
            hvd.broadcast_object(unpicklable, 0)
    hvd.barrier()
    still_works()


def test_an_object_that_cannot_be_pickled_is_the_root_s_error(hvd3: Ranks) -> None:
    hvd3.run(refuses_objects)
