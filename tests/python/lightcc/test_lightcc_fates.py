"""The fate of gradients decides what LightCC owes: whether programs, as people write them, apply,
skip or drop them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from lightcc_models import OWN_HOSTS, Bag, same
from spawn_ranks import Ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taco_torch

pytestmark = taco_only

lightcc = taco_torch.lightcc
WORLD = 2
MANY, FEW = 6000, 300
TOP_K: dict[str, Any] = {"compression": "topk", "ratio": 0.02, "threshold": 0}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(WORLD, OWN_HOSTS) as made:
        yield made.initialise()


@pytest.fixture(scope="module")
def switched_on() -> Iterator[Ranks]:
    """By variables alone."""
    own = {"LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_THRESHOLD": "0", "LIGHT_TOPK_RATIO": "0.02"}
    with Ranks(WORLD, OWN_HOSTS | own) as made:
        yield made.initialise()


def whole(step: int, size: int, rank: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(
        1000 * step + (dist.get_rank() if rank is None else rank)
    )
    return torch.randint(-100, 101, (size,), generator=generator).float()


def average(step: int, size: int) -> torch.Tensor:
    return sum((whole(step, size, rank) for rank in range(WORLD)), torch.zeros(size)) / WORLD


def bag(*sizes: int, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(Bag(sizes), **options)


def top_k(model: nn.Module, **options: Any) -> nn.Module:
    lightcc.compress(model, **TOP_K, **options)
    return model


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def account(model: nn.Module, place: int) -> torch.Tensor:
    """The sum of all that was applied to a parameter, and of what is owed to it."""
    weight = list(model.parameters())[place].detach()
    return lightcc.state_dict(model)["residuals"][f"weights.{place}"] - weight


def generator_and_discriminator(tell: Callable[[nn.Module], None], guarded: bool) -> None:
    discriminator, generator = bag(MANY), bag(FEW)
    for model in (discriminator, generator):
        tell(model)
    first, second = sgd(discriminator.parameters()), sgd(generator.parameters())
    computed = torch.zeros(MANY)
    for step in range(12):
        discriminator.zero_grad()
        discriminator([whole(2 * step, MANY)]).backward()
        first.step()
        computed += average(2 * step, MANY)
        generator.zero_grad()
        with discriminator.no_sync() if guarded else contextlib.nullcontext():
            through = discriminator([whole(2 * step + 1, MANY)])
            (through + generator([whole(step, FEW)])).backward()
        second.step()
    same(account(discriminator, 0), computed)


@pytest.mark.parametrize("guarded", [False, True])
def test_passes_through_a_discriminator_leave_no_trace_in_it(ranks: Ranks, guarded: bool) -> None:
    ranks.run(generator_and_discriminator, top_k, guarded)


def leave_alone(model: nn.Module) -> None:
    """Variables have said it."""


def test_nor_where_variables_switch_it_on(switched_on: Ranks) -> None:
    switched_on.run(generator_and_discriminator, leave_alone, False)


def leaves_steps_out(how: str) -> None:
    model = top_k(bag(MANY))
    optimizer = sgd(model.parameters())
    computed = torch.zeros(MANY)
    for step in range(16):
        model([whole(step, MANY)]).backward()
        if step % 3 != 2:
            optimizer.step()
            computed += average(step, MANY)
        gradient = next(model.parameters()).grad
        if how == "zero":
            assert gradient is not None
            gradient.zero_()
        elif how == "none":
            next(model.parameters()).grad = None
        else:
            optimizer.zero_grad(set_to_none=how == "zero_grad")
    same(account(model, 0), computed)


@pytest.mark.parametrize("how", ["zero", "none", "zero_grad", "zero_grad in place"])
def test_gradients_that_are_thrown_away_leave_no_trace(ranks: Ranks, how: str) -> None:
    ranks.run(leaves_steps_out, how)


def two_losses_in_turn(view: bool) -> None:
    model = top_k(bag(MANY, MANY, find_unused_parameters=True, gradient_as_bucket_view=view))
    parameters = list(model.parameters())
    first, second = sgd(parameters[:1]), sgd(parameters[1:])
    computed = torch.zeros(MANY)
    for step in range(8):
        first.zero_grad()
        model([whole(step, MANY), None]).backward()
        first.step()
        computed += average(step, MANY)
        second.zero_grad()
        kept = parameters[0].grad.clone()
        model([None, whole(100 + step, MANY)]).backward()
        same(parameters[0].grad, kept)
        second.step()
    same(account(model, 0), computed)


@pytest.mark.parametrize("view", [False, True])
def test_stale_gradients_of_what_a_pass_does_not_use_stay_where_they_are(
    ranks: Ranks, view: bool
) -> None:
    ranks.run(two_losses_in_turn, view)


def skipped_by_a_scaler(named: bool, fused: bool) -> None:
    """One of two optimizers over one model."""
    model = bag(MANY, MANY)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    top_k(model, **({"grad_scaler": scaler} if named else {}))
    parameters = list(model.parameters())
    first = torch.optim.SGD(parameters[:1], lr=1.0, fused=fused)
    second = torch.optim.SGD(parameters[1:], lr=1.0, fused=fused)
    computed = torch.zeros(MANY)
    for step in range(12):
        gradients = [whole(step, MANY), whole(100 + step, MANY)]
        if step in (5, 8) and dist.get_rank() == 1:
            gradients[0][7] = float("inf")
        first.zero_grad()
        second.zero_grad()
        scaler.scale(model(gradients)).backward()
        scaler.step(first)
        scaler.step(second)
        scaler.update()
        computed += average(100 + step, MANY)
    assert bool(torch.isfinite(parameters[0]).all())
    same(account(model, 1), computed)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_an_optimizer_that_a_scaler_skips_does_not_concern_another(
    ranks: Ranks, named: bool, fused: bool
) -> None:
    ranks.run(skipped_by_a_scaler, named, fused)


def infinities_elsewhere() -> None:
    """In a gradient that is not compressed: the step is skipped all the same."""
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=10**6)
    module = Bag((MANY, FEW))
    module.weights[1] = nn.Parameter(torch.zeros(FEW, dtype=torch.float64))
    model = top_k(DistributedDataParallel(module), grad_scaler=scaler)
    optimizer = sgd(model.parameters())
    computed = torch.zeros(MANY)
    for step in range(8):
        optimizer.zero_grad()
        other = whole(100 + step, FEW)
        if step == 5:
            other[3] = float("inf")
        scaler.scale(model([whole(step, MANY), other])).backward()
        scaler.step(optimizer)
        scaler.update()
        computed += average(step, MANY)  # what is finite of the skipped step is kept
    same(account(model, 0), computed)


def test_a_step_skipped_for_another_gradient_loses_nothing(ranks: Ranks) -> None:
    ranks.run(infinities_elsewhere)


def searches() -> None:
    """LBFGS computes gradients within its step, again and again, and uses all of them."""
    model = top_k(bag(200))
    target = torch.arange(200.0)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=2)
    weight = next(model.parameters())
    used = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model([(weight - target).detach() * (1 + dist.get_rank())])
        loss.backward()
        used.append((1.5 * (weight - target).detach(), weight.grad.clone()))
        return loss

    before = lightcc.state_dict(model)["residuals"]["weights.0"]
    for _ in range(3):
        optimizer.step(closure)
    owed = lightcc.state_dict(model)["residuals"]["weights.0"]
    computed = sum((wanted - got for wanted, got in used), before)
    torch.testing.assert_close(owed, computed, rtol=1e-4, atol=1e-2)


def test_what_a_closure_computes_within_a_step_is_used(ranks: Ranks) -> None:
    ranks.run(searches)


def tells_by_itself() -> None:
    """No optimizer has the parameters."""
    model = top_k(bag(MANY))
    weight = next(model.parameters())
    lightcc.used(model.parameters())
    computed = torch.zeros(MANY)
    for step in range(10):
        model([whole(step, MANY)]).backward()
        if step % 3 == 1:
            lightcc.dropped(model.parameters())
        else:
            with torch.no_grad():
                weight -= weight.grad
            lightcc.used(model.parameters())
            computed += average(step, MANY)
        weight.grad = None
    same(account(model, 0), computed)


def test_a_program_without_optimizer_can_tell(ranks: Ranks) -> None:
    ranks.run(tells_by_itself)


# -- by variables alone


def sent(model: nn.Module, steps: int = 4) -> int:
    for step in range(steps):
        model.zero_grad()
        model([whole(step, MANY), whole(step, FEW)]).backward()
    return int((next(model.parameters()).grad != 0).sum())


MOST = WORLD * round(0.02 * (MANY + FEW))


def copies() -> None:
    model = bag(MANY, FEW)
    assert sent(copy.deepcopy(model)) <= MOST
    assert sent(model) <= MOST
    assert sent(copy.deepcopy(model)) <= MOST


def test_copies_of_a_model_are_compressed_too(switched_on: Ranks) -> None:
    switched_on.run(copies)


def unfreezes() -> None:
    model = bag(MANY, FEW, find_unused_parameters=True)
    model.module.weights[1].requires_grad_(False)
    assert sent(model) <= MOST
    model.module.weights[1].requires_grad_(True)
    assert sent(model, 5) <= MOST


def test_a_parameter_that_was_frozen_at_first_is_compressed_later(switched_on: Ranks) -> None:
    switched_on.run(unfreezes)


def overflows_for_a_while() -> tuple[float, float]:
    """AMP, whose scaler nobody names."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 4))
    model = DistributedDataParallel(module)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for step in range(120):
        inputs = torch.randn(32, 16, generator=generator)
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(inputs).float()
            loss = nn.functional.cross_entropy(outputs, inputs[:, :4].argmax(1))
        losses.append(float(loss.detach()))
        if 40 <= step < 52 and dist.get_rank() == 0:
            loss = loss * float("inf")
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() < 2.0**16
    return losses[0], max(losses[60:])


def test_a_scaler_that_nobody_has_named_is_followed(switched_on: Ranks) -> None:
    for first, last in switched_on.run(overflows_for_a_while):
        assert last < first


# -- mistakes


def disagrees() -> None:
    model = top_k(bag(MANY))
    optimizer = sgd(model.parameters())
    for step in range(40):
        optimizer.zero_grad()
        model([whole(step, MANY)]).backward()
        if step != 6 or dist.get_rank() == 0:
            optimizer.step()


def names_a_scaler_alone() -> None:
    scaler = torch.amp.GradScaler("cpu")
    model = bag(MANY)
    top_k(model, **({"grad_scaler": scaler} if dist.get_rank() == 0 else {}))
    for step in range(4):
        model.zero_grad()
        model([whole(step, MANY)]).backward()


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (disagrees, "must be applied, skipped or thrown away on all ranks or on none"),
        (names_a_scaler_alone, "all ranks or none must scale the loss"),
    ],
)
def test_ranks_that_do_not_do_the_same_are_told_so(mistake: Callable[[], None], text: str) -> None:
    with Ranks(WORLD, OWN_HOSTS | {"TACO_LOG": "off"}) as ranks:
        ranks.initialise()
        for outcome in ranks.outcomes(mistake):
            assert outcome.error_type == "MismatchError", outcome
            assert text in outcome.error


def another_scaler() -> None:
    model = top_k(bag(MANY))
    optimizer = sgd(model.parameters())
    for step in range(2):
        scaler = torch.amp.GradScaler("cpu")
        optimizer.zero_grad()
        scaler.scale(model([whole(step, MANY)])).backward()
        if step == 0:
            scaler.step(optimizer)
            continue
        with pytest.raises(RuntimeError, match="have had another scale until now"):
            scaler.step(optimizer)
    lightcc.compress(model, **TOP_K, grad_scaler=scaler)
    scaler.step(optimizer)


def scales_after_all() -> None:
    model = top_k(bag(MANY))
    optimizer = sgd(model.parameters())
    model([whole(0, MANY)]).backward()
    optimizer.step()
    optimizer.zero_grad()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model([whole(1, MANY)])).backward()
    with pytest.raises(RuntimeError, match="have had another scale until now"):
        scaler.step(optimizer)


def test_a_scaler_that_comes_later_has_to_be_named(ranks: Ranks) -> None:
    ranks.run(scales_after_all)


def goes_on_under_a_scaler() -> None:
    """A state is unscaled; the first gradients after it are not, and nobody names the scaler."""
    model = top_k(bag(MANY))
    optimizer, computed = sgd(model.parameters()), torch.zeros(MANY)
    for step in range(4):
        optimizer.zero_grad()
        model([whole(step, MANY)]).backward()
        optimizer.step()
        computed += average(step, MANY)
    fresh = bag(MANY)
    fresh.load_state_dict(model.state_dict())
    top_k(fresh)
    lightcc.load_state_dict(lightcc.state_dict(model), fresh)
    optimizer, scaler = sgd(fresh.parameters()), torch.amp.GradScaler("cpu", init_scale=64.0)
    for step in range(4, 8):
        optimizer.zero_grad()
        scaler.scale(fresh([whole(step, MANY)])).backward()
        scaler.step(optimizer)
        scaler.update()
        computed += average(step, MANY)
    same(account(fresh, 0), computed)


def test_what_a_checkpoint_owes_goes_out_at_the_scale_of_the_day(ranks: Ranks) -> None:
    ranks.run(goes_on_under_a_scaler)


def test_another_scaler_has_to_be_named(ranks: Ranks) -> None:
    ranks.run(another_scaler)


def programs_have_hooks(when: str) -> None:
    model = bag(MANY)
    weight = model.module.weights[0]
    heard = []
    if when == "before":
        weight.register_hook(lambda _gradient: heard.append(1))
    if when == "in another model too":
        top_k(DistributedDataParallel(model.module))
    top_k(model)
    if when == "after":
        weight.register_hook(lambda _gradient: heard.append(1))
    optimizer = sgd(model.parameters())
    computed = torch.zeros(MANY)
    for step in range(12):
        if when == "between" and step == 5:
            weight.register_hook(lambda _gradient: heard.append(1))
        model.zero_grad()
        model([whole(step, MANY)]).backward()
        if step % 3 != 1:  # else the gradient is thrown away
            optimizer.step()
            computed += average(step, MANY)
    same(account(model, 0), computed)
    assert bool(heard) == (when != "in another model too")


@pytest.mark.parametrize("when", ["before", "after", "between", "in another model too"])
def test_hooks_of_programs_and_of_others_stay_beside_ours(ranks: Ranks, when: str) -> None:
    ranks.run(programs_have_hooks, when)
