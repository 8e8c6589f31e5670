"""Trainings that are the same in a cache as without: adapters beside a frozen model, batches that
forked workers load, several directories, and disks that are held back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import taco_only
from torch import Tensor, nn
from zerocache_models import PAGE, TinyGPT, adamw, batches, make_cache, train

pytestmark = taco_only

SMALL = (12, 12, 400)  # pages


class Adapted(nn.Module):
    """A linear layer that is frozen, and the product of two thin ones that is learned (LoRA, Hu et
    al. 2021)."""

    def __init__(self, inner: nn.Linear, rank: int) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Linear(inner.in_features, rank, bias=False)
        self.up = nn.Linear(rank, inner.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        adapted: Tensor = self.inner(x) + self.up(self.down(x))
        return adapted


def with_adapters() -> nn.Module:
    model = TinyGPT(3).requires_grad_(False)
    for block in model.blocks:
        for name in ("attention", "up"):
            setattr(block, name, Adapted(getattr(block, name), 4))
    return model


def adapters_alone(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)


@pytest.mark.parametrize("early", [False, True], ids=["at the end", "in backward"])
@pytest.mark.parametrize("make", [adamw, adapters_alone])
def test_adapters_learn_beside_a_frozen_model(
    tmp_path: Path, make: Callable[[nn.Module], torch.optim.Optimizer], early: bool
) -> None:
    plain, model = with_adapters(), with_adapters()
    cache = make_cache(tmp_path, *SMALL)
    model, optimizer = cache.wrap(model, make(model), step_in_backward=early)
    trained = sum(p.numel() for p in plain.parameters() if p.requires_grad)
    # A moment is on pages of its own, none of which a frozen parameter has.
    assert 2 * 4 * trained <= cache.stats()["state_bytes"] < 2 * 4 * trained + 4 * PAGE
    expected = train(plain, make(plain), 4)
    assert train(model, optimizer, 4) == pytest.approx(expected, rel=1e-4)
    frozen = {name: p for name, p in plain.named_parameters() if not p.requires_grad}
    for name, parameter in frozen.items():
        assert torch.equal(cache.full(name), parameter), name
    cache.close()


class Batches(torch.utils.data.Dataset[Tensor]):
    """Each made by the worker that is asked for it."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Tensor:
        return next(batches(index))


def loaded(workers: int) -> Iterator[Tensor]:
    loader = torch.utils.data.DataLoader(
        Batches(),
        batch_size=None,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    return iter(loader)


@pytest.mark.parametrize("io", ["auto", "threads"])
def test_forked_workers_load_batches_while_a_cache_trains(tmp_path: Path, io: str) -> None:
    """They begin in the middle of training, and end before the cache does."""
    losses = []
    for workers in (0, 2):
        model = TinyGPT(3)
        cache = make_cache(tmp_path / str(workers), *SMALL, io=io)
        model, optimizer = cache.wrap(model, adamw(model))
        train(model, optimizer, 1)
        losses.append([*train(model, optimizer, 6, loaded(workers))])
        losses[-1] += train(model, optimizer, 1)
        cache.close()
        assert list((tmp_path / str(workers)).iterdir()) == []
    assert losses[0] == losses[1]


def test_directories_are_used_side_by_side(tmp_path: Path) -> None:
    from taco_torch.zerocache import ZeroCache

    plain = TinyGPT()
    expected = train(plain, adamw(plain), 3)
    places = [tmp_path / "one", tmp_path / "other", tmp_path / "small"]
    for place in places:
        place.mkdir()
    ssd = [f"{place}:{pages * PAGE}" for place, pages in zip(places, (150, 150, 8), strict=True)]
    cache = ZeroCache(12 * PAGE, 12 * PAGE, ssd, page=PAGE)
    model = TinyGPT()
    model, optimizer = cache.wrap(model, adamw(model))
    assert train(model, optimizer, 3) == pytest.approx(expected, rel=1e-4)
    # A file that was written has blocks; a file that nobody wrote to would have none, or no more
    # than were set aside: each page of 16 KiB was written whole.
    for place in places:
        (slab,) = place.glob("*.slab")
        written = slab.read_bytes()
        pages = [written[at : at + PAGE] for at in range(PAGE, len(written), PAGE)]
        assert any(any(page) for page in pages), place
    cache.close()
    assert [list(place.iterdir()) for place in places] == [[], [], []]


def test_a_disk_that_is_held_back_carries_the_same(tmp_path: Path) -> None:
    losses = []
    for options in ({}, {"io_bytes_per_second": "64MiB"}):
        model = TinyGPT(2)
        cache = make_cache(tmp_path, *SMALL, **options)
        model, optimizer = cache.wrap(model, adamw(model))
        losses.append(train(model, optimizer, 2))
        ways: dict[str, Any] = cache.stats()["ways"]
        carried = sum(ways[way]["bytes"] for way in ("ssd to host", "host to ssd"))
        busy = sum(ways[way]["busy_s"] for way in ("ssd to host", "host to ssd"))
        if options:
            assert busy > 0.5 * carried / (64 << 20)
        cache.close()
    assert losses[0] == losses[1]
