"""What wrap() accepts is enough: no pass of a training step finds that there is no room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F
from conftest import taco_only
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from zerocache_models import TinyGPT, adamw, make_cache
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
def least(folder: Path, make: Callable[[], nn.Module], **options: bool) -> Iterator[Any]:
    """Cache, model and optimizer, with the smallest device that wrap() accepts."""
    for device in range(1, 50):
        model = make()
        cache = make_cache(folder / str(device), device=device, host=12)
        with cache:
            with suppress(ValueError):
                cache.wrap(model, adamw(model), **options)
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
