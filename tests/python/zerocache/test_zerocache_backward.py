"""Steps taken in the middle of a backward pass are those that step() would have taken."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import taco_only
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from zerocache_models import TinyGPT, adamw, make_cache, train
from zerocache_steps import Optimizer, Step, check_same, everything, tokens, trained

pytestmark = taco_only


def compare(
    folder: Path, make: Callable[[], nn.Module], step: Step, steps: int = 5, **options: Any
) -> None:
    """Trains with steps at the end and in backward passes, and expects the same bits."""
    usual = trained(folder / "usual", make, step, steps, **options)
    early = trained(folder / "early", make, step, steps, step_in_backward=True, **options)
    check_same(usual, early)


def gpt_step(model: nn.Module, optimizer: Any, cache: Any, number: int) -> None:
    model(tokens(number)).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("host", [8, 12, 200])
def test_the_bits_are_those_of_steps_at_the_end(tmp_path: Path, host: int) -> None:
    compare(tmp_path, TinyGPT, gpt_step, device=10, host=host)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)


def plain_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def lion(model: nn.Module) -> torch.optim.Optimizer:
    from taco_torch.zerocache import Lion

    return Lion(model.parameters(), lr=1e-3)


def adafactor(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(model.parameters(), lr=1e-2)


@pytest.mark.parametrize("inner", [sgd, plain_sgd, lion, adafactor])
def test_all_optimizers_step_in_backward(tmp_path: Path, inner: Optimizer) -> None:
    compare(tmp_path, TinyGPT, gpt_step, inner=inner)


@pytest.mark.usefixtures("two_threads")
def test_bfloat16_parameters_with_their_master_copies(tmp_path: Path) -> None:
    compare(tmp_path, lambda: TinyGPT().bfloat16(), gpt_step, host=14)


def test_what_has_no_gradient_rests_though_gradients_were_to_be_zeros(tmp_path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)})
    with make_cache(tmp_path) as cache:
        _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True)
        for names in ("ab", "a"):
            before = cache.full("b.weight")
            sum(model[name](torch.ones(2, 8)).square().sum() for name in names).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            assert all(parameter.grad is None for parameter in model.parameters())
            assert torch.equal(cache.full("b.weight"), before) == ("b" not in names)


def test_most_is_stepped_before_step_is_called(tmp_path: Path) -> None:
    model = TinyGPT()
    with make_cache(tmp_path, device=10, host=40) as cache:
        _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True)
        gpt_step(model, optimizer, cache, 0)
        before = {name: cache.full(name) for name in cache._names.values()}
        model(tokens(1)).backward()
        assert all(parameter.grad is None for parameter in model.parameters())
        changed = sum(not torch.equal(cache.full(name), old) for name, old in before.items())
        assert changed > len(before) / 2
        optimizer.step()
        assert all(not torch.equal(cache.full(name), old) for name, old in before.items())
        assert set(optimizer.numbers().values()) == {2}


def test_every_step_has_the_same_uses(tmp_path: Path) -> None:
    model = TinyGPT()
    with make_cache(tmp_path, device=10, host=16) as cache:
        _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True)
        counts = [0]
        for number in range(4):
            gpt_step(model, optimizer, cache, number)
            counts.append(cache.stats()["uses"])
        of_steps = [after - before for before, after in itertools.pairwise(counts)]
        assert len(set(of_steps[1:])) == 1


def accumulated(model: nn.Module, optimizer: Any, cache: Any, number: int) -> None:
    with cache.accumulate():
        model(tokens(2 * number)).backward()
        assert model.get_parameter("norm.weight").grad is not None
    model(tokens(2 * number + 1)).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_gradients_that_accumulate(tmp_path: Path) -> None:
    compare(tmp_path, TinyGPT, accumulated)


class Checkpointed(TinyGPT):
    reentrant = False

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.tokens(x) + self.places
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=self.reentrant)
        logits = F.linear(self.norm(hidden), torch.ones(61, 48))
        return F.cross_entropy(logits.flatten(0, 1), x.roll(-1, 1).flatten())


class Reentrant(Checkpointed):
    reentrant = True


class Experts(nn.Module):
    """Experts, of which each batch takes another."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(64, 64)
        self.experts = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.never = nn.Linear(64, 64)
        self.frozen = nn.Linear(64, 64).requires_grad_(False)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = self.first(x)
        x = self.experts[self.calls % 3](torch.relu(x))
        return self.first(self.frozen(x))


def of_numbers(model: nn.Module, optimizer: Any, cache: Any, number: int) -> None:
    torch.manual_seed(number)
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("make", [Checkpointed, Reentrant])
def test_activations_that_are_computed_again(tmp_path: Path, make: Callable[[], nn.Module]) -> None:
    compare(tmp_path, make, gpt_step)


def test_parameters_used_twice_never_by_turns_and_frozen_ones(tmp_path: Path) -> None:
    compare(tmp_path, Experts, of_numbers, steps=9, inner=sgd)


def test_options_of_groups_and_a_schedule(tmp_path: Path) -> None:
    def groups(model: nn.Module) -> torch.optim.Optimizer:
        decayed = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim < 2]
        return torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}])

    def scheduled(model: nn.Module, optimizer: Any, cache: Any, number: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 / (number + 1)
        gpt_step(model, optimizer, cache, number)

    compare(tmp_path, TinyGPT, scheduled, inner=groups)


def test_a_closure(tmp_path: Path) -> None:
    def by_closure(model: nn.Module, optimizer: Any, cache: Any, number: int) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(tokens(number))
            loss.backward()
            return loss

        assert optimizer.step(closure).item() > 0

    compare(tmp_path, TinyGPT, by_closure)


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])


def test_clipping_of_gradients_that_are_gone_names_ours(tmp_path: Path) -> None:
    model = layers()
    with make_cache(tmp_path) as cache:
        _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True)
        model(torch.ones(2, 64)).sum().backward()
        with pytest.raises(RuntimeError, match=r"clipping=True\), and cache.clip_grad_norm_"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with pytest.raises(RuntimeError, match=r"cache\.clip_grad_norm_"):
            torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
        with pytest.raises(RuntimeError, match=r"cache\.clip_grad_norm_"):
            torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, torch.tensor(2.0))
        with pytest.raises(RuntimeError, match="clipping=True"):
            cache.clip_grad_norm_(1.0)
        optimizer.step()
        other = nn.Linear(2, 2)
        other(torch.ones(1, 2)).sum().backward()
        assert torch.nn.utils.clip_grad_norm_(other.parameters(), 0.1) > 0.1


def test_a_program_that_clips_by_infinity_is_told_the_norm(tmp_path: Path) -> None:
    def measured(wrapped: dict[str, bool]) -> list[float]:
        model, norms = TinyGPT(), []
        with make_cache(tmp_path / f"{len(wrapped)}", device=10, host=16) as cache:
            _, optimizer = cache.wrap(model, adamw(model), **wrapped)
            for number in range(3):
                with cache.accumulate():
                    model(tokens(2 * number)).backward()
                model(tokens(2 * number + 1)).backward()
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf)
                assert torch.equal(norm, cache.clip_grad_norm_(math.inf))
                norms.append(norm.item())
                optimizer.step()
                optimizer.zero_grad()
                assert torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf) == 0
        return norms

    assert measured({"step_in_backward": True}) == measured({})


def test_a_norm_that_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    model = layers()
    with make_cache(tmp_path) as cache:
        cache.wrap(model, adamw(model), step_in_backward=True)
        (model(torch.ones(2, 64)).sum() * math.inf).backward()
        with pytest.raises(RuntimeError, match=r"cache\.clip_grad_norm_"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf, norm_type=1.0)
        with pytest.raises(RuntimeError, match=r"of order 2\.0, is (inf|nan)"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf, error_if_nonfinite=True)


def test_a_second_backward_pass_is_refused_by_name(tmp_path: Path) -> None:
    model = layers()
    with make_cache(tmp_path) as cache:
        _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True)
        model(torch.ones(2, 64)).sum().backward()
        with pytest.raises(RuntimeError, match=r"'5\.(weight|bias)'.*cache.accumulate\(\)"):
            model(torch.ones(2, 64)).sum().backward()
        optimizer.zero_grad()
        of_numbers(model, optimizer, cache, 1)


class ReadAgain(nn.Module):
    """A weight of it is read once more below, where it gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.below, self.twice = nn.Linear(64, 64), Detachable()

    def forward(self, x: Tensor) -> Tensor:
        return self.twice(self.twice(torch.relu(self.below(x)), True), False)


class Detachable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64) * 0.1)

    def forward(self, x: Tensor, detached: bool) -> Tensor:
        return F.linear(x, self.weight.detach() if detached else self.weight)


def test_weights_that_are_stepped_are_not_read_by_the_rest_of_the_pass(tmp_path: Path) -> None:
    model = ReadAgain()
    with make_cache(tmp_path) as cache:
        _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True)
        loss = model(torch.ones(2, 64)).square().mean()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        optimizer.zero_grad()


def test_weights_in_a_use_by_hand_are_stepped_after_it(tmp_path: Path) -> None:
    plain, model = ReadAgain(), ReadAgain()
    plain_optimizer = adamw(plain)
    with make_cache(tmp_path) as cache:
        _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True)
        for _ in range(2):
            with cache.use(model, writes=False):
                model(torch.ones(2, 64)).square().mean().backward()
            optimizer.step()
            plain(torch.ones(2, 64)).square().mean().backward()
            plain_optimizer.step()
            plain_optimizer.zero_grad()
        for name, parameter in plain.named_parameters():
            torch.testing.assert_close(cache.full(name), parameter.detach(), rtol=1e-4, atol=1e-5)


def test_a_scaler_is_refused_by_name(tmp_path: Path) -> None:
    model = layers()
    with make_cache(tmp_path) as cache:
        _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(model(torch.ones(2, 64)).sum()).backward()
        for call in (scaler.unscale_, scaler.step):
            with pytest.raises(RuntimeError, match=r"GradScaler cannot .* clipping=True"):
                call(optimizer)


class Failing(torch.autograd.Function):
    on = False

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        if Failing.on:
            raise ValueError("in the middle")
        return gradient


class HalfWay(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(Failing.apply(x) if index == 3 else x)
        return x


@pytest.mark.parametrize("goes_on", ["zero_grad", "step"])
def test_an_exception_in_the_middle_leaves_each_parameter_stepped_or_not(
    tmp_path: Path, goes_on: str
) -> None:
    model = HalfWay()
    with make_cache(tmp_path) as cache:
        _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True)
        of_numbers(model, optimizer, cache, 0)
        before = everything(cache, optimizer)
        Failing.on = True
        try:
            with pytest.raises(ValueError, match="in the middle"):
                of_numbers(model, optimizer, cache, 1)
        finally:
            Failing.on = False
        getattr(optimizer, goes_on)()
        numbers = optimizer.numbers()
        assert set(numbers.values()) == {1, 2}
        for name, number in numbers.items():
            same = torch.equal(cache.full(name), before[name])
            assert same == (number == 1), name
            assert optimizer.state[model.get_parameter(name)]["step"].item() == number
        if goes_on == "step":
            assert {name for name, number in numbers.items() if number == 2} == {
                f"layers.{index}.{kind}" for index in (3, 4, 5) for kind in ("weight", "bias")
            }
        of_numbers(model, optimizer, cache, 2)


def test_a_step_that_is_not_at_its_end_is_not_saved(tmp_path: Path) -> None:
    model = layers()
    with make_cache(tmp_path / "pages") as cache:
        _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True)
        of_numbers(model, optimizer, cache, 0)
        cache.save(tmp_path / "saved")
        saved = everything(cache, optimizer)
        model(torch.ones(2, 64)).sum().backward()
        for refused in (lambda: cache.save(tmp_path / "saved"), optimizer.state_dict):
            with pytest.raises(RuntimeError, match=r"not at its end: call optimizer\.step"):
                refused()
        cache.load(tmp_path / "saved")
        check_same(everything(cache, optimizer), saved)
        of_numbers(model, optimizer, cache, 1)


def test_gradients_of_some_tensors_alone_step_nothing(tmp_path: Path) -> None:
    model = layers()
    with make_cache(tmp_path) as cache:
        _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True)
        x = torch.ones(2, 64, requires_grad=True)
        (gradient,) = torch.autograd.grad(model(x).sum(), x)
        (other,) = torch.autograd.grad(model(x), x, torch.ones(2, 64))  # begins with a module's
        assert gradient.abs().sum() > 0
        assert torch.equal(gradient, other)
        assert cache.store.open == 0
        assert optimizer.numbers() == {}
        optimizer.step()
        assert optimizer.numbers() == {}


@pytest.mark.parametrize("of_loss", [True, False])
def test_gradient_penalties(tmp_path: Path, of_loss: bool) -> None:
    def penalised(model: nn.Module, optimizer: Any, cache: Any, number: int) -> None:
        torch.manual_seed(number)
        x = torch.randn(4, 64, requires_grad=True)
        result = model(x)
        loss = torch.tanh(result).square().mean()
        root, weights = (loss, None) if of_loss else (result, torch.ones_like(result))
        (gradient,) = torch.autograd.grad(root, x, weights, create_graph=True)
        (loss + gradient.square().sum()).backward()
        optimizer.step()
        optimizer.zero_grad()

    compare(tmp_path, layers, penalised)


def test_closing_in_the_middle_of_a_step(tmp_path: Path) -> None:
    model = layers()
    cache = make_cache(tmp_path)
    _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True)
    model(torch.ones(2, 64)).sum().backward()
    cache.close()
    model(torch.ones(2, 64)).sum().backward()
    assert torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) > 0
    optimizer.zero_grad()


def test_what_cannot_step_in_backward_is_refused_by_name(tmp_path: Path) -> None:
    model = layers()
    with make_cache(tmp_path) as cache, pytest.raises(ValueError, match="needs an optimizer"):
        cache.wrap(model, step_in_backward=True)
    with (
        make_cache(tmp_path, device=1) as cache,
        pytest.raises(ValueError, match="device memory holds 1 page "),
    ):
        cache.wrap(model, adamw(model), step_in_backward=True)


def test_accumulate_and_clip_without_steps_in_backward(tmp_path: Path) -> None:
    model = TinyGPT()
    with make_cache(tmp_path) as cache:
        with pytest.raises(RuntimeError, match="wrap"):
            cache.clip_grad_norm_(1.0)
        _, optimizer = cache.wrap(model, adamw(model))
        with cache.accumulate():
            train(model, optimizer, 1, between=lambda: cache.clip_grad_norm_(0.1))
