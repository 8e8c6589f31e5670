"""Small models beside the same ones in plain torch, for the tests of ZeroCache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

PAGE = 16 << 10
VOCABULARY, WIDTH, LENGTH = 61, 48, 12


class Block(nn.Module):
    """Attention and a perceptron, as GPT-2 has them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        # Without a bias: the gradient of a key's is nothing but rounding.
        self.attention = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.attention(self.first(x)).chunk(3, dim=-1)
        mixed = F.scaled_dot_product_attention(
            query[:, None], key[:, None], value[:, None], is_causal=True
        )
        x = x + self.out(mixed[:, 0])
        return x + self.down(F.gelu(self.up(self.second(x))))


class TinyGPT(nn.Module):
    """Predicts the next token. Its head is tied to the embedding."""

    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())


def batches(seed: int = 1) -> Iterator[torch.Tensor]:
    """Tokens, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randint(VOCABULARY, (4, LENGTH), generator=generator)


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def assert_same_state(
    one: Any, other: Any, same: Callable[[torch.Tensor, torch.Tensor], None]
) -> None:
    """Checks state dicts: the same keys, in the same order, with the same values; tensors by
    ``same``, and of the same dtype."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same_state(one[key], other[key], same)
    elif isinstance(one, (list, tuple)):
        for a, b in zip(one, other, strict=True):
            assert_same_state(a, b, same)
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        same(one, other)
    else:
        assert one == other


def state_bytes(model: nn.Module, kinds: int = 2) -> int:
    """Bytes of the parameters and of float32 state of so many kinds."""
    own = {id(p): p.numel() * (p.element_size() + 4 * kinds) for p in model.parameters()}
    return sum(own.values())


def make_cache(
    folder: Path | None, device: int = 8, host: int = 8, ssd: int = 400, **options: Any
) -> Any:
    """A cache of so many pages; with a directory in ``folder`` unless that is None."""
    from taco_torch.zerocache import ZeroCache

    place = None
    if folder is not None:
        folder.mkdir(exist_ok=True)
        place = f"{folder}:{ssd * PAGE}"
    return ZeroCache(device * PAGE, host * PAGE, place, page=PAGE, _poison=True, **options)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    data: Iterator[torch.Tensor] | None = None,
    between: Callable[[], None] = lambda: None,
) -> list[float]:
    """Losses; ``between`` is called between backward and step."""
    losses = []
    data = data if data is not None else batches()
    for _ in range(steps):
        loss = model(next(data))
        loss.backward()
        between()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
