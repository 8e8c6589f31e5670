"""Compressed gradients where several ranks share a host: each codes a shard of what leaves it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lightcc_sharded as sharded
import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from fabric import Fabric
from hosts import host_ranks, join, needs_hosts
from lightcc_models import (
    ELEMENTS,
    Bag,
    assert_alike,
    backward,
    dense_average,
    dense_sum,
    flat,
    near,
    owed,
    passes,
    same,
)
from spawn_ranks import Ranks
from torch.nn.parallel import DistributedDataParallel

import taco_torch

pytestmark = taco_only

WORLD = 4
lightcc = taco_torch.lightcc


@pytest.fixture(scope="module", params=["regrouped", pytest.param("hosts", marks=needs_hosts)])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Two hosts of two ranks: of an emulated network, or so called."""
    if request.param == "hosts":
        with Fabric(hosts=2) as fabric, host_ranks(fabric, ranks_per_host=2) as made:
            made.run(join)
            yield made
    else:
        with Ranks(WORLD, {"LIGHT_INTRA_SIZE": "2", "TACO_LOG": "warning"}) as made:
            yield made.initialise()


def compressed(values: str = "float32") -> DistributedDataParallel:
    model = DistributedDataParallel(Bag())
    lightcc.compress(model, "topk", ratio=0.05, threshold=0, values=values)
    return model


def shares_the_work(values: str) -> None:
    model = compressed(values)
    before = taco_torch.stats().lightcc
    delivered = torch.zeros(ELEMENTS)
    for gradients in passes(model, 7):
        assert_alike(gradients)
        delivered += gradients
    remaining = owed(model)
    assert float(remaining.norm()) > 1
    near(delivered + remaining, dense_sum(range(7), WORLD))
    state = lightcc.state_dict(model)["exact"]
    ((_, mine),) = state.items()
    kept = sum(bucket["residual"].numel() for bucket in mine["buckets"].values())
    assert abs(kept - ELEMENTS / 2) <= 16  # one shard
    spent = taco_torch.stats().lightcc - before
    assert spent.bytes_before == 5 * 4 * kept
    assert spent.ratio < 0.4


@pytest.mark.parametrize("values", ["float32", "float16"])
def test_each_rank_keeps_and_codes_one_shard(ranks: Ranks, values: str) -> None:
    ranks.run(shares_the_work, values)


def flushes() -> None:
    model = compressed()
    delivered = sum(passes(model, 4))
    last = backward(model, 4)
    lightcc.flush(model)
    grads = flat([p.grad for p in model.parameters()])
    assert_alike(grads)
    near(delivered + grads, dense_sum(range(5), WORLD))
    near(owed(model), torch.zeros(ELEMENTS))
    assert float((grads - last).norm()) > 1


def test_flush_gathers_all_shards(ranks: Ranks) -> None:
    ranks.run(flushes)


def saves(folder: str) -> torch.Tensor:
    model = compressed()
    delivered = sum(passes(model, 5))
    assert isinstance(delivered, torch.Tensor)
    torch.save(lightcc.state_dict(model), Path(folder) / f"{dist.get_rank()}.pt")
    dist.barrier()
    return delivered


def resumes(folder: str, delivered: torch.Tensor) -> None:
    model = compressed()
    path = Path(folder) / f"{dist.get_rank()}.pt"
    lightcc.load_state_dict(torch.load(path, weights_only=True), model)
    total = delivered + sum(passes(model, 4, first=5))
    near(total + owed(model), dense_sum(range(9), WORLD))


def test_shards_survive_a_restart(ranks: Ranks, tmp_path: Path) -> None:
    delivered = ranks.run(saves, str(tmp_path))[0]
    ranks.run(resumes, str(tmp_path), delivered)


def rounds(compression: str) -> None:
    model = DistributedDataParallel(Bag())
    lightcc.compress(model, compression)
    for step, gradients in enumerate(passes(model, 3)):
        assert_alike(gradients)
        expected = dense_average(step, WORLD)
        difference = float((gradients - expected).abs().max())
        assert 0 < difference < 0.01 * float(expected.abs().max())


@pytest.mark.parametrize("compression", ["float16", "bfloat16"])
def test_sixteen_bits_between_hosts(ranks: Ranks, compression: str) -> None:
    ranks.run(rounds, compression)


def shards() -> None:
    model = sharded.sharded_bags(sharded.line())
    lightcc.compress(model, "float16")
    for step, gradients in enumerate(sharded.passes(model, 2)):
        difference = float((gradients - dense_average(step, WORLD)).abs().max())
        assert 0 < difference < 0.005
    replicated = sharded.top_k(sharded.bag())
    delivered, expected = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    for step in range(4):
        delivered += sharded.backward(replicated, sharded.whole_numbers(step, dist.get_rank()))
        expected += sharded.average_of_whole_numbers(step)
    same(delivered + owed(replicated), expected)


def test_shards_and_replicas_of_them_between_hosts(ranks: Ranks) -> None:
    ranks.run(shards)
