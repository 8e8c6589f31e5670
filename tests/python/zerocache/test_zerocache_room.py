"""Caps that wrap() accepts are enough: no pass of a training step runs out of room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from conftest import taco_only
from spawn_ranks import Ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from zerocache_models import TinyGPT, adamw, make_cache
from zerocache_ranks import own_batches, train, values_of
from zerocache_steps import check_same, everything, tokens, trained

pytestmark = taco_only

MODES: list[dict[str, bool]] = [
    {},
    {"step_in_backward": True},
    {"step_in_backward": True, "clipping": True},
]


class Checkpointed(TinyGPT):
    """Computes its blocks again in backward, in the middle of the backward pass of their last
    modules."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.tokens(x) + self.places
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        return self.loss(hidden, x)

    def loss(self, hidden: Tensor, x: Tensor) -> Tensor:
        logits = self.head(self.norm(hidden))
        return F.cross_entropy(logits.flatten(0, 1), x.roll(-1, 1).flatten())


class Reentrant(Checkpointed):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.tokens(x) + self.places
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=True)
        return self.loss(hidden, x)


class Nested(Checkpointed):
    """Checkpoints within a checkpoint."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.tokens(x) + self.places
        for first in range(0, len(self.blocks), 2):
            hidden = checkpoint(self.two, first, hidden, use_reentrant=False)
        return self.loss(hidden, x)

    def two(self, first: int, hidden: Tensor) -> Tensor:
        for block in self.blocks[first : first + 2]:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        return hidden


class Shared(TinyGPT):
    """Runs its blocks twice."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.tokens(x) + self.places
        for block in [*self.blocks, *self.blocks]:
            hidden = block(hidden)
        logits = self.head(self.norm(hidden))
        return F.cross_entropy(logits.flatten(0, 1), x.roll(-1, 1).flatten())


@contextmanager
def least(
    folder: Path,
    make: Callable[[], nn.Module],
    inner: Callable[[nn.Module], torch.optim.Optimizer] = adamw,
    host: int | None = 12,
    **options: bool,
) -> Iterator[Any]:
    """Cache, model and optimizer, with the smallest device that wrap() accepts beside this host
    memory; or, where that is None, with the smallest host memory beside a device of 12 pages."""
    for pages in range(1, 50):
        model = make()
        sizes = (12, pages) if host is None else (pages, host)
        cache = make_cache(folder / str(pages), *sizes)
        with cache:
            with suppress(ValueError):
                cache.wrap(model, inner(model), **options)
            if cache._optimizer is None:
                continue
            yield cache, model, cache._optimizer
        return
    raise AssertionError("it does not fit into 50 pages")


@pytest.mark.parametrize("options", MODES, ids=["at the end", "in backward", "clipping"])
@pytest.mark.parametrize("make", [TinyGPT, Checkpointed, Reentrant, Nested, Shared])
def test_a_cap_that_is_accepted_is_enough(
    tmp_path: Path, make: Callable[[], nn.Module], options: dict[str, bool]
) -> None:
    def step(model: nn.Module, optimizer: Any, cache: Any, number: int) -> None:
        model(tokens(number)).backward()
        optimizer.step()
        optimizer.zero_grad()

    plenty = trained(tmp_path / "plenty", make, step, 3, device=200, host=200)
    with least(tmp_path, make, **options) as (cache, model, optimizer):
        for number in range(3):
            step(model, optimizer, cache, number)
        assert cache.store.open == 0
        check_same(everything(cache, optimizer), plenty)


def adafactor(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(model.parameters(), lr=1e-2)


def plain_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("host", [12, None], ids=["device", "host"])
@pytest.mark.parametrize("options", MODES, ids=["at the end", "in backward", "clipping"])
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("inner", [adafactor, adamw, plain_sgd])
def test_a_cap_that_is_accepted_is_enough_for_every_kind_of_state(
    tmp_path: Path,
    inner: Callable[[nn.Module], torch.optim.Optimizer],
    half: bool,
    options: dict[str, bool],
    host: int | None,
) -> None:
    """Adafactor's moments, which mirror no page, need one in memory too."""

    def make() -> nn.Module:
        model = TinyGPT()
        return model.bfloat16() if half else model

    with least(tmp_path, make, inner, host, **options) as (cache, model, optimizer):
        for number in range(2):
            model(tokens(number)).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert set(optimizer.numbers().values()) == {2}
        assert cache.store.open == 0


# Over ranks, which step pages in the backward pass, and send them and get others meanwhile.


def wrap_shared(
    folder: Path, way: str, make: str, inner: str, sizes: tuple[int, int]
) -> tuple[Any, Any, Any] | None:
    """Cache, model and optimizer; None where these pages of device and host do not suffice."""
    model, options = globals()[make](), {}
    if way == "ddp":
        model = DistributedDataParallel(model, bucket_cap_mb=0.05)
    else:
        options["process_group"] = dist.group.WORLD
    folder.mkdir(parents=True)
    cache = make_cache(folder / "pages", *sizes)
    try:
        return cache, *cache.wrap(model, globals()[inner](model), step_in_backward=True, **options)
    except ValueError:
        cache.close()
        return None


def train_in_least(folder: str, way: str, make: str, inner: str, min_host: bool) -> None:
    own = Path(folder) / str(dist.get_rank())
    plenty = wrap_shared(own / "plenty", way, make, inner, (200, 200))
    assert plenty is not None
    for pages in range(1, 50):
        sizes = (12, pages) if min_host else (pages, 12)
        found = wrap_shared(own / str(pages), way, make, inner, sizes)
        if found is not None:
            break
    assert found is not None
    assert train(*found[1:], 3, own_batches()) == train(*plenty[1:], 3, own_batches())
    assert found[0].store.open == 0
    check_same(values_of(found[0]), values_of(plenty[0]))
    found[0].close()
    plenty[0].close()


@pytest.mark.parametrize("min_host", [False, True], ids=["device", "host"])
@pytest.mark.parametrize("inner", ["adamw", "adafactor"])
@pytest.mark.parametrize(
    ("way", "make"), [("ddp", "TinyGPT"), ("ddp", "Checkpointed"), ("group", "Reentrant")]
)
def test_a_cap_that_is_accepted_is_enough_over_ranks(
    two: Ranks, tmp_path: Path, way: str, make: str, inner: str, min_host: bool
) -> None:
    two.run(train_in_least, str(tmp_path), way, make, inner, min_host)
