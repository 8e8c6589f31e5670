"""Models whose weights are mapped from files, as loaders leave them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import taco_only
from torch import nn
from zerocache_models import adamw, make_cache

pytestmark = taco_only


def made() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))


def mapped(file: Path) -> nn.Module:
    model = made()
    model.load_state_dict(torch.load(file, mmap=True, weights_only=True), assign=True)
    return model


@pytest.mark.parametrize("built_inside", [False, True])
def test_weights_mapped_from_a_file_are_copied_into_pages(
    tmp_path: Path, built_inside: bool
) -> None:
    torch.save(made().state_dict(), tmp_path / "weights")
    cache = make_cache(tmp_path / "cache", 6, 8)
    if built_inside:
        with cache.init():
            model = mapped(tmp_path / "weights")
        assert cache.store.holds(model[0].weight)
    else:
        model = mapped(tmp_path / "weights")
    before = (tmp_path / "weights").read_bytes()
    model, optimizer = cache.wrap(model, adamw(model))
    for name, parameter in made().named_parameters():
        assert torch.equal(cache.full(name), parameter)
    x: Any = torch.ones(2, 64)
    model(x).sum().backward()
    optimizer.step()
    cache.close()
    assert (tmp_path / "weights").read_bytes() == before
    assert not torch.equal(model[0].weight, made()[0].weight)


def test_memory_that_others_see_is_refused_by_name() -> None:
    model = made()
    model.share_memory()
    cache = make_cache(None)
    with pytest.raises(TypeError, match=r"'0\.weight' lies in memory that torch did not allocate"):
        cache.wrap(model, adamw(model))
    cache.close()
