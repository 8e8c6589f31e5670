"""Compressed gradients of modules of fully_shard (FSDP2): four ranks on two hosts, each rank with a
shard of its own, or each host a replica (HSDP)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from lightcc_models import (
    ELEMENTS,
    SIZES,
    Reference,
    assert_alike,
    chosen,
    close,
    dense_average,
    dense_sum,
    flat,
    learn,
    near,
    owed,
    same,
)
from lightcc_sharded import (
    WORLD,
    average_of_whole_numbers,
    backward,
    bag,
    bags,
    coded_bytes,
    line,
    passes,
    ranks_of_two_hosts,
    replicas_only,
    sharded_bag,
    sharded_bags,
    square,
    top_k,
    whole_gradients,
    whole_numbers,
)
from marks import whole
from spawn_ranks import Ranks
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

import taco_torch

pytestmark = taco_only

lightcc = taco_torch.lightcc
RATIO = 0.1


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with ranks_of_two_hosts() as made:
        yield made


# -- 16 bits, each rank with a shard of its own


def rounded(gradients: torch.Tensor, expected: torch.Tensor, error: float) -> None:
    difference = float((gradients - expected).abs().max())
    assert 0 < difference < error * float(expected.abs().max())


def rounds_once(compression: str, error: float) -> None:
    model = sharded_bags(line())
    lightcc.compress(model, compression)
    before = coded_bytes()
    for step, gradients in enumerate(passes(model, 3)):
        rounded(gradients, dense_average(step, WORLD), error)
        assert_alike(gradients)
    # A host codes what belongs to the other's ranks; a shard is as long as the longest.
    shares = sum(-(-size // WORLD) for size in SIZES)
    assert coded_bytes() - before == 3 * 2 * 2 * 4 * shares


@pytest.mark.parametrize(("compression", "error"), [("float16", 0.001), ("bfloat16", 0.01)])
def test_shards_travel_in_sixteen_bits(ranks: Ranks, compression: str, error: float) -> None:
    ranks.run(rounds_once, compression, error)


def stays_exact() -> None:
    before = coded_bytes()
    model = sharded_bag(line())
    lightcc.compress(model, "none")
    for step, gradients in enumerate(passes(model, 2)):
        close(gradients, dense_average(step, WORLD))
    inside = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("hosts", "ranks"))["ranks"]
    alone = sharded_bag(inside)
    lightcc.compress(alone, "float16")
    first = 2 * (dist.get_rank() // 2)
    expected = (flat(chosen(0, first)) + flat(chosen(0, first + 1))) / 2
    close(backward(alone, chosen(0, dist.get_rank())), expected)
    assert coded_bytes() == before


def test_none_and_what_stays_inside_a_host_are_exact(ranks: Ranks) -> None:
    ranks.run(stays_exact)


def divides(factor: float, sums: bool) -> None:
    model = sharded_bag(line())
    lightcc.compress(model, "float16")
    model.set_gradient_divide_factor(factor)
    model.set_force_sum_reduction_for_comms(sums)
    expected = dense_average(0, WORLD) * WORLD / factor
    rounded(next(passes(model, 1)), expected, 0.001)


@pytest.mark.parametrize(("factor", "sums"), [(3.0, False), (3.0, True), (4.0, False)])
def test_a_divide_factor_of_the_programs_own(ranks: Ranks, factor: float, sums: bool) -> None:
    ranks.run(divides, factor, sums)


def accumulates(mesh: Callable[[], DeviceMesh], compression: str, all_reduce: bool) -> None:
    model = sharded_bag(mesh())
    lightcc.compress(model, compression, ratio=RATIO, threshold=0)
    delivered, expected = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    for step in range(0, 6, 2):
        model.zero_grad()
        postpone = model.set_requires_all_reduce if all_reduce else model.set_requires_gradient_sync
        postpone(False)
        model(chosen(step, dist.get_rank())).backward()
        postpone(True)
        model(chosen(step + 1, dist.get_rank())).backward()
        delivered += whole_gradients(model)
        expected += dense_average(step, WORLD) + dense_average(step + 1, WORLD)
    if compression == "topk":
        delivered += owed(model)
        near(delivered, expected)
    else:
        rounded(delivered, expected, 0.001)


@pytest.mark.parametrize(
    ("mesh", "compression", "all_reduce"),
    [(line, "float16", False), (square, "topk", False), (square, "topk", True)],
)
def test_accumulated_gradients_are_sent_once(
    ranks: Ranks, mesh: Callable[[], DeviceMesh], compression: str, all_reduce: bool
) -> None:
    ranks.run(accumulates, mesh, compression, all_reduce)


def in_mixed_precision(reduce: torch.dtype) -> int:
    before = coded_bytes()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce)
    model = sharded_bag(square(), mp_policy=policy)
    lightcc.compress(model, "float16")
    for step in range(2):
        gradients = [g.to(torch.bfloat16) for g in chosen(step, dist.get_rank())]
        torch.testing.assert_close(
            backward(model, gradients), dense_average(step, WORLD), rtol=0.03, atol=0.03
        )
    return coded_bytes() - before


def test_gradients_of_another_dtype_are_averaged_as_they_are(ranks: Ranks) -> None:
    assert ranks.run(in_mixed_precision, torch.bfloat16) == [0] * WORLD
    assert min(ranks.run(in_mixed_precision, torch.float32)) > 0


def under(mesh: Callable[[], DeviceMesh], options: dict[str, Any], compiled: bool) -> None:
    model: Any = sharded_bags(mesh(), **options)
    if compiled:
        model = torch.compile(model, backend="eager")
    lightcc.compress(model, "float16")
    for step, gradients in enumerate(passes(model, 2)):
        rounded(gradients, dense_average(step, WORLD), 0.002)
    assert set(lightcc.state_dict(model)) == {"residuals", "step", "exact"}


@pytest.mark.parametrize("mesh", [line, square])
@pytest.mark.parametrize(
    ("options", "compiled"),
    [
        ({"reshard_after_forward": False}, False),
        ({"reshard_after_forward": True}, True),
        ({"offload_policy": CPUOffloadPolicy(pin_memory=False)}, False),
    ],
)
def test_policies_and_the_compiler_change_nothing(
    ranks: Ranks, mesh: Callable[[], DeviceMesh], options: dict[str, Any], compiled: bool
) -> None:
    ranks.run(under, mesh, options, compiled, deadline_s=120)


# -- TopK between replicas


def shard_of(whole: Sequence[torch.Tensor], place: int) -> torch.Tensor:
    """The parameters of one of two ranks, as FSDP2 lays them out: padded to the longest."""
    parts = []
    for values in whole:
        each = -(-values.numel() // 2)
        parts.append(
            nn.functional.pad(values, (0, 2 * each - values.numel()))[place * each :][:each]
        )
    return flat(parts)


def own_shard(model: nn.Module) -> torch.Tensor:
    parts = []
    for size, parameter in zip(SIZES, model.parameters(), strict=True):
        local = parameter.grad.to_local()
        parts.append(nn.functional.pad(local, (0, -(-size // 2) - local.numel())))
    return flat(parts)


def follows_the_reference(momentum: float) -> None:
    model = top_k(sharded_bag(square()), RATIO, momentum=momentum)
    place = dist.get_rank() % 2
    elements = sum(-(-size // 2) for size in SIZES)
    reference = Reference(RATIO, 2, elements, momentum)
    for step in range(6):
        gradients = backward(model, chosen(step, dist.get_rank()))
        assert_alike(gradients)
        averages = []
        for replica in range(2):
            pair = [chosen(step, 2 * replica), chosen(step, 2 * replica + 1)]
            averages.append(shard_of([(a + b) / 2 for a, b in zip(*pair, strict=True)], place))
        expected = reference.step(averages)
        (close if momentum else same)(own_shard(model), expected)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_error_feedback_bit_by_bit_from_the_first_step_on(ranks: Ranks, momentum: float) -> None:
    ranks.run(follows_the_reference, momentum)


def nothing_is_lost(model: Callable[[], nn.Module], settings: dict[str, Any]) -> None:
    """Bit by bit: what was delivered and what is owed are what was given, though now and then a
    parameter has no gradient."""
    made = top_k(model(), **settings)
    delivered, expected = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    for step in range(9):
        unused = {2: [0], 3: [0, 3], 6: [1]}.get(step, [])
        gradients = backward(made, whole_numbers(step, dist.get_rank(), unused=unused))
        assert_alike(gradients)
        assert all(not part.any() for part in (gradients.split(SIZES)[index] for index in unused))
        delivered += gradients
        expected += average_of_whole_numbers(step, unused)
    remaining = owed(made)
    assert float(remaining.abs().sum()) > 1000
    same(delivered + remaining, expected)


@pytest.mark.parametrize("model", [bag, bags, replicas_only])
@pytest.mark.parametrize("settings", [{}, {"warm_up_steps": 6}])
def test_what_was_delivered_and_what_is_owed_add_up(
    ranks: Ranks, model: Callable[[], nn.Module], settings: dict[str, Any]
) -> None:
    ranks.run(nothing_is_lost, model, settings)


def flushes(factor: float | None, sums: bool) -> None:
    """Residuals are in units of the gradient, whoever divides."""
    model = top_k(sharded_bag(square()))
    if factor is not None:
        model.set_gradient_divide_factor(factor)
    model.set_force_sum_reduction_for_comms(sums)
    unit = WORLD / (factor or WORLD)
    delivered = torch.stack(list(passes(model, 4))).sum(0)
    expected = unit * dense_sum(range(4), WORLD)
    near(delivered + owed(model), expected)
    model.zero_grad()
    model(chosen(4, dist.get_rank())).backward()
    lightcc.flush(model)
    delivered += whole_gradients(model)
    near(delivered, expected + unit * dense_average(4, WORLD))
    same(owed(model), torch.zeros(ELEMENTS))


@pytest.mark.parametrize(
    ("factor", "sums"), [(None, False), (None, True), (3.0, False), (3.0, True)]
)
def test_flush_adds_all_that_is_owed_in_units_of_the_gradient(
    ranks: Ranks, factor: float | None, sums: bool
) -> None:
    ranks.run(flushes, factor, sums)


def changes_settings() -> None:
    model = top_k(sharded_bag(square()))
    delivered = torch.stack(list(passes(model, 3))).sum(0)
    lightcc.compress(model, "none")
    delivered += next(passes(model, 1, first=3))
    expected = dense_sum(range(4), WORLD)
    near(delivered, expected)


def test_other_settings_in_the_middle_lose_nothing(ranks: Ranks) -> None:
    ranks.run(changes_settings)


def scaled(model: nn.Module, scaler: Any, step: int, bad: bool) -> torch.Tensor:
    """One step under the scaler; the unscaled gradients, or zeros where it skips."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model.zero_grad()
    gradients = whole_numbers(step, dist.get_rank())
    if bad and dist.get_rank() == 1:
        assert gradients[0] is not None
        gradients[0][7] = float("inf")  # of the first shard
    scaler.scale(model(gradients)).backward()
    scaler.unscale_(optimizer)
    result = whole_gradients(model)
    scaler.step(optimizer)
    scaler.update()
    return torch.zeros(ELEMENTS) if bad else result


def survives_skipped_steps() -> None:
    """The infinity is in one shard only, and both are skipped."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    model = top_k(sharded_bag(square()), grad_scaler=scaler)
    delivered, expected = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    for step in range(8):
        bad = step == 4
        delivered += scaled(model, scaler, step, bad)
        expected += average_of_whole_numbers(step)
    delivered += owed(model)
    first, second = (shard_of(delivered.split(SIZES), place) for place in range(2))
    wanted_first, wanted_second = (shard_of(expected.split(SIZES), place) for place in range(2))
    close(second, wanted_second, rtol=1e-4, atol=1e-3)
    # In the first, the host with the infinity kept nothing of that step; the other's is there.
    lost = shard_of(
        [(a + b) / 4 for a, b in zip(whole_numbers(4, 0), whole_numbers(4, 1), strict=True)], 0
    )
    close(first, wanted_first - lost, rtol=1e-4, atol=1e-3)


def test_a_step_that_the_scaler_skips_is_skipped_for_all_shards(ranks: Ranks) -> None:
    ranks.run(survives_skipped_steps)


def saves_between_a_skipped_step_and_the_next() -> None:
    """The infinity is in the first shard; of the second, both hosts owe all they have sent."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model = top_k(sharded_bag(square()), grad_scaler=scaler)
    delivered, expected = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)

    def nothing_is_lost(owed_now: torch.Tensor) -> None:
        found, wanted = (shard_of(v.split(SIZES), 1) for v in (delivered + owed_now, expected))
        close(found, wanted, rtol=1e-4, atol=1e-3)

    def step_of(trained: nn.Module, step: int, bad: bool) -> None:
        nonlocal delivered, expected
        delivered = delivered + scaled(trained, scaler, step, bad)
        expected = expected + average_of_whole_numbers(step)

    for step in range(4):
        step_of(model, step, bad=step == 3)
    state = lightcc.state_dict(model)
    saved = owed(model)  # asked again
    nothing_is_lost(saved)
    same(flat([residual.full_tensor() for residual in state["residuals"].values()]), saved)
    resumed = top_k(sharded_bag(square()), grad_scaler=scaler)
    lightcc.load_state_dict(state, resumed)
    so_far = delivered, expected
    for trained in (model, resumed):
        delivered, expected = so_far
        for step in range(4, 7):
            step_of(trained, step, bad=step == 5)
        nothing_is_lost(owed(trained))


def test_a_state_after_a_skipped_step_has_what_that_step_sent(ranks: Ranks) -> None:
    ranks.run(saves_between_a_skipped_step_and_the_next)


# -- both legs


def both_legs() -> int:
    """Every rank is a host of its own: shards travel in 16 bits, and replicas exchange a part."""
    before = coded_bytes()
    model = sharded_bag(square())
    lightcc.compress(model, "float16")
    for step, gradients in enumerate(passes(model, 3)):
        rounded(gradients, dense_average(step, WORLD), 0.002)
    return coded_bytes() - before


def test_sixteen_bits_on_both_legs(ranks: Ranks) -> None:
    with Ranks(WORLD, {"LIGHT_INTRA_SIZE": "1", "TACO_LOG": "warning"}) as strangers:
        of_both = strangers.initialise().run(both_legs)[0]
    of_one = ranks.run(both_legs)[0]
    assert of_both > of_one > 0


# -- learning


def losses(compression: str, mesh: Callable[[], DeviceMesh], rate: float = 0.1) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 100), nn.Tanh(), nn.Linear(100, 1))
    fully_shard(model[0], mesh=mesh())
    fully_shard(model, mesh=mesh())
    if compression != "dense":
        lightcc.compress(model, compression, ratio=0.1, threshold=0)
    return learn(model, 10.0, rate)


def farthest(found: list[float], wanted: list[float]) -> float:
    return max(abs(a - b) / b for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("mesh", [whole(line), square])
def test_losses_stay_near_those_of_whole_gradients(
    ranks: Ranks, mesh: Callable[[], DeviceMesh]
) -> None:
    dense = ranks.run(losses, "dense", mesh)[0]
    assert farthest(ranks.run(losses, "none", mesh)[0], dense) < 1e-4
    assert 0 < farthest(ranks.run(losses, "float16", mesh)[0], dense) < 0.005
    assert farthest(ranks.run(losses, "dense", mesh, 0.11)[0], dense) > 0.005, "the control"


def test_topk_learns_between_replicas(ranks: Ranks) -> None:
    dense, sparse = (ranks.run(losses, kind, square)[0] for kind in ("dense", "topk"))
    assert sparse[-1] / sparse[0] < 0.1
    assert sparse[-1] < 2 * dense[-1] + 0.01
