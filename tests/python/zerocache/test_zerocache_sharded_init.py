"""Several ranks build one model inside ``with cache.init(shard_parameters=True):``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_zerocache_init as init
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Pool, Ranks
from test_zerocache_sharded import assert_same_parameters, train_beside
from torch import nn
from zerocache_models import PAGE, TinyGPT, make_cache
from zerocache_ranks import adamw, alone, plain_sgd, refused
from zerocache_spread import CAPS

pytestmark = taco_only

WIDE = init.WIDE
LAYERS = 12


def cache_of(folder: str, caps: tuple[int, int, int] = CAPS) -> Any:
    return make_cache(Path(folder) / f"rank-{dist.get_rank()}", *caps)


def pages_of(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters()) // PAGE


def build_large(folder: str, caps: tuple[int, int, int], shard: bool) -> int:
    cache = cache_of(folder, caps)
    with cache.init(shard_parameters=shard):
        model = TinyGPT(LAYERS)
    model, optimizer = cache.wrap(model, plain_sgd(model), shard_parameters=True)
    theirs = alone(folder, TinyGPT(LAYERS), plain_sgd)
    train_beside((cache, model, optimizer), theirs, 2)
    assert_same_parameters(cache, theirs[0])
    found: int = cache.stats()["parameter_bytes"]
    cache.close()
    return found


def test_a_model_larger_than_a_rank_holds_is_built_and_trained(job: Ranks, tmp_path: Path) -> None:
    whole = pages_of(TinyGPT(LAYERS))
    # Beside its part, a rank has room for what the largest module gathers.
    room = whole // job.world + 6 * job.world
    device = 6 * job.world + 1
    caps = (device, 4, room - device)
    assert sum(caps) < 0.9 * whole
    found = job.run(build_large, str(tmp_path), caps, True)
    assert sum(found) // PAGE == whole
    for outcome in job.outcomes(build_large, str(tmp_path), caps, False):
        assert outcome.error_type == "ValueError"
        assert "memory and disk" in outcome.error


def build(folder: str, make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(7)
    plain = make()
    drawn = torch.get_rng_state()
    cache = cache_of(folder, (40, 14, 600))
    torch.manual_seed(7)
    with cache.init(shard_parameters=True):
        model = make()
    assert torch.equal(torch.get_rng_state(), drawn)
    model, _ = cache.wrap(model, shard_parameters=True)
    for name, values in plain.named_parameters(remove_duplicate=False):
        assert torch.equal(cache.full(name), values), name
    for name, buffer in plain.named_buffers():
        assert torch.equal(model.get_buffer(name), buffer), name
    cache.close()


@pytest.mark.parametrize("make", init.MODELS)
def test_it_has_the_values_that_it_would_have_without(
    job: Ranks, make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    job.run(build, str(tmp_path), make)


def build_beside(folder: str) -> None:
    cache = cache_of(folder)
    torch.manual_seed(0)
    expected = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
    torch.manual_seed(0)
    with cache.init(shard_parameters=True):
        beside = nn.Linear(WIDE, WIDE)
    held = beside if dist.get_rank() == 0 else None
    del beside  # so it is rank 0 alone that has it
    with cache.init():
        model = nn.Linear(WIDE, WIDE)
    cache.wrap(model, shard_parameters=True)
    assert held is None or torch.equal(held.weight, expected[0].weight)
    assert torch.equal(cache.full("weight"), expected[1].weight)
    cache.close()


def test_what_the_model_does_not_have_becomes_ordinary_memory(job: Ranks, tmp_path: Path) -> None:
    job.run(build_beside, str(tmp_path))


class Drawn(nn.Module):
    """Its parameter has its values before a module has it."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.randn(WIDE, WIDE))


def linear() -> nn.Module:
    return nn.Linear(WIDE, WIDE)


def build_unlike(folder: str, make: Callable[[], nn.Module]) -> tuple[str, str]:
    cache = cache_of(folder)

    def wrapped() -> None:
        torch.manual_seed(dist.get_rank() == 1)
        with cache.init(shard_parameters=True):
            model = make()
        cache.wrap(model, shard_parameters=True)

    return refused(wrapped)


@pytest.mark.parametrize("make", [Drawn, linear])
def test_ranks_that_draw_other_values_are_named_on_all(
    job: Ranks, make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    for kind, text in job.run(build_unlike, str(tmp_path), make):
        assert kind == "MismatchError"
        assert "other values on rank 1 than on rank 0 while the model was built" in text


def build_another(folder: str) -> tuple[str, str]:
    cache = cache_of(folder)

    def wrapped() -> None:
        with cache.init(shard_parameters=True):
            nn.Linear(WIDE, WIDE if dist.get_rank() == 0 else 2 * WIDE)

    return refused(wrapped)


def test_ranks_that_build_other_models_are_named_on_all(job: Ranks, tmp_path: Path) -> None:
    for kind, text in job.run(build_another, str(tmp_path)):
        assert kind == "MismatchError"
        assert "rank 0 is about to make Linear.weight (number 1 in init(), of 16384 bytes)" in text


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDE, WIDE)
        if dist.get_rank() == 1:
            raise ZeroDivisionError("in the middle")
        self.second = nn.Linear(WIDE, WIDE)


def fail(folder: str, make: Callable[[], nn.Module]) -> tuple[str, str]:
    cache = cache_of(folder)

    def building() -> None:
        with cache.init(shard_parameters=True):
            make()
            if dist.get_rank() == 1:  # at the very end
                raise ZeroDivisionError("in the middle")

    torch.manual_seed(0)
    found = refused(building)
    torch.manual_seed(0)
    expected = nn.Linear(WIDE, WIDE)
    torch.manual_seed(0)
    with cache.init(shard_parameters=True):
        model = nn.Linear(WIDE, WIDE)
    cache.wrap(model, shard_parameters=True)
    assert torch.equal(cache.full("weight"), expected.weight)
    cache.close()
    return found


@pytest.mark.parametrize("make", [Failing, linear])
def test_what_one_constructor_raises_the_others_hear(
    job: Ranks, make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    for rank, (kind, text) in enumerate(job.run(fail, str(tmp_path), make)):
        if rank == 1:
            assert (kind, text) == ("ZeroDivisionError", "in the middle")
        else:
            assert "rank 1: ZeroDivisionError: in the middle" in text, (kind, text)


def mistakes(folder: str) -> list[tuple[str, str]]:
    whole = make_cache(Path(folder) / f"whole-{dist.get_rank()}", *CAPS)
    cache = cache_of(folder)
    with whole.init():
        kept = nn.Linear(WIDE, WIDE)
    found = [refused(lambda: whole.init(shard_parameters=True))]
    whole.close()
    assert kept.weight.isfinite().all()
    other = dist.new_group()
    with cache.init(shard_parameters=True):
        model = nn.Linear(WIDE, WIDE)
    found += [
        refused(lambda: cache.init(shard_parameters=True, process_group=other)),
        refused(lambda: cache.wrap(model)),
        refused(lambda: cache.wrap(model, shard_parameters=True, process_group=other)),
    ]
    cache.wrap(model, shard_parameters=True)
    cache.close()
    dist.destroy_process_group(other)
    return found


def test_mistakes_are_named(two: Ranks, tmp_path: Path) -> None:
    for found in two.run(mistakes, str(tmp_path)):
        for (_, text), words in zip(
            found,
            (
                "this cache has parameters that are whole",
                "process_group is another than that of init(shard_parameters=True)",
                "give wrap() shard_parameters=True, too",
                "process_group is another than that of init(shard_parameters=True)",
            ),
            strict=True,
        ):
            assert words in text


def test_a_process_alone_shards_nothing(tmp_path: Path) -> None:
    cache = make_cache(tmp_path, *CAPS)
    with cache.init(shard_parameters=True):
        model = TinyGPT(2)
    cache.wrap(model, shard_parameters=True)
    cache.close()
    assert torch.equal(model.norm.weight, TinyGPT(2).norm.weight)


# All ranks number the pages of all, and none of them has room for more than its part.

SIDE, DEEP, SMALL_PAGE = 240, 64, 4096


def train_numbered(folder: str, inside: bool) -> int:
    from taco_torch.zerocache import ZeroCache

    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(SIDE, SIDE, bias=False) for _ in range(DEEP)))

    ranks = dist.get_world_size()
    parameters = DEEP * SIDE * SIDE * 4 // SMALL_PAGE
    stripes = SIDE * SIDE * 4 // SMALL_PAGE // ranks + 2  # of a layer
    device, host = stripes * ranks + 1, 8
    disk = 3 * parameters // ranks + stripes * (ranks - 1) + 8 - device - host
    own = Path(folder, f"rank-{dist.get_rank()}")
    own.mkdir()
    cache = ZeroCache(
        device * SMALL_PAGE, host * SMALL_PAGE, f"{own}:{disk * SMALL_PAGE}", page=SMALL_PAGE
    )
    if inside:
        with cache.init(shard_parameters=True):
            model = build()
    else:
        model = build()
    model, optimizer = cache.wrap(model, adamw(model), shard_parameters=True)
    before = cache.full("63.weight")
    model(torch.ones(2, SIDE)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(cache.full("63.weight"), before)
    cache.close()
    return device + host + disk


@pytest.mark.parametrize("inside", [False, True], ids=["wrapped", "built inside"])
def test_there_are_page_numbers_for_what_all_ranks_keep(
    jobs: Pool, tmp_path: Path, inside: bool
) -> None:
    jobs.get("taco", 4).run(train_numbered, str(tmp_path), inside)
