"""Steps of ranks that train one model, each in a cache of its own. Test support."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from spawn_ranks import Pool, Ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from zerocache_models import TinyGPT, batches, make_cache

CAPS = (12, 12, 400)
Make = Callable[[nn.Module], torch.optim.Optimizer]


def pool() -> Pool:
    """Initialised groups, by backend and size."""
    environment = {"TACO_LOG": "warning", "GLOO_SOCKET_IFNAME": "lo"}
    return Pool(
        lambda _, world: Ranks(world, environment),
        lambda ranks, backend, _: ranks.initialise(backend),
    )


def refused(call: Any) -> tuple[str, str]:
    """The type and the text of what ``call`` raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def plain_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-2)


def lion(model: nn.Module) -> torch.optim.Optimizer:
    from taco_torch.zerocache import Lion

    return Lion(model.parameters(), lr=1e-3)


def adafactor(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(model.parameters(), lr=1e-2)


MAKES: dict[str, Make] = {make.__name__: make for make in (adamw, sgd, plain_sgd, lion, adafactor)}


def values_of(cache: Any) -> dict[str, torch.Tensor]:
    return {name: cache.full(name) for name in cache._names.values()}


def state_of(optimizer: Any) -> dict[str, torch.Tensor]:
    """On rank 0, which all of it is copied to."""
    optimizer.consolidate_state_dict()
    if dist.get_rank() != 0:
        return {}
    found = optimizer.state_dict()["state"]
    return {f"{i}/{kind}": value for i, entry in found.items() for kind, value in entry.items()}


def fail_to_take(optimizer: Any, nth: int) -> Callable[[], None]:
    """The nth gradient that it takes from now on. What is returned ends that."""
    takes, left = optimizer.take_gradient, [nth]

    def fails(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError("no more of these")
        takes(*arguments)

    optimizer.take_gradient = fails
    return lambda: delattr(optimizer, "take_gradient")


def mixed_model() -> nn.Module:
    """Bfloat16 parameters among float32 ones, and a frozen one; tied weights."""
    model = TinyGPT(2)
    for name, block in model.blocks.named_children():
        block.up.bfloat16() if name == "1" else None
        block.up.forward = (  # type: ignore[method-assign]
            lambda x, up=block.up: nn.functional.linear(
                x.to(up.weight.dtype), up.weight, up.bias
            ).to(x.dtype)
        )
    model.places.requires_grad_(False)
    return model


def alone(folder: str, model: nn.Module, make: Make, **options: Any) -> tuple[Any, Any, Any]:
    """A cache of this rank, with a model of its own."""
    cache = make_cache(Path(folder) / f"alone-{dist.get_rank()}", *CAPS, **options)
    return cache, *cache.wrap(model, make(model))


def shared(
    folder: str, model: nn.Module, make: Make, wrap: dict[str, Any] | None = None, **options: Any
) -> tuple[Any, Any, Any]:
    """A cache of this rank, with a model inside DistributedDataParallel."""
    ddp = DistributedDataParallel(model, **options)
    cache = make_cache(Path(folder) / f"shared-{dist.get_rank()}", *CAPS)
    return cache, *cache.wrap(ddp, make(ddp), **(wrap or {}))


def own_batches() -> Iterator[torch.Tensor]:
    return batches(100 + dist.get_rank())


def assert_same_values(one: Any, other: Any, names: list[str]) -> None:
    for name in names:
        first, second = one.full(name), other.full(name)
        assert torch.equal(first, second), f"{name}: {(first - second).abs().max()}"


def names_of(model: nn.Module) -> list[str]:
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return [name for name, _ in inner.named_parameters()]


def copy_gradients(source: nn.Module, to: nn.Module) -> None:
    for one, other in zip(source.parameters(), to.parameters(), strict=True):
        other.grad = None if one.grad is None else one.grad.clone()


def train(model: Any, optimizer: Any, steps: int, data: Iterator[torch.Tensor]) -> list[float]:
    """This rank's losses."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(next(data))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_beside(ours: Any, theirs: Any, steps: int, before: Any = None) -> None:
    """Steps of a shared model and of one that is alone and has the same gradients: the same losses,
    and the same parameters on all ranks, bit for bit. ``before`` is called before each step."""
    (cache, model, optimizer), (other_cache, other, other_optimizer) = ours, theirs
    data = own_batches()
    for _ in range(steps):
        tokens = next(data)
        optimizer.zero_grad()
        loss = model(tokens)
        loss.backward()
        assert torch.equal(other(tokens), loss)
        if before is not None:
            before(cache, model)
        copy_gradients(model, other)
        optimizer.step()
        other_optimizer.step()
    assert_same_values(cache, other_cache, names_of(other))
