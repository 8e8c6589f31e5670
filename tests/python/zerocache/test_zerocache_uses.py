"""Uses of parameters that are announced, by hooks of modules; and what is not announced raises."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import taco_only
from parameter_range import (
    INPUT,
    InCache,
    Placed,
    announce_uses,
    assert_equal_gradients,
    assert_same_results,
    layers,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

pytestmark = taco_only


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
        with pytest.raises(RuntimeError, match=r"cache\.full\(.*cache\.use\("):
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
    assert placed.range.open == 1
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


def loss_of(output: Tensor) -> Tensor:
    return output.square().mean()


def one_step(model: nn.Module) -> Tensor:
    output = model(INPUT)
    loss_of(output).backward()
    return output


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(self.first(inputs).tanh())


class Tied(TwoLayers):
    def __init__(self) -> None:
        super().__init__()
        self.second.weight = self.first.weight


class Unused(TwoLayers):
    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(32, 32)


class UsedTwice(TwoLayers):
    def forward(self, inputs: Tensor) -> Tensor:
        return self.first(super().forward(self.second(inputs)))


class Frozen(TwoLayers):
    def __init__(self) -> None:
        super().__init__()
        self.second.requires_grad_(False)


class LowRank(nn.Module):
    """LoRA: a frozen weight, and the product of two thin ones that is learned."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down, self.up = nn.Linear(32, 4, bias=False), nn.Linear(4, 32, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.frozen(inputs) + self.up(self.down(inputs))


class Adapted(TwoLayers):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = LowRank(self.first), LowRank(self.second)


class EarlyExit(TwoLayers):
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        return hidden if hidden.detach().mean() > 0 else self.second(hidden)


class Experts(nn.Module):
    """Each row goes to the expert that scores best, so experts differ in use from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(32, 4)
        self.experts = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, inputs: Tensor) -> Tensor:
        score, choice = self.router(inputs).softmax(-1).max(-1)
        output = torch.zeros_like(inputs)
        for index in choice.unique().tolist():
            rows = (choice == index).nonzero().flatten()
            output[rows] += score[rows, None] * self.experts[index](inputs[rows])
        return output


class ChangesInPlace(TwoLayers):
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs.view(2, 2, 32)).mul_(2)
        return torch.tanh_(self.second(hidden))


class OwnParameters(TwoLayers):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(32)), nn.Parameter(torch.zeros(32))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs * self.scale) * self.scale.exp() + self.shift


class HeldInContainers(nn.Module):
    """Lists and dicts of parameters are never called; who holds them reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(32, 32) / 6 for _ in range(2))
        self.named = nn.ParameterDict({"shift": torch.randn(32)})

    def forward(self, inputs: Tensor) -> Tensor:
        for weight in self.weights:
            inputs = (inputs @ weight).tanh()
        return inputs + self.named["shift"]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.layer(inputs.view(2, 2, 32))
        return self.attention(hidden, hidden, hidden, need_weights=False)[0]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 32, batch_first=True)
        self.out = nn.utils.parametrizations.weight_norm(nn.Linear(32, 32))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(self.lstm(inputs.view(2, 2, 32))[0])


Hold = Callable[[int, int], Callable[[nn.Module], Any]]

# The least frames of 64 KiB, and the least pages of 4 KiB, for what is needed at once.
MODELS: list[tuple[Callable[[], nn.Module], int, int]] = [
    (TwoLayers, 2, 2),
    (Tied, 3, 2),
    (Unused, 2, 2),
    (UsedTwice, 2, 2),
    (Frozen, 2, 2),
    (Adapted, 2, 2),
    (EarlyExit, 2, 2),
    (Experts, 2, 2),
    (ChangesInPlace, 2, 2),
    (OwnParameters, 4, 3),
    (HeldInContainers, 3, 3),
    (Attention, 12, 10),
    (Recurrent, 4, 9),
]
EACH_MODEL = pytest.mark.parametrize(("make", "frames", "pages"), MODELS)


@EACH_MODEL
def test_models_whose_parts_alone_fit_compute_the_same(
    make: Callable[[], nn.Module], frames: int, pages: int, hold: Hold
) -> None:
    """Steps with accumulation, and passes without gradients between forward and backward."""

    def run(model: nn.Module) -> list[Tensor]:
        outputs = [one_step(model), one_step(model)]
        output = model(INPUT * 2)
        model.eval()
        with torch.no_grad():
            outputs.append(model(INPUT * 3))
        with torch.inference_mode():
            outputs.append(model(INPUT * 4))
        model.train()
        loss_of(output).backward()
        return [*outputs, output, model(INPUT)]

    assert_same_results(make, run, hold(frames, pages))


def retained(model: nn.Module) -> list[Tensor]:
    loss = loss_of(model(INPUT))
    loss.backward(retain_graph=True)
    loss.backward()
    return [loss]


def inputs_alone(model: nn.Module) -> list[Tensor]:
    inputs = INPUT.clone().requires_grad_()
    loss = loss_of(model(inputs))
    some = [p for p in model.parameters() if p.requires_grad][:1]
    first = torch.autograd.grad(loss, [inputs, *some], retain_graph=True)
    loss.backward(inputs=some, retain_graph=True)
    return [*first, *torch.autograd.grad(loss, [inputs])]


def penalty(model: nn.Module) -> list[Tensor]:
    """Second and third derivatives."""
    inputs = INPUT.clone().requires_grad_()
    (first,) = torch.autograd.grad(loss_of(model(inputs).tanh()), [inputs], create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), [inputs], create_graph=True)
    second.square().sum().backward()
    assert inputs.grad is not None
    return [first, second, inputs.grad]


def of_weights(model: nn.Module) -> list[Tensor]:
    """Gradients by parameters that are differentiated again."""
    loss = loss_of(model(INPUT).tanh())
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
    torch.stack([g.square().sum() for g in gradients if g is not None]).sum().backward()
    return [loss]


def accumulated_with_a_graph(model: nn.Module) -> list[Tensor]:
    loss = loss_of(model(INPUT).tanh())
    loss.backward(create_graph=True)
    used = [p.grad for p in model.parameters() if p.grad is not None]
    torch.stack([g.square().sum() for g in used]).sum().backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = parameter.grad.detach()
    return [loss]


def with_hooks(model: nn.Module) -> list[Tensor]:
    """Every kind of hook that a user may have, on modules that have parameters and others."""
    seen: list[Tensor] = []

    def forward(_: nn.Module, __: Any, output: Any) -> Any:
        return output * 2 if isinstance(output, Tensor) else None

    def backward(_: nn.Module, gradients: Any, ___: Any) -> None:
        seen.extend(g.clone() for g in gradients if g is not None)

    handles = [
        register(hook)
        for module in model.modules()
        for register, hook in (
            (module.register_forward_hook, forward),
            (module.register_full_backward_hook, backward),
        )
    ]
    inputs = INPUT.clone().requires_grad_()
    loss_of(model(inputs).tanh()).backward()
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph", "ignore:Full backward")
@EACH_MODEL
@pytest.mark.parametrize(
    "run", [retained, inputs_alone, penalty, of_weights, accumulated_with_a_graph, with_hooks]
)
def test_backward_passes_of_every_kind_compute_the_same(
    make: Callable[[], nn.Module],
    frames: int,
    pages: int,
    run: Callable[[nn.Module], Any],
    hold: Hold,
) -> None:
    if make is Attention and run in (penalty, of_weights, accumulated_with_a_graph):
        pytest.skip("torch has no second derivative of its fused attention")
    if make is ChangesInPlace and run is with_hooks:
        pytest.skip("torch forbids changes in place of what has full backward hooks")
    assert_same_results(make, run, hold(frames, pages))


def calls_alive() -> int:
    from taco_torch.zerocache.hooks import Call

    return sum(type(one) is Call for one in gc.get_objects())


@pytest.mark.filterwarnings("ignore:Full backward")
@pytest.mark.parametrize("make", [make for make, *_ in MODELS])
def test_a_graph_is_freed_with_its_hooks_and_needs_no_collector(
    make: Callable[[], nn.Module],
) -> None:
    model = make()
    announce_uses(Placed(model))
    gc.collect()
    gc.disable()
    try:
        before = calls_alive()
        output = model(INPUT)
        assert calls_alive() > before
        del output
        one_step(model)
        inputs_alone(model)
        if make is not Attention:
            penalty(model)
        assert calls_alive() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("reentrant", [False, True])
@EACH_MODEL
def test_checkpointed_models_compute_the_same(
    make: Callable[[], nn.Module], frames: int, pages: int, reentrant: bool, hold: Hold
) -> None:
    def run(model: nn.Module) -> list[Tensor]:
        inputs = INPUT.clone().requires_grad_()
        hidden = checkpoint(model, inputs, use_reentrant=reentrant)
        output = checkpoint(model, hidden.reshape(4, 32), use_reentrant=reentrant)
        loss_of(output).backward()
        assert inputs.grad is not None
        return [output, inputs.grad]

    more = 8 if reentrant else 4
    assert_same_results(make, run, hold(frames + more, pages + more))


@pytest.mark.parametrize("way", ["torch.compile", "module.compile"])
def test_compiled_blocks_compute_the_same(way: str, hold: Hold) -> None:
    def make() -> nn.Module:
        torch._dynamo.reset()
        model = nn.Sequential(TwoLayers(), TwoLayers())
        for index in range(2):
            if way == "torch.compile":
                model[index] = torch.compile(model[index], backend="aot_eager", fullgraph=True)
            else:
                model[index].compile(backend="aot_eager", fullgraph=True)
        return model

    assert_same_results(make, lambda model: [one_step(model), one_step(model)], hold(4, 3))


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_a_model_that_is_compiled_after_all_computes_the_same(hold: Hold) -> None:
    def run(model: nn.Module) -> list[Tensor]:
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="aot_eager")
        outputs = [one_step(compiled) for _ in range(3)]
        with torch.no_grad():
            return [*outputs, compiled(INPUT)]

    assert_same_results(lambda: nn.Sequential(TwoLayers(), TwoLayers()), run, hold(2, 2))


class BorrowsAWeight(TwoLayers):
    """Uses a parameter of a child without calling that."""

    hooks: Any = None

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = super().forward(inputs)
        if self.hooks is None:
            return F.linear(hidden, self.first.weight)
        with self.hooks.use(self.first) as keep:
            return keep(F.linear(hidden, self.first.weight))


def test_a_use_that_no_module_shows_can_be_announced_by_hand() -> None:
    placed, plain = Placed(BorrowsAWeight(), frames=2, evict=True), BorrowsAWeight()
    hooks = announce_uses(placed)
    with pytest.raises(RuntimeError, match=r"'first\.weight' is not in memory now: its use was"):
        placed.model(INPUT)
    placed.model.hooks = hooks
    plain.load_state_dict(values_of(placed))
    for _ in range(2):
        assert torch.equal(one_step(placed.model), one_step(plain))
    assert placed.range.open == 0
    assert_equal_gradients(placed.model, plain)
    other = nn.Linear(2, 3)
    with pytest.raises(KeyError, match="shape 3x2 is none of those"), hooks.use(other.weight):
        pass


def test_the_model_may_be_called_while_its_cache_is_used_by_hand(tmp_path: Path) -> None:
    torch.manual_seed(0)
    held = InCache(TwoLayers(), 3, tmp_path)
    torch.manual_seed(0)
    plain = TwoLayers()
    results = []
    for model in (held.model, plain):
        with held.cache.use(held.model.first.weight) as keep:
            for _ in range(3):
                output = keep(F.linear(model(INPUT), model.first.weight))
                loss_of(output).backward()
            with torch.no_grad():
                results.append(model(output))
    assert torch.equal(*results)
    assert held.open() == 0
    assert_equal_gradients(held.model, plain)
    held.close()


def values_of(placed: Placed) -> dict[str, Tensor]:
    values = {}
    for name, parameter in placed.model.named_parameters():
        placed.range.fetch(name)
        values[name] = parameter.detach().clone()
        placed.range.evict(name)
    return values
