"""The optimizers of a ZeroCache beside torch's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import taco_only
from torch import nn
from zerocache_models import TinyGPT, make_cache, train

pytestmark = taco_only

Make = Callable[[Any], torch.optim.Optimizer]


def lion(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    from taco_torch.zerocache import Lion

    return Lion(parameters, **options)


MAKES: dict[str, Make] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw maximized": lambda p: torch.optim.AdamW(p, lr=1e-4, maximize=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adamw, lr a tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2), foreach=False),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, betas=(0.8, 0.9), eps=1e-6),
    "adam with decay": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
    "sgd with momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, dampening=0.1),
    "nesterov": lambda p: torch.optim.SGD(
        p, lr=1e-3, momentum=0.9, nesterov=True, weight_decay=0.1
    ),
    "adafactor": lambda p: torch.optim.Adafactor(p, weight_decay=0.1),
    "adafactor, eps": lambda p: torch.optim.Adafactor(p, lr=0.1, eps=(1e-4, 1e-2), d=2.0),
    "lion": lambda p: lion(p, lr=1e-3, weight_decay=0.1),
}


def gradients_of(model: nn.Module, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(p.shape, generator=generator) for p in model.parameters()]


@pytest.mark.parametrize("name", MAKES)
def test_the_first_steps_are_torchs_within_rounding(tmp_path: Path, name: str) -> None:
    """After steps 1 and 2 each element is within a few units in the last place of the larger of
    itself and the longest step that its tensor took."""
    model, plain = TinyGPT(2), TinyGPT(2)
    cache = make_cache(tmp_path, 12, 12)
    model, optimizer = cache.wrap(model, MAKES[name](model.parameters()))
    plain_optimizer = MAKES[name](plain.parameters())
    for step in (1, 2):
        for each in (model, plain):
            for parameter, values in zip(each.parameters(), gradients_of(plain, step), strict=True):
                parameter.grad = values
        before = [parameter.detach().clone() for parameter in plain.parameters()]
        optimizer.step()
        plain_optimizer.step()
        for (key, expected), old in zip(plain.named_parameters(), before, strict=True):
            scale = expected.detach().abs().clamp_min((expected - old).abs().max())
            error = (cache.full(key) - expected.detach()).abs() / scale
            assert error.max() <= 8 * torch.finfo(torch.float32).eps, key
    for one, other in zip(optimizer.state.values(), plain_optimizer.state.values(), strict=True):
        assert one.keys() == other.keys()
        for kind, value in one.items():
            torch.testing.assert_close(value, other[kind], rtol=1e-5, atol=1e-6)
    cache.close()


@pytest.mark.parametrize(
    ("name", "tolerance"), [("adamw", 1e-6), ("sgd with momentum", 1e-6), ("adafactor", 3e-6)]
)
def test_a_hundred_steps_lead_to_torchs_loss(tmp_path: Path, name: str, tolerance: float) -> None:
    """On a smooth problem, where rounding is not amplified. torch's Adafactor adds up squares in
    float32, ours in double."""

    def regression(optimizer_of: Make, wrap: bool) -> float:
        torch.manual_seed(0)
        model: nn.Module = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 4))
        x, y = torch.randn(256, 16), torch.randn(256, 4)
        optimizer = optimizer_of(model.parameters())
        cache = make_cache(tmp_path, 4, 4) if wrap else None
        if cache is not None:
            model, optimizer = cache.wrap(model, optimizer)
        for _ in range(100):
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if cache is not None:
            cache.close()
        return (model(x) - y).square().mean().item()

    expected = regression(MAKES[name], False)
    assert regression(MAKES[name], True) == pytest.approx(expected, rel=tolerance)


def test_groups_have_options_of_their_own(tmp_path: Path) -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        matrices = [p for p in model.parameters() if p.dim() > 1]
        rest = [p for p in model.parameters() if p.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": 0.3}, {"params": rest, "lr": 1e-3}]
        return torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.0)

    model, plain = TinyGPT(2), TinyGPT(2)
    cache = make_cache(tmp_path, 12, 12)
    model, optimizer = cache.wrap(model, make(model))
    assert train(model, optimizer, 3) == pytest.approx(train(plain, make(plain), 3), rel=1e-5)
    cache.close()


@pytest.mark.parametrize("name", ["adamw", "sgd with momentum", "adafactor", "lion"])
def test_results_do_not_depend_on_threads_or_pages(tmp_path: Path, name: str) -> None:
    from taco_torch.zerocache import ZeroCache

    runs = []
    for threads, page in [(1, "16KiB"), (3, "16KiB"), (2, "64KiB"), (2, "4KiB")]:
        model = TinyGPT(2)
        cache = ZeroCache("512KiB", "512KiB", f"{tmp_path}:4MiB", page=page, threads=threads)
        model, optimizer = cache.wrap(model, MAKES[name](model.parameters()))
        runs.append(train(model, optimizer, 3))
        cache.close()
    assert all(run == runs[0] for run in runs)


def test_gradients_of_other_strides_are_those_of_the_same_elements(tmp_path: Path) -> None:
    """Parameters that are transposed in memory, and gradients that are not."""

    def line() -> nn.Linear:
        torch.manual_seed(0)
        made = nn.Linear(24, 40)
        made.weight = nn.Parameter(made.weight.detach().t().contiguous().t())
        return made

    model, plain = line(), line()
    assert model.weight.stride() == (1, 40)
    cache = make_cache(tmp_path, 4, 4)
    model, optimizer = cache.wrap(model, MAKES["adamw"](model.parameters()))
    plain_optimizer = MAKES["adamw"](plain.parameters())
    for _ in range(2):
        for each in (model, plain):
            each.weight.grad = torch.arange(960.0).reshape(40, 24)
        optimizer.step()
        plain_optimizer.step()
    torch.testing.assert_close(cache.full("weight"), plain.weight.detach())
    assert cache.full("weight").stride() == (1, 40)
    state = optimizer.state[model.weight]["exp_avg"]
    torch.testing.assert_close(state, plain_optimizer.state[plain.weight]["exp_avg"])
    cache.close()


def test_lion_outside_a_cache_does_what_its_paper_says() -> None:
    parameter = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    optimizer = lion([parameter], lr=0.1, weight_decay=0.5)
    parameter.grad = torch.tensor([0.5, -0.1, 0.0])
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.tensor([0.85, -1.8, 2.85]))
    momentum = optimizer.state[parameter]["exp_avg"]
    torch.testing.assert_close(momentum, torch.tensor([0.005, -0.001, 0.0]))
    for option in ({"lr": -1}, {"betas": (0.9, 1.0)}, {"weight_decay": -1}):
        with pytest.raises(ValueError, match=next(iter(option))):
            lion([parameter], **option)


def test_parameters_without_gradients_rest_and_catch_up(tmp_path: Path) -> None:
    model, plain = TinyGPT(2), TinyGPT(2)
    cache = make_cache(tmp_path, 12, 12)
    model, optimizer = cache.wrap(model, MAKES["adamw"](model.parameters()))
    plain_optimizer = MAKES["adamw"](plain.parameters())
    for step, resting in enumerate((0, 1, None)):
        for each, stepper in ((model, optimizer), (plain, plain_optimizer)):
            for parameter, values in zip(each.parameters(), gradients_of(plain, step), strict=True):
                parameter.grad = values
            if resting is not None:
                for parameter in each.blocks[resting].parameters():
                    parameter.grad = None
            stepper.step()
            stepper.zero_grad()
    for key, expected in plain.named_parameters():
        torch.testing.assert_close(cache.full(key), expected.detach(), rtol=1e-5, atol=1e-6)
    first = optimizer.state[model.blocks[0].up.weight]["step"]
    assert first == 2
    assert optimizer.state[model.norm.weight]["step"] == 3
    cache.close()


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_without_eps_steps_are_torchs(tmp_path: Path, name: str) -> None:
    """Rows that had gradients stay finite, and rows that had none become NaN, as in torch."""

    def stepped(model: nn.Embedding, optimizer: Any) -> None:
        for row in (1, 2):
            model(torch.tensor([row, 5])).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    def made() -> tuple[nn.Embedding, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Embedding(8, 4)
        make = getattr(torch.optim, name)
        return model, make(model.parameters(), lr=1e-2, eps=0.0)

    plain, optimizer = made()
    stepped(plain, optimizer)
    cache = make_cache(tmp_path)
    model, optimizer = cache.wrap(*made())
    stepped(model, optimizer)
    found = cache.full(model.weight)
    assert found[[1, 5]].isfinite().all()
    torch.testing.assert_close(found, plain.weight.detach(), equal_nan=True)
    cache.close()


def test_without_eps_an_element_whose_square_is_too_small_becomes_infinite() -> None:
    """torch, which keeps denormal squares, steps it."""
    plain, model = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    theirs = torch.optim.AdamW(plain.parameters(), eps=0.0)
    with make_cache(None) as cache:
        _, ours = cache.wrap(model, torch.optim.AdamW(model.parameters(), eps=0.0))
        for each, optimizer in ((plain, theirs), (model, ours)):
            each.weight.grad = torch.tensor([[1e-20, 1.0]])
            optimizer.step()
        assert plain.weight.isfinite().all()
        assert cache.full("weight").isinf().tolist() == [[True, False]]


def test_momentum_that_is_raised_later_begins_damped() -> None:
    """Where one group had some at wrap: torch's first momentum is the whole gradient."""

    def made() -> tuple[nn.Sequential, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
        groups = [
            {"params": model[0].parameters(), "momentum": 0.5},
            {"params": model[1].parameters(), "momentum": 0.0},
        ]
        return model, torch.optim.SGD(groups, lr=0.1, dampening=0.25)

    def stepped(model: nn.Sequential, optimizer: torch.optim.Optimizer, momentum: float) -> None:
        optimizer.param_groups[1]["momentum"] = momentum
        for layer in model:
            layer.weight.grad = torch.ones(4, 4)
        optimizer.step()

    plain, theirs = made()
    with make_cache(None) as cache:
        model, ours = cache.wrap(*made())
        for each in ((plain, theirs), (model, ours)):
            stepped(*each, 0.0)
        torch.testing.assert_close(cache.full("1.weight"), plain[1].weight.detach())
        for each in ((plain, theirs), (model, ours)):
            stepped(*each, 0.5)
        torch.testing.assert_close(cache.full("0.weight"), plain[0].weight.detach())
        apart = cache.full("1.weight") - plain[1].weight.detach()
        torch.testing.assert_close(apart, torch.full((4, 4), 0.1 * 0.25))
