"""Uses of parameters that are announced, by hooks of modules; and what is not announced raises."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from conftest import taco_only
from parameter_range import Placed, announce_uses, assert_equal_gradients, layers
from torch import nn
from torch.utils.checkpoint import checkpoint

pytestmark = taco_only

INPUT = torch.linspace(-1, 1, 4 * 32).reshape(4, 32)


def train(model: nn.Sequential, update: object) -> list[float]:
    losses = []
    for _ in range(4):
        loss = model(INPUT).square().sum()
        loss.backward()
        losses.append(loss.item())
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            update(name, parameter, parameter.grad)  # type: ignore[operator]
        model.zero_grad()
    return losses


def test_a_model_four_times_the_cap_trains_to_the_same_bits() -> None:
    """Six layers of two frames each, with three frames: there is room for one layer."""
    placed, plain = Placed(layers(6), frames=3, evict=True), layers(6)
    assert len(placed.names) == 12
    announce_uses(placed)

    def through_the_range(name: str, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        placed.range.fetch(name)
        values = parameter.detach() - 0.01 * gradient
        placed.range.evict(name)
        placed.range.write(name, values)

    def in_place(_: str, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        with torch.no_grad():
            parameter.copy_(parameter - 0.01 * gradient)

    assert train(placed.model, through_the_range) == train(plain, in_place)
    assert placed.range.frames <= 3
    assert placed.range.open == 0
    for name, expected in plain.named_parameters():
        placed.range.fetch(name)
        assert torch.equal(placed.model.get_parameter(name), expected)
        placed.range.evict(name)


def test_a_use_that_was_not_announced_raises_though_the_bytes_are_there() -> None:
    placed = Placed(layers())
    announce_uses(placed)
    with pytest.raises(RuntimeError, match="its use was not announced"):
        placed.model[0].weight.sum()
    placed.model(INPUT)
    assert placed.range.frames == 4
    for name, parameter in placed.model.named_parameters():
        with pytest.raises(RuntimeError, match=f"'{name}' is not in memory now: its use was not"):
            parameter.sum()
    placed.model(INPUT)


class Outer(nn.Module):
    """A module with a parameter of its own, which it uses after its child has ended."""

    def __init__(self, tied: bool = False, fail: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(32, 32)
        self.weight = self.inner.weight if tied else nn.Parameter(torch.randn(32, 32))
        self.fail = fail

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.inner(inputs)
        if self.fail:
            raise KeyError("in the model")
        return F.linear(hidden.tanh(), self.weight)


@pytest.mark.parametrize("tied", [False, True])
def test_uses_nest_and_may_share_parameters(tied: bool) -> None:
    placed, plain = Placed(Outer(tied), frames=3), Outer(tied)
    announce_uses(placed)
    placed.model(INPUT).square().sum().backward()
    plain(INPUT).square().sum().backward()
    assert placed.range.open == 0
    assert_equal_gradients(placed.model, plain)


def test_an_exception_in_forward_leaves_nothing_in_use() -> None:
    placed, plain = Placed(Outer(fail=True)), Outer()
    announce_uses(placed)
    with pytest.raises(KeyError):
        placed.model(INPUT)
    assert placed.range.open == 0
    with pytest.raises(RuntimeError, match="its use was not announced"):
        placed.model.weight.sum()
    placed.model.fail = False
    assert torch.equal(placed.model(INPUT), plain(INPUT))


def test_after_an_exception_in_backward_all_uses_can_be_ended() -> None:
    placed, plain = Placed(Outer()), Outer()
    announce_uses(placed)

    def refuse(*_: object) -> None:
        raise KeyError("in the user's hook")

    hook = placed.model.inner.register_full_backward_pre_hook(refuse)
    loss = placed.model(INPUT).square().sum()
    with pytest.raises(KeyError):
        loss.backward()
    assert placed.range.open == 2
    placed.range.end_all()
    assert placed.range.open == 0
    hook.remove()
    with pytest.raises(RuntimeError, match="its use was not announced"):
        placed.model.weight.sum()
    placed.model.zero_grad()
    placed.model(INPUT).square().sum().backward()
    plain(INPUT).square().sum().backward()
    assert_equal_gradients(placed.model, plain)


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_that_are_run_again_for_backward_announce_their_uses(reentrant: bool) -> None:
    placed, plain = Placed(layers(3), frames=3, evict=True), layers(3)
    announce_uses(placed)
    results = []
    for model in (placed.model, plain):
        hidden = INPUT.clone().requires_grad_()
        for layer in model:
            hidden = checkpoint(layer, hidden, use_reentrant=reentrant)
        results.append(hidden)
        hidden.square().sum().backward()
    assert torch.equal(*results)
    assert placed.range.open == 0
    assert_equal_gradients(placed.model, plain)


def test_mistaken_uses_are_refused() -> None:
    placed = Placed(layers())
    part = placed.range.add_part(["0.weight", "0.bias"])
    with pytest.raises(ValueError, match="there is no part 7"):
        placed.range.begin(7, False)
    with pytest.raises(ValueError, match="part 0 ends its backward pass, which has not begun"):
        placed.range.end(part, True)
    placed.range.begin(part, True)
    with pytest.raises(ValueError, match=r"'0\.weight' is in use"):
        placed.range.evict("0.weight")
    with pytest.raises(ValueError, match="has not begun"):
        placed.range.end(part, False)
    placed.range.end(part, True)
    placed.range.evict("0.weight")
    with pytest.raises(ValueError, match="is in a part of a model"):
        placed.range.restore("0.weight")
    placed.model[0].bias.data = torch.zeros(32)
    with pytest.raises(ValueError, match=r"'0\.bias' has been given another storage"):
        placed.range.begin(part, False)
    assert placed.range.open == 0


def test_what_is_needed_at_once_and_does_not_fit_is_named() -> None:
    placed = Placed(layers(), frames=3, evict=True)
    part = placed.range.add_part(placed.names)
    with pytest.raises(Exception, match=r"'2\.bias': all 3 frames of 64 KiB"):
        placed.range.begin(part, False)
    assert placed.range.open == 0
    with pytest.raises(RuntimeError, match=r"'0\.weight' is not in memory now"):
        placed.model[0].weight.sum()
    smaller = placed.range.add_part(placed.names[1:])
    placed.range.begin(smaller, False)
    assert torch.equal(placed.model[2].bias, layers()[2].bias)
    placed.range.end(smaller, False)
