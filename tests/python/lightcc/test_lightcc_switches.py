"""How compressed gradients are switched on, by whom and for what; and mistakes about it."""

from __future__ import annotations

import copy
import gc
import pickle
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from lightcc_models import (
    DENSE_STEPS,
    ELEMENTS,
    OWN_HOSTS,
    RATIO,
    SIZES,
    Bag,
    Reference,
    assert_alike,
    backward,
    close,
    compressed,
    dense_average,
    everyones,
    flat_sum,
    gradients_of,
    near,
    owed,
    passes,
    same,
)
from spawn_ranks import Ranks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import taco_torch

pytestmark = taco_only

WORLD = 3


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(WORLD, OWN_HOSTS) as made:
        yield made.initialise()


# -- switching on


def registered_as_a_hook() -> None:
    model = DistributedDataParallel(Bag())
    model.register_comm_hook(None, taco_torch.lightcc.hook("topk", ratio=RATIO, threshold=0))
    reference = Reference(RATIO, WORLD, ELEMENTS)
    for step, gradients in enumerate(passes(model, 4)):
        if step >= DENSE_STEPS:
            same(gradients, reference.step(everyones(step)))


def test_a_communication_hook_does_the_same(ranks: Ranks) -> None:
    ranks.run(registered_as_a_hook)


def switched_by_the_environment() -> int:
    model = DistributedDataParallel(Bag())
    gradients = list(passes(model, 4))[-1]
    assert_alike(gradients)
    return int((gradients != 0).sum())


def uses_a_hook_of_its_own() -> None:
    model = DistributedDataParallel(Bag())
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    for step, gradients in enumerate(passes(model, 4)):
        close(gradients, dense_average(step, WORLD))
    builtin = DistributedDataParallel(Bag())
    builtin._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    for step, gradients in enumerate(passes(builtin, 4)):
        close(gradients, dense_average(step, WORLD))


def is_too_late() -> None:
    model = DistributedDataParallel(Bag())
    backward(model, 0)
    with pytest.raises(RuntimeError, match="before the model's first forward"):
        model.register_comm_hook(None, default_hooks.allreduce_hook)


def test_the_environment_switches_it_on_for_every_model() -> None:
    environment = {
        **OWN_HOSTS,
        "LIGHT_TOPK_ALLREDUCE": "1",
        "LIGHT_TOPK_RATIO": "0.01",
        "LIGHT_TOPK_THRESHOLD": "0",
    }
    with Ranks(WORLD, environment) as ranks:
        ranks.initialise()
        most = WORLD * round(0.01 * ELEMENTS)
        assert all(0 < sent <= most for sent in ranks.run(switched_by_the_environment))
        ranks.run(uses_a_hook_of_its_own)
        ranks.run(is_too_late)


def changes_settings() -> None:
    """A residual goes out with the next step, whose settings are others."""
    model = compressed("topk", {"ratio": 0.05, "threshold": 0})
    delivered, expected = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    for step in range(7):
        if step == 5:
            taco_torch.lightcc.compress(model, "none")
        delivered += backward(model, step)
        expected += dense_average(step, WORLD)
    near(delivered, expected)


def test_other_settings_in_the_middle_lose_nothing(ranks: Ranks) -> None:
    ranks.run(changes_settings)


def counts() -> tuple[int, int, float]:
    before = taco_torch.stats().lightcc
    model = compressed("topk", {"ratio": 0.01, "threshold": 0})
    list(passes(model, 5))
    spent = taco_torch.stats().lightcc - before
    assert spent.encode_seconds > 0
    assert spent.decode_seconds > 0
    assert spent.ratio == spent.bytes_after / spent.bytes_before
    return spent.bytes_before, spent.bytes_after, spent.residual_norm


def test_stats_tell_bytes_before_and_after(ranks: Ranks) -> None:
    for before, after, norm in ranks.run(counts):
        assert before == 3 * 4 * ELEMENTS  # steps that were compressed
        assert 3 * 8 * 50 <= after * 2 <= before
        assert norm > 0


def drops_its_model() -> None:
    gc.collect()
    before = taco_torch.stats().lightcc.residual_norm
    model = compressed()
    list(passes(model, 4))
    assert taco_torch.stats().lightcc.residual_norm > before
    del model
    gc.collect()
    assert taco_torch.stats().lightcc.residual_norm == before


def test_a_model_takes_its_residuals_along_when_it_goes(ranks: Ranks) -> None:
    ranks.run(drops_its_model)


def compressed_all_reduce() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(5000, generator=generator)
    tensor = values * (dist.get_rank() + 1)
    expected = values * 6
    dist.all_reduce(tensor)
    assert_alike(tensor)
    error = float((tensor - expected).abs().max())
    assert 0 < error < 0.02
    for exact in (torch.full((2000,), dist.get_rank()), torch.full((2000,), 1 / 3).double()):
        total = exact.clone() * 0
        for rank in range(WORLD):
            total += torch.full_like(exact, rank) if exact.dtype == torch.int64 else exact
        dist.all_reduce(exact)
        same(exact, total)
    largest = values.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    same(largest, values)


def join_with(options: str, rank: int, port: int) -> None:
    from spawn_ranks import connect

    dist.init_process_group(
        "taco",
        store=connect(port, WORLD),
        rank=rank,
        world_size=WORLD,
        pg_options=taco_torch.Options(compress_all_reduce=options),
    )


def test_a_plain_all_reduce_is_compressed_if_the_group_says_so() -> None:
    with Ranks(WORLD, OWN_HOSTS) as ranks:
        ranks.run_each(join_with, [("float16", rank, ranks.port) for rank in range(WORLD)])
        ranks.run(compressed_all_reduce)


def test_groups_whose_options_differ_do_not_form() -> None:
    with Ranks(WORLD, OWN_HOSTS) as ranks:
        for rank in range(WORLD):
            ranks.begin(rank, join_with, "float16" if rank else "bfloat16", rank, ranks.port)
        for outcome in ranks.gather(range(WORLD)):
            assert outcome.error_type == "VersionMismatchError", outcome
            assert "float16" in outcome.error
            assert "bfloat16" in outcome.error


# -- mistakes


def mistakes() -> None:
    compress = taco_torch.lightcc.compress
    model = DistributedDataParallel(Bag())
    for options, text in [
        ({"ratio": 0.0}, "ratio is 0"),
        ({"ratio": 1.5}, "ratio is 1.5"),
        ({"ratio": float("nan")}, "ratio is nan"),
        ({"threshold": -1}, "threshold is -1"),
        ({"warm_up_steps": -1}, "warm_up_steps is -1"),
        ({"momentum": 1.0}, "momentum is 1"),
        ({"momentum": 0.9, "threshold": 4096}, "threshold is 4096, but must be 0"),
        ({"values": "float64"}, 'values is "float64"'),
    ]:
        with pytest.raises(ValueError, match=text):
            compress(model, "topk", **options)
        with pytest.raises(ValueError, match=text):
            taco_torch.lightcc.hook("topk", **options)
    for name in ("gzip", ""):
        with pytest.raises(ValueError, match=f'compression is "{name}"'):
            compress(model, name)
    for ask in (lambda: compress(model), taco_torch.lightcc.hook):
        with pytest.raises(ValueError, match="name the compression"):
            ask()
    with pytest.raises(TypeError, match="or modules of fully_shard, got Linear"):
        compress(nn.Linear(1, 1), "topk")
    with pytest.raises(TypeError, match="or modules of fully_shard, got NoneType"):
        compress(None, "topk")
    with pytest.raises(ValueError, match="no state"):
        model.register_comm_hook(1, taco_torch.lightcc.hook("topk"))
    with pytest.raises(ValueError, match="not compressed"):
        taco_torch.lightcc.flush(model)
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    with pytest.raises(RuntimeError, match=r"communication hook \(allreduce_hook\)"):
        compress(model, "topk")
    for value in ("float64", "topk"):
        with pytest.raises(ValueError, match=value):
            taco_torch.Options(compress_all_reduce=value)
    with pytest.raises(ValueError, match="LIGHT_WIRE_DTYPE"):
        taco_torch.Options(compress_all_reduce=True)


def test_mistakes_are_named(ranks: Ranks) -> None:
    ranks.run(mistakes)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ratio": "1%"}, "ratio is '1%', but must be a number"),
        ({"threshold": 1.5}, "threshold is 1.5, but must be a whole number"),
        ({"threshold": "1MB"}, "threshold is '1MB', but must be a whole number"),
        ({"warm_up_steps": 2.5}, "warm_up_steps is 2.5, but must be a whole number"),
        ({"momentum": "0.9"}, "momentum is '0.9', but must be a number"),
        ({"values": torch.float16}, "values is torch.float16, but must be a string: float32 or"),
        ({"compression": torch.float16}, "compression is torch.float16, but must be a string: "),
        ({"compression": "auto", "allow": 5}, "allow is 5, but must be names"),
        ({"grad_scaler": 1024.0}, "grad_scaler is 1024.0, but must be a torch.amp.GradScaler"),
    ],
)
def test_what_is_not_of_the_right_type_is_named(options: dict[str, Any], said: str) -> None:
    """All ranks would say the same: it needs no group."""
    with pytest.raises(TypeError, match=re.escape(said)):
        taco_torch.lightcc.hook(**{"compression": "topk", **options})


def test_momentum_is_for_buckets_of_all_sizes() -> None:
    """The optimizer has none then, so what is sent whole would have none at all."""
    settings = taco_torch.lightcc.hook("topk", momentum=0.9).settings
    assert "with momentum 0.9 from 0 bytes" in str(settings)


def test_hooks_can_be_pickled_and_copied() -> None:
    """Launchers that spawn processes hand them their arguments so."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    hook = taco_torch.lightcc.hook("topk", ratio=0.25, warm_up_steps=3, grad_scaler=scaler)
    back = pickle.loads(pickle.dumps(hook))
    assert type(back) is type(hook)
    assert back.settings == hook.settings
    assert back.grad_scaler.get_scale() == 8.0
    assert hook.__qualname__ == back.__qualname__ == "lightcc"
    copied = copy.deepcopy(hook)
    assert copied.settings == hook.settings
    assert copied.grad_scaler is scaler, "another scaler would know of no loss"
    both = copy.deepcopy({"scaler": scaler, "hook": hook})
    assert both["hook"].grad_scaler is both["scaler"]


def test_a_number_that_no_computer_has_is_named() -> None:
    with pytest.raises(ValueError, match=r"threshold is 2361183241434822606848, but must be below"):
        taco_torch.lightcc.hook("topk", threshold=1 << 71)


def odd_gradients() -> None:
    """All zero, all equal, denormal: nothing is lost, nothing fails."""
    model = compressed("topk", {"ratio": 0.3, "threshold": 0})
    total = torch.zeros(ELEMENTS)
    delivered = torch.zeros(ELEMENTS)
    for value in (1.0, 1.0, 0.0, 2.0, 1e-40, 2.0):
        model.zero_grad()
        model([torch.full((n,), value) for n in SIZES]).backward()
        delivered += gradients_of(model)
        total += value
    close(delivered + owed(model), total)


def test_odd_gradients(ranks: Ranks) -> None:
    ranks.run(odd_gradients)


def disagrees() -> None:
    model = compressed("topk", {"ratio": 0.1 if dist.get_rank() else 0.2, "threshold": 0})
    list(passes(model, 4))


def test_ranks_whose_settings_differ_get_an_error_that_shows_both() -> None:
    with Ranks(WORLD, {**OWN_HOSTS, "TACO_LOG": "off"}) as ranks:
        for outcome in ranks.initialise(timeout_s=20).outcomes(disagrees):
            assert outcome.error_type == "MismatchError", outcome
            assert "TopK 10%" in outcome.error
            assert "TopK 20%" in outcome.error


def sum_of_everything() -> float:
    model = compressed()
    return float(sum(g.sum() for g in passes(model, 4)))


def test_one_host_is_exact() -> None:
    """Nothing crosses between hosts, so nothing is compressed."""
    with Ranks(WORLD, {"TACO_LOG": "warning"}) as ranks:
        found = ranks.initialise().run(sum_of_everything)
    expected = sum(float(flat_sum(step, WORLD).sum()) / WORLD for step in range(4))
    assert found == pytest.approx([expected] * WORLD, rel=1e-3)
