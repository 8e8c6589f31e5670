"""Training loops as people write them lose nothing under TopK, or are told what to say."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from lightcc_accounts import local
from lightcc_models import OWN_HOSTS, Bag, same
from spawn_ranks import RankFailure, Ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import taco_torch

pytestmark = taco_only

lightcc = taco_torch.lightcc
WORLD = 2
MANY, FEW = 6000, 300
STEPS = 12


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(WORLD, OWN_HOSTS) as made:
        yield made.initialise()


def whole(step: int, size: int = MANY, rank: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(
        1000 * step + (dist.get_rank() if rank is None else rank)
    )
    return torch.randint(-100, 101, (size,), generator=generator).float()


def average(step: int, size: int = MANY) -> torch.Tensor:
    return sum((whole(step, size, rank) for rank in range(WORLD)), torch.zeros(size)) / WORLD


def top_k(module: nn.Module, grad_scaler: Any = None, **options: Any) -> DistributedDataParallel:
    model = DistributedDataParallel(module, **options)
    lightcc.compress(model, "topk", ratio=0.02, threshold=0, grad_scaler=grad_scaler)
    return model


def sharded_top_k(module: nn.Module) -> nn.Module:
    """HSDP, of two replicas of one shard."""
    fully_shard(module, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard")))
    lightcc.compress(module, "topk", ratio=0.02, threshold=0)
    return module


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def account(model: nn.Module, place: int = 0) -> torch.Tensor:
    """The sum of all that was applied to a parameter, and of what is owed to it."""
    weight = list(model.parameters())[place].detach()
    return local(list(lightcc.state_dict(model)["residuals"].values())[place] - weight)


Made = Callable[[nn.Module], nn.Module]
BOTH = pytest.mark.parametrize("made", [top_k, sharded_top_k])


class NotFinite(Exception):
    """A program's own."""


# -- gradients that lie elsewhere


def replaces_by_zeros(view: bool) -> None:
    model = top_k(Bag([MANY]), gradient_as_bucket_view=view)
    optimizer, computed = sgd(model.parameters()), torch.zeros(MANY)
    for step in range(16):
        model([whole(step)]).backward()
        if step % 3 != 2:
            optimizer.step()
            computed += average(step)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
    same(account(model), computed)


@pytest.mark.parametrize("view", [False, True])
def test_gradients_that_zeros_take_the_place_of_leave_no_trace(ranks: Ranks, view: bool) -> None:
    ranks.run(replaces_by_zeros, view)


def clips_between_passes(view: bool) -> None:
    """Two losses a step, of which the second does not use the first parameter."""
    model = top_k(Bag([MANY, FEW]), find_unused_parameters=True, gradient_as_bucket_view=view)
    optimizer, computed = sgd(model.parameters()), torch.zeros(MANY)
    for step in range(STEPS):
        optimizer.zero_grad()
        model([whole(step), whole(step, FEW)]).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad = parameter.grad.clamp(-1e6, 1e6)
        model([None, whole(100 + step, FEW)]).backward()
        optimizer.step()
        computed += average(step)
    same(account(model), computed)


@pytest.mark.parametrize("view", [False, True])
def test_gradients_that_are_clipped_into_other_tensors_are_not_thrown_away(
    ranks: Ranks, view: bool
) -> None:
    ranks.run(clips_between_passes, view)


def scales_in_place_between_passes(made: Made) -> None:
    """As clip_grad_norm_ does. Of the second parameter nothing is sent for long."""
    model = made(Bag([MANY, 2]))
    optimizer, computed = sgd(model.parameters()), torch.zeros(2)
    for step in range(STEPS):
        for number in range(2):
            model([whole(2 * step + number), torch.ones(2)]).backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(1.0)
            computed += 1
        optimizer.step()
        optimizer.zero_grad()
    same(account(model, 1), computed)


@BOTH
def test_gradients_that_were_zero_anyway_are_not_thrown_away(ranks: Ranks, made: Made) -> None:
    ranks.run(scales_in_place_between_passes, made)


def puts_aside(says: Callable[[Any], None] | None) -> None:
    """Gradients of two tasks, which are applied together."""
    model = top_k(Bag([MANY]))
    optimizer, computed = sgd(model.parameters()), torch.zeros(MANY)
    weight = next(model.parameters())
    for step in range(STEPS):
        kept = torch.zeros(MANY)
        for task in (2 * step, 2 * step + 1):
            optimizer.zero_grad()
            model([whole(task)]).backward()
            assert weight.grad is not None
            kept += weight.grad
            computed += average(task)
            if says is not None:
                says(model.parameters())
        optimizer.zero_grad()
        weight.grad = kept
        optimizer.step()
    same(account(model), computed)


def test_gradients_that_were_put_aside_are_used_if_the_program_says_so(ranks: Ranks) -> None:
    ranks.run(puts_aside, lightcc.used)


def test_gradients_that_were_put_aside_unsaid_are_refused() -> None:
    with (
        Ranks(WORLD, OWN_HOSTS) as ranks,
        pytest.raises(RankFailure, match=r"call lightcc\.used\(parameters\) before"),
    ):
        ranks.initialise().run(puts_aside, None)


def steps_by_other_gradients() -> None:
    model = top_k(Bag([MANY]))
    optimizer, computed = sgd(model.parameters()), torch.zeros(MANY)
    weight = next(model.parameters())
    for step in range(STEPS):
        model([whole(step)]).backward()
        optimizer.zero_grad()
        lightcc.dropped(model.parameters())
        weight.grad = average(100 + step)
        optimizer.step()
        computed += average(100 + step)
        optimizer.zero_grad()
    same(account(model), computed)


def test_gradients_from_elsewhere_may_be_applied_after_a_pass_that_was_dropped(
    ranks: Ranks,
) -> None:
    ranks.run(steps_by_other_gradients)


def leaves_it_to_another() -> None:
    """After a pass that is thrown away, one rank alone uses the first parameter."""
    model = top_k(Bag([MANY, FEW]), find_unused_parameters=True)
    optimizer, computed = sgd(model.parameters()), torch.zeros(MANY)
    for step in range(STEPS):
        model([whole(2 * step), whole(2 * step, FEW)]).backward()
        optimizer.zero_grad()
        mine = whole(2 * step + 1) if dist.get_rank() == 1 else None
        model([mine, whole(2 * step + 1, FEW)]).backward()
        optimizer.step()
        optimizer.zero_grad()
        computed += whole(2 * step + 1, rank=1) / WORLD
    same(account(model), computed)


def test_what_another_rank_has_computed_was_not_put_aside(ranks: Ranks) -> None:
    ranks.run(leaves_it_to_another)


class Scale:
    """A loss scale of the program's own."""

    def __init__(self) -> None:
        self.factor = 4.0

    def get_scale(self) -> float:
        return self.factor


def scales_by_hand() -> None:
    scale = Scale()
    model = top_k(Bag([MANY]), grad_scaler=scale)
    optimizer, computed = sgd(model.parameters()), torch.zeros(MANY)
    weight = next(model.parameters())
    for step in range(STEPS):
        scale.factor *= 2 if step % 3 == 2 else 1
        (model([whole(step)]) * scale.factor).backward()
        assert weight.grad is not None
        weight.grad.div_(scale.factor)
        optimizer.step()
        optimizer.zero_grad()
        computed += average(step)
    same(account(model), computed)


def test_a_loss_scale_of_the_programs_own_is_followed(ranks: Ranks) -> None:
    ranks.run(scales_by_hand)


# -- steps and optimizers


def tries_again(made: Made) -> None:
    """Closures that fail, after a backward pass."""
    model = made(Bag([MANY]))
    optimizer, computed = sgd(model.parameters()), torch.zeros(MANY)
    for step in range(STEPS):

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model([whole(step)])
            loss.backward()
            if step % 3 == 1:
                raise NotFinite
            return loss

        try:
            optimizer.step(closure)
            computed += average(step)
        except NotFinite:
            optimizer.zero_grad()
    same(account(model), computed)


@BOTH
def test_what_a_closure_computes_that_fails_is_not_used(ranks: Ranks, made: Made) -> None:
    ranks.run(tries_again, made)


def unfreezes_step_by_step(made: Made) -> None:
    """An optimizer gets the body some steps after the head; the model's gradients are zeroed."""
    model = made(Bag([MANY, FEW]))
    body, head = model.parameters()
    optimizer, computed = sgd([head]), torch.zeros(MANY)
    for step in range(STEPS):
        if step == 5:
            optimizer.add_param_group({"params": [body], "lr": 1.0})
        model.zero_grad()
        model([whole(step), whole(step, FEW)]).backward()
        optimizer.step()
        if step >= 5:
            computed += average(step)
    same(account(model), computed)


@BOTH
def test_what_is_trained_later_inherits_nothing_from_before(ranks: Ranks, made: Made) -> None:
    ranks.run(unfreezes_step_by_step, made)


class Sharpness(torch.optim.Optimizer):
    """SAM (Foret et al., 2021) with a radius of 0: of a step's two passes the second is applied."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.base = sgd(self.param_groups)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.zero_grad()
        torch.enable_grad()(closure)()
        self.base.step()
        self.zero_grad()


def ascends_first() -> None:
    model = top_k(Bag([MANY]))
    optimizer, computed = Sharpness(model.parameters()), torch.zeros(MANY)
    for step in range(STEPS):
        model([whole(2 * step)]).backward()
        optimizer.step(lambda step=step: model([whole(2 * step + 1)]).backward())
        computed += average(2 * step + 1)
    same(account(model), computed)


def test_of_two_passes_a_step_the_one_that_is_applied_counts(ranks: Ranks) -> None:
    ranks.run(ascends_first)


def shards_states() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = top_k(Bag([MANY, FEW, 500]))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=1.0)
    learn_and_skip(model, optimizer.step, optimizer.zero_grad, model)


def compiles(whole_model: bool) -> None:
    model = top_k(Bag([MANY, FEW, 500]))
    optimizer = sgd(model.parameters())
    called = torch.compile(model, backend="eager") if whole_model else model
    step = torch.compile(optimizer.step, backend="eager")
    learn_and_skip(model, step, torch.compile(optimizer.zero_grad, backend="eager"), called)


def learn_and_skip(model: nn.Module, apply: Any, zero_grad: Any, called: Any) -> None:
    """Applies two steps of three."""
    computed = torch.zeros(MANY)
    for step in range(STEPS):
        called([whole(step), whole(step, FEW), whole(step, 500)]).backward()
        if step % 3 != 1:
            apply()
            computed += average(step)
        zero_grad()
    same(account(model), computed)


def test_an_optimizer_may_have_its_states_on_several_ranks(ranks: Ranks) -> None:
    ranks.run(shards_states)


@pytest.mark.parametrize("whole_model", [False, True])
def test_models_and_optimizers_may_be_compiled(ranks: Ranks, whole_model: bool) -> None:
    ranks.run(compiles, whole_model)


def takes_another() -> None:
    """The optimizer of another kind, whose parameters come group by group."""
    model = top_k(Bag([MANY, FEW]))
    first, second = model.parameters()
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    computed = torch.zeros(MANY)
    for step in range(16):
        if step == 8:
            lightcc.flush(model)  # of which the one that goes makes nothing
            optimizer.step()
            optimizer = sgd([{"params": [first]}])
            optimizer.add_param_group({"params": [second], "lr": 0.1})
        optimizer.zero_grad(set_to_none=False)
        model([whole(step), whole(step, FEW)]).backward()
        if step < 7:
            optimizer.step()
        elif step > 7:
            optimizer.step()
            computed += average(step)
    same(account(model), computed)


def test_another_optimizer_may_go_on(ranks: Ranks) -> None:
    ranks.run(takes_another)


# -- graphs


class Blocks(nn.Module):
    """Two blocks whose activations are computed again in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second, self.reentrant = Bag([MANY]), Bag([FEW]), reentrant

    def forward(self, start: torch.Tensor, gradients: list[torch.Tensor]) -> Any:
        loss = start
        for block, gradient in zip((self.first, self.second), gradients, strict=True):
            loss = checkpoint(
                lambda before, block=block, gradient=gradient: before + block([gradient]),
                loss,
                use_reentrant=self.reentrant,
            )
        return loss


def computes_again(reentrant: bool, static_graph: bool) -> None:
    model = top_k(Blocks(reentrant), static_graph=static_graph, bucket_cap_mb=0.0005)
    optimizer = sgd(model.parameters())
    computed = [torch.zeros(MANY), torch.zeros(FEW)]
    for step in range(14):
        for number in range(1 + step % 2):
            place = 2 * step + number
            start = torch.ones(1, requires_grad=True)
            model(start, [whole(place), whole(place, FEW)]).sum().backward()
            if step % 5 != 4:
                computed[0] += average(place)
                computed[1] += average(place, FEW)
        if step % 5 != 4:
            optimizer.step()
        optimizer.zero_grad()
    for place in range(2):
        same(account(model, place), computed[place])


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("static_graph", [False, True])
def test_activations_may_be_computed_again(
    ranks: Ranks, reentrant: bool, static_graph: bool
) -> None:
    ranks.run(computes_again, reentrant, static_graph)


def keeps_its_graph(view: bool, guarded: bool) -> None:
    """static_graph, with a parameter that no pass uses, and one to three passes a step."""
    model = top_k(
        Bag([MANY, FEW, MANY]), static_graph=True, gradient_as_bucket_view=view, bucket_cap_mb=0.001
    )
    optimizer, computed, place = sgd(model.parameters()), torch.zeros(MANY), 0
    for step in range(14):
        passes = 1 + step % 3
        for number in range(passes):
            here = guarded and step > 2 and number < passes - 1
            with model.no_sync() if here else contextlib.nullcontext():
                model([whole(place), whole(place, FEW), None]).backward()
            computed += average(place) if step % 4 != 3 else 0
            place += 1
        if step % 4 != 3:
            optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    same(account(model), computed)
    same(account(model, 2), torch.zeros(MANY))


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("guarded", [False, True])
def test_static_graphs(ranks: Ranks, view: bool, guarded: bool) -> None:
    ranks.run(keeps_its_graph, view, guarded)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, loss: torch.Tensor) -> torch.Tensor:
        return loss.clone()

    @staticmethod
    def backward(_: Any, *_gradients: Any) -> Any:
        raise NotFinite


def fails_and_goes_on(guarded: bool) -> None:
    """Passes that fail on all ranks, in no_sync() or not, are begun anew."""
    model = top_k(Bag([MANY]))
    optimizer, computed = sgd(model.parameters()), torch.zeros(MANY)
    for step in range(15):
        done = [2 * step, 2 * step + 1]
        try:
            with model.no_sync() if guarded else contextlib.nullcontext():
                loss = model([whole(2 * step)])
                (Fails.apply(loss) if step % 3 == 1 else loss).backward()
        except NotFinite:
            optimizer.zero_grad()
            done = done[1:]
        model([whole(2 * step + 1)]).backward()
        optimizer.step()
        optimizer.zero_grad()
        for place in done:
            computed += average(place)
    same(account(model), computed)


@pytest.mark.parametrize("guarded", [False, True])
def test_passes_that_fail_leave_no_trace(ranks: Ranks, guarded: bool) -> None:
    ranks.run(fails_and_goes_on, guarded)
