"""Programs that set torch's defaults: what is ours does not take them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from lightcc_models import OWN_HOSTS
from lightcc_sharded import ranks_of_two_hosts, square
from spawn_ranks import Ranks
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from zerocache_models import adamw, make_cache

import taco_torch
from taco_torch.zerocache import distributed_checkpoint

pytestmark = taco_only
lightcc = taco_torch.lightcc

DEFAULTS = ["dtype", "device"]


@contextlib.contextmanager
def defaults(which: str) -> Iterator[None]:
    """A device on which nothing can be computed, so that whatever lands there shows."""
    dtype = torch.get_default_dtype()
    try:
        if which == "dtype":
            torch.set_default_dtype(torch.float64)
        else:
            torch.set_default_device("meta")
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_default_device(None)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(2, OWN_HOSTS) as made:
        yield made.initialise()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 1))


def train(model: nn.Module, given: torch.Tensor, steps: int = 4) -> None:
    for _ in range(steps):
        model.zero_grad()
        model(given).sum().backward()


def compresses(which: str) -> None:
    model, other = DistributedDataParallel(net()), DistributedDataParallel(net())
    given = torch.randn(4, 20)
    listed = [torch.zeros(n, requires_grad=True) for n in (100, 3000)]
    for parameter in listed:
        parameter.grad = torch.full((parameter.numel(),), float(dist.get_rank()))
    with defaults(which):
        for one in (model, other):
            lightcc.compress(one, "topk", ratio=0.1, threshold=0)
        train(model, given)
        lightcc.load_state_dict(lightcc.state_dict(model), other)
        train(other, given)
        lightcc.flush(other)
        for compression in ("none", "topk"):
            lightcc.all_reduce_gradients(listed, compression=compression, threshold=0)
    for parameter in (*other.parameters(), *listed):
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.device.type == "cpu"
    torch.testing.assert_close(listed[0].grad, torch.full((100,), 0.5), rtol=0, atol=0.5)


@pytest.mark.parametrize("which", DEFAULTS)
def test_compressed_gradients_stay_what_they_are(ranks: Ranks, which: str) -> None:
    ranks.run(compresses, which)


def compresses_shards(which: str) -> None:
    mesh = square()
    models = [net(), net()]
    given = torch.randn(4, 20)
    for model in models:
        fully_shard(model, mesh=mesh)
    with defaults(which):
        for model in models:
            lightcc.compress(model, "topk", ratio=0.1, threshold=0)
    train(models[0], given)
    with defaults(which):
        lightcc.load_state_dict(lightcc.state_dict(models[0]), models[1])
    train(models[1], given)
    with defaults(which):
        lightcc.flush(models[1])


@pytest.mark.parametrize("which", DEFAULTS)
def test_compressed_shards_stay_what_they_are(which: str) -> None:
    with ranks_of_two_hosts() as ranks:
        ranks.run(compresses_shards, which)


@pytest.mark.parametrize("which", DEFAULTS)
def test_a_cache_reads_saves_and_loads_what_it_holds(tmp_path: Path, which: str) -> None:
    given = torch.randn(4, 20)
    cache = make_cache(tmp_path / "disk")
    model = net()
    model, optimizer = cache.wrap(model, adamw(model))
    expected = [value.clone() for value in (cache.full(p) for p in model.parameters())]
    model(given).sum().backward()
    with defaults(which):
        for parameter, value in zip(model.parameters(), expected, strict=True):
            assert torch.equal(cache.full(parameter), value)
        optimizer.step()
        optimizer.zero_grad()
        state, values = optimizer.state_dict(), model.state_dict()
        cache.save(tmp_path / "saved")
        cache.load(tmp_path / "saved")
        optimizer.load_state_dict(state)
        model.load_state_dict(values)
    for one in (*values.values(), *state["state"][0].values()):
        assert one.device.type == "cpu"
        assert one.dtype == torch.float32
    cache.close()


@pytest.mark.parametrize("which", DEFAULTS)
def test_a_model_that_is_wrapped_stays_what_it_is(tmp_path: Path, which: str) -> None:
    given = torch.randn(4, 20)
    plain, model = net(), net()
    usual = adamw(plain)
    cache = make_cache(tmp_path / "disk")
    with defaults(which):
        model, optimizer = cache.wrap(model, adamw(model))
    for _ in range(2):
        for one, steps in ((plain, usual), (model, optimizer)):
            steps.zero_grad()
            one(given).sum().backward()
            steps.step()
    for parameter, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert parameter.device.type == "cpu"
        torch.testing.assert_close(cache.full(parameter), expected.detach())
    cache.close()


@pytest.mark.parametrize("which", DEFAULTS)
def test_a_distributed_checkpoint_goes_there_and_back(tmp_path: Path, which: str) -> None:
    given = torch.randn(4, 20)
    caches, models, optimizers = [], [], []
    for name in ("one", "other"):
        cache = make_cache(tmp_path / name)
        model = net()
        model, optimizer = cache.wrap(model, adamw(model))
        caches.append(cache)
        models.append(model)
        optimizers.append(optimizer)
    models[0](given).sum().backward()
    optimizers[0].step()
    with defaults(which):
        distributed_checkpoint.save(caches[0], tmp_path / "saved")
        distributed_checkpoint.load(caches[1], tmp_path / "saved")
    for mine, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(caches[0].full(mine), caches[1].full(theirs))
    saved, loaded = (one.state_dict()["state"] for one in optimizers)
    for index, entry in saved.items():
        for kind, value in entry.items():
            assert torch.equal(value, loaded[index][kind])
    for cache in caches:
        cache.close()
