"""Compressed gradients under DistributedDataParallel: what they become, bit by bit, and what of
DDP's ways must not change."""

from __future__ import annotations

import functools
import inspect
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
    chosen,
    close,
    compressed,
    dense_average,
    everyones,
    flat,
    gradients_of,
    learn,
    near,
    owed,
    passes,
    same,
)
from spawn_ranks import Ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taco_torch

pytestmark = taco_only

WORLD = 3


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(WORLD, OWN_HOSTS) as made:
        yield made.initialise()


# -- what the gradients become


def follows_the_reference(**options: Any) -> None:
    model = compressed(**options)
    reference = Reference(RATIO, WORLD, ELEMENTS)
    for step, gradients in enumerate(passes(model, 6)):
        if step < DENSE_STEPS:
            close(gradients, dense_average(step, WORLD))
        else:
            same(gradients, reference.step(everyones(step)))
        assert_alike(gradients)


@pytest.mark.parametrize("view", [False, True])
def test_error_feedback_bit_by_bit(ranks: Ranks, view: bool) -> None:
    ranks.run(functools.partial(follows_the_reference, gradient_as_bucket_view=view))


@pytest.mark.skipif(
    "batched_grad_copy" not in inspect.signature(DistributedDataParallel).parameters,
    reason="this torch copies gradients one by one",
)
def test_batched_copies_change_nothing(ranks: Ranks) -> None:
    ranks.run(functools.partial(follows_the_reference, batched_grad_copy=True))


def corrects_momentum() -> None:
    model = compressed("topk", {"ratio": RATIO, "threshold": 0, "momentum": 0.9})
    reference = Reference(RATIO, WORLD, ELEMENTS, 0.9)
    for step, gradients in enumerate(passes(model, 6)):
        if step >= DENSE_STEPS:
            close(gradients, reference.step(everyones(step)))
        assert_alike(gradients)


def test_momentum_is_corrected(ranks: Ranks) -> None:
    ranks.run(corrects_momentum)


def rounds_to_sixteen_bits(compression: str, error: float) -> None:
    model = compressed(compression)
    for step, gradients in enumerate(passes(model, 3)):
        expected = dense_average(step, WORLD)
        assert_alike(gradients)
        difference = float((gradients - expected).abs().max())
        assert 0 < difference < error * float(expected.abs().max())


@pytest.mark.parametrize(("compression", "error"), [("float16", 0.001), ("bfloat16", 0.01)])
def test_sixteen_bits_round_from_the_first_step_on(
    ranks: Ranks, compression: str, error: float
) -> None:
    ranks.run(rounds_to_sixteen_bits, compression, error)


def none_is_exact() -> None:
    for step, gradients in enumerate(passes(compressed("none"), 3)):
        close(gradients, dense_average(step, WORLD))


def test_none_is_exact(ranks: Ranks) -> None:
    ranks.run(none_is_exact)


def stays_dense_below_the_threshold() -> None:
    model = compressed("topk", {"ratio": RATIO, "threshold": 4 * ELEMENTS + 1})
    for step, gradients in enumerate(passes(model, 4)):
        close(gradients, dense_average(step, WORLD))


def test_small_buckets_are_sent_whole(ranks: Ranks) -> None:
    ranks.run(stays_dense_below_the_threshold)


def nothing_is_lost(settings: dict[str, Any], **options: Any) -> None:
    """Checks that what was delivered and what is owed add up to the gradients."""
    model = compressed("topk", {"ratio": 0.02, "threshold": 0, **settings}, **options)
    delivered, expected = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    for step, gradients in enumerate(passes(model, 8)):
        delivered += gradients
        expected += dense_average(step, WORLD)
    assert float((expected - delivered).abs().max()) > 0.1
    near(delivered + owed(model), expected)


@pytest.mark.parametrize("settings", [{}, {"values": "float16"}, {"warm_up_steps": 6}])
def test_what_was_delivered_and_what_is_owed_add_up(ranks: Ranks, settings: dict[str, Any]) -> None:
    ranks.run(nothing_is_lost, settings)


def test_buckets_that_change_after_they_were_compressed_lose_nothing(ranks: Ranks) -> None:
    """DDP arranges the buckets of a static graph anew after its second step."""
    ranks.run(functools.partial(nothing_is_lost, {}, static_graph=True))


def sent_in_warm_up() -> list[int]:
    model = compressed("topk", {"ratio": 0.01, "threshold": 0, "warm_up_steps": 8})
    return [int((gradients != 0).sum()) for gradients in passes(model, 10)]


def test_the_ratio_comes_down_over_the_warm_up(ranks: Ranks) -> None:
    sent = ranks.run(sent_in_warm_up)[0]
    assert sent[:DENSE_STEPS] == [ELEMENTS] * DENSE_STEPS
    assert sent[2] > 2 * sent[4]
    assert sent[4] > sent[9] > 0
    assert sent[9] <= WORLD * round(0.01 * ELEMENTS)


def bags_of_another_dtype() -> None:
    model = DistributedDataParallel(Bag(dtype=torch.bfloat16))
    taco_torch.lightcc.compress(model, "topk", ratio=RATIO, threshold=0)
    for step in range(4):
        model.zero_grad()
        gradients = [g.to(torch.bfloat16) for g in chosen(step, dist.get_rank())]
        model(gradients).backward()
        torch.testing.assert_close(
            gradients_of(model).float(), dense_average(step, WORLD), rtol=0.03, atol=0.03
        )


def test_gradients_of_another_dtype_are_sent_as_they_are(ranks: Ranks) -> None:
    ranks.run(bags_of_another_dtype)


# -- DDP's ways


def accumulates() -> None:
    model = compressed()
    reference = Reference(RATIO, WORLD, ELEMENTS)
    rank = dist.get_rank()
    for step in range(0, 8, 2):
        model.zero_grad()
        with model.no_sync():
            model(chosen(step, rank)).backward()
        model(chosen(step + 1, rank)).backward()
        sums = [a + b for a, b in zip(everyones(step), everyones(step + 1), strict=True)]
        if step // 2 >= DENSE_STEPS:
            same(gradients_of(model), reference.step(sums))


def test_accumulated_gradients_are_sent_once(ranks: Ranks) -> None:
    ranks.run(accumulates)


def holds_back_what_nobody_uses() -> None:
    """A parameter that is unused in every third step loses nothing of what it is owed."""
    model = compressed(find_unused_parameters=True)
    rank = dist.get_rank()
    delivered, expected = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    first = SIZES[0]
    for step in range(9):
        model.zero_grad()
        inputs: list[torch.Tensor | None] = list(chosen(step, rank))
        unused = step % 3 == 2
        wanted = dense_average(step, WORLD)
        if unused:
            inputs[0] = None
            wanted[:first] = 0
        model(inputs).backward()
        grads = [p.grad for p in model.parameters()]
        assert (grads[0] is None) == unused
        delivered += flat(
            [torch.zeros(n) if g is None else g for g, n in zip(grads, SIZES, strict=True)]
        )
        expected += wanted
    remaining = owed(model)
    assert float(remaining[:first].abs().sum()) > 0
    near(delivered + remaining, expected)


def test_what_is_owed_to_an_unused_parameter_is_held_back(ranks: Ranks) -> None:
    ranks.run(holds_back_what_nobody_uses)


def joins_early() -> None:
    model = compressed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in range(4 + 2 * dist.get_rank()):
            optimizer.zero_grad()
            model(chosen(step, dist.get_rank())).backward()
            optimizer.step()
    assert_alike(flat(list(model.parameters())).detach())
    with (
        pytest.raises(NotImplementedError, match="divide_by_initial_world_size"),
        model.join(divide_by_initial_world_size=False),
    ):
        pass


def test_ranks_with_fewer_inputs_join_early(ranks: Ranks) -> None:
    ranks.run(joins_early)


def two_models_and_a_part_of_the_ranks() -> None:
    pair = dist.new_group([0, 1])
    whole = compressed()
    rank = dist.get_rank()
    part = compressed(process_group=pair) if rank < 2 else None
    of_whole, of_part = Reference(RATIO, WORLD, ELEMENTS), Reference(RATIO, 2, ELEMENTS)
    for step in range(5):
        gradients = backward(whole, step)
        expected = everyones(step)
        if step >= DENSE_STEPS:
            same(gradients, of_whole.step(expected))
        if part is not None:
            gradients = backward(part, step)
            if step >= DENSE_STEPS:
                same(gradients, of_part.step(expected[:2]))


def test_several_models_and_a_part_of_the_ranks(ranks: Ranks) -> None:
    ranks.run(two_models_and_a_part_of_the_ranks)


def moves_to_a_smaller_group() -> None:
    pair = dist.new_group([0, 1])
    model = compressed("topk", {"ratio": 0.05, "threshold": 0})
    list(passes(model, 4))
    before = owed(model)
    if dist.get_rank() == 2:
        return
    model._update_process_group(pair)
    after = owed(model)
    assert 0 < float(after.norm()) < 3 * float(before.norm())
    delivered, expected = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    for step in range(4, 8):
        model.zero_grad()
        model(chosen(step, dist.get_rank())).backward()
        delivered += gradients_of(model)
        expected += dense_average(step, 2)
    near(delivered + owed(model), expected + after)


def test_a_model_that_moves_to_another_group_keeps_what_its_ranks_owe(ranks: Ranks) -> None:
    ranks.run(moves_to_a_smaller_group)


def clips_and_learns() -> float:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 1))
    model = DistributedDataParallel(module)
    taco_torch.lightcc.compress(model, "topk", ratio=0.05, threshold=0)
    losses = learn(model, 1.0)
    assert_alike(flat(list(model.parameters())).detach())
    return losses[-1] / losses[0]


def test_a_network_learns_with_clipped_gradients(ranks: Ranks) -> None:
    assert max(ranks.run(clips_and_learns)) < 0.2


def sparse_gradients() -> None:
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.EmbeddingBag(100, 8, sparse=True))
    taco_torch.lightcc.compress(model, "topk", threshold=0)
    inputs = torch.arange(10).view(5, 2) + 20 * dist.get_rank()
    model(inputs).sum().backward()
    dense = model.module.weight.grad.to_dense()
    assert_alike(dense)
    assert int((dense.abs().sum(1) > 0).sum()) == 10 * WORLD


def test_sparse_gradients_are_exact(ranks: Ranks) -> None:
    ranks.run(sparse_gradients)


# -- the loss scale


def scaled(model: DistributedDataParallel, scaler: Any, step: int, bad: bool) -> torch.Tensor:
    """One step under the scaler; the unscaled gradients, or zeros where it skips."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model.zero_grad()
    gradients = chosen(step, dist.get_rank())
    if bad and dist.get_rank() == 1:
        gradients[0][7] = float("inf")
    scaler.scale(model(gradients)).backward()
    scaler.unscale_(optimizer)
    result = gradients_of(model).clone()
    scaler.step(optimizer)
    scaler.update()
    return torch.zeros(ELEMENTS) if bad else result


def survives_skipped_steps() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    model = compressed("topk", {"ratio": 0.05, "threshold": 0, "grad_scaler": scaler})
    delivered, expected = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    for step in range(10):
        bad = step in (4, 7)
        delivered += scaled(model, scaler, step, bad)
        if not bad:
            expected += dense_average(step, WORLD)
            continue
        # Rank 1's gradient was not finite, and left alone what it owed. The others owe what they
        # had added up: theirs is not lost.
        for rank in (0, 2):
            expected += flat(chosen(step, rank)) / WORLD
    assert scaler.get_scale() != 1024.0
    near(delivered + owed(model), expected)


def test_steps_that_the_scaler_skips_lose_nothing(ranks: Ranks) -> None:
    ranks.run(survives_skipped_steps)
