"""When the hooks of a model announce its uses: as late as possible, as short, and never twice."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from conftest import taco_only
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

pytestmark = taco_only

INPUT = torch.linspace(-1, 1, 4 * 8).reshape(4, 8)


class Recorder:
    """A store that holds nothing and writes down what it is told."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.events: list[str] = []
        self.open: list[tuple[int, bool]] = []
        self.max_open = 0

    def add_part(self, names: Sequence[str]) -> int:
        self.parts.append("+".join(name.removesuffix(".weight") for name in names))
        return len(self.parts) - 1

    def forget_part(self, part: int) -> None:
        pass

    def begin(self, part: int, backward: bool) -> None:
        self.open.append((part, backward))
        self.max_open = max(self.max_open, len(self.open))
        self.events.append(("<" if backward else "(") + self.parts[part])

    def end(self, part: int, backward: bool) -> None:
        assert (part, backward) in self.open, "ends what has not begun"
        self.open.remove((part, backward))
        self.events.append(self.parts[part] + (">" if backward else ")"))

    def end_all(self) -> None:
        self.open.clear()

    def begin_run(self, name: str) -> None:
        self.events.append(name)

    def end_run(self) -> None:
        self.events.append("end of run")

    def end_forward(self) -> None:
        pass

    def leave_run(self, reason: str) -> None:
        self.events.append(f"left: {reason}")

    def told(self) -> str:
        text = " ".join(self.events)
        self.events.clear()
        return text


def recorded(model: nn.Module, runs: bool = False) -> tuple[Recorder, Any]:
    from taco_torch.zerocache.hooks import attach

    store = Recorder()
    return store, attach(model, store, runs=store if runs else None)


def linear(width: int = 8) -> nn.Linear:
    return nn.Linear(width, width, bias=False)


class Blocks(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        for index in range(count):
            setattr(self, "abcdef"[index], linear())

    def forward(self, inputs: Tensor) -> Any:
        for child in self.children():
            inputs = child(inputs)
        return inputs


def test_parts_follow_each_other_in_both_passes() -> None:
    model = Blocks(3)
    store, _ = recorded(model)
    loss = model(INPUT).sum()
    assert store.told() == "(a a) (b b) (c c)"
    loss.backward()
    assert store.told() == "<c c> <b b> <a a>"
    with torch.no_grad():
        model(INPUT)
    assert store.told() == "(a a) (b b) (c c)"


class Shares(Blocks):
    """All layers read the same hidden state, as a decoder's do its encoder's."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.a(inputs)
        return self.b(hidden) + self.c(hidden) + self.d(hidden)


def test_parts_that_share_an_input_do_not_wait_for_each_other() -> None:
    model = Shares(4)
    store, _ = recorded(model)
    model(INPUT).sum().backward()
    assert store.told() == "(a a) (b b) (c c) (d d) <d d> <c c> <b b> <a a>"


def test_an_input_that_needs_a_gradient_ends_the_first_part_as_well() -> None:
    model = Blocks(2)
    store, _ = recorded(model)
    model(INPUT.clone().requires_grad_()).sum().backward()
    assert store.told() == "(a a) (b b) <b b> <a a>"


class Own(Blocks):
    def __init__(self) -> None:
        super().__init__(2)
        self.own = nn.Parameter(torch.ones(8))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs * self.own) / self.own


def test_a_module_with_parameters_of_its_own_is_in_use_around_its_children() -> None:
    model = Own()
    store, _ = recorded(model)
    model(INPUT).sum().backward()
    assert store.told() == "(own (a a) (b b) own) <own <b b> <a a> own>"


def test_frozen_layers_are_announced_as_far_as_gradients_go() -> None:
    model = Blocks(4)
    for part in (model.a, model.c, model.d):
        part.requires_grad_(False)
    store, _ = recorded(model)
    model(INPUT).sum().backward()
    assert store.told() == "(a a) (b b) (c c) (d d) <d d> <c c> <b b>"


def test_passes_for_some_gradients_alone_end_each_use_in_time() -> None:
    model = Blocks(2)
    store, _ = recorded(model)
    inputs = INPUT.clone().requires_grad_()
    torch.autograd.grad(model(inputs).sum(), [inputs])
    assert store.told() == "(a a) (b b) <b b> <a a>"
    torch.autograd.grad(model(INPUT).sum(), [model.b.weight])
    assert store.told() == "(a a) (b b) <b b>"


@dataclass
class Output:
    logits: Tensor
    rest: Any = None


class Custom:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


torch.utils._pytree.register_pytree_node(
    Custom, lambda c: ([c.tensor], None), lambda values, _: Custom(*values)
)


@pytest.mark.parametrize(
    ("wrap", "unwrap"),
    [
        (lambda t: (None, [t]), lambda o: o[1][0]),
        (lambda t: {"x": 3, "y": {"z": t}}, lambda o: o["y"]["z"]),
        (lambda t: Output(torch.ones(2), [Output(t)]), lambda o: o.rest[0].logits),
        (lambda t: (Custom(t),), lambda o: o[0].tensor),
    ],
)
def test_outputs_are_found_wherever_they_are(
    wrap: Callable[[Tensor], Any], unwrap: Callable[[Any], Tensor]
) -> None:
    class Wraps(nn.Linear):
        def forward(self, inputs: Tensor) -> Any:
            return wrap(super().forward(inputs))

    model = Wraps(8, 8, bias=False)
    store, _ = recorded(model)
    unwrap(model(INPUT)).sum().backward()
    assert store.told() == "(weight weight) <weight weight>"


def test_two_outputs_of_a_part_are_one_use() -> None:
    class Two(nn.Linear):
        def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return super().forward(inputs), super().forward(inputs * 2), inputs

    model = Two(8, 8, bias=False)
    store, _ = recorded(model)
    first, second, same = model(INPUT)
    (first.sum() + second.sum() + same.sum()).backward()
    assert store.told() == "(weight weight) <weight weight>"
    first, second, _ = model(INPUT)
    second.sum().backward()
    assert store.told().endswith("<weight weight>")
    assert not store.open


@pytest.mark.parametrize("shape", [(4, 8), (2, 3, 8)])
def test_outputs_may_be_changed_in_place(shape: tuple[int, ...]) -> None:
    """A linear layer's output is a view where there are more than two dimensions."""

    class Changed(Blocks):
        def forward(self, inputs: Tensor) -> Tensor:
            return self.b(self.a(inputs).add_(1)).mul_(2).add_(1)

    for bias in (False, True):
        model = Changed(0)
        model.a, model.b = nn.Linear(8, 8, bias=bias), nn.Linear(8, 8, bias=bias)
        store, _ = recorded(model)
        model(torch.ones(shape)).sum().backward()
        a, b = store.parts
        assert store.told() == f"({a} {a}) ({b} {b}) <{b} {b}> <{a} {a}>"


def test_an_embedding_is_not_read_in_backward() -> None:
    model = nn.Sequential(nn.Embedding(8, 8), linear())
    store, _ = recorded(model)
    model(torch.arange(4)).sum().backward()
    assert store.told() == "(0 0) (1 1) <1 1>"


def test_a_part_that_is_called_twice_has_two_uses() -> None:
    class Twice(Blocks):
        def forward(self, inputs: Tensor) -> Tensor:
            return self.a(self.b(self.a(inputs)))

    model = Twice(2)
    store, _ = recorded(model)
    model(INPUT).sum().backward()
    assert store.told() == "(a a) (b b) (a a) <a a> <b b> <a a>"


class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, inputs: Tensor, depth: int = 2) -> Tensor:
        if depth:
            inputs = self(inputs * self.weight, depth - 1)
        return inputs * self.weight


def test_a_root_that_calls_itself_stays_in_use() -> None:
    model = Recursive()
    store, _ = recorded(model, runs=True)
    model(INPUT).sum().backward()
    assert store.told() == (
        "train (weight (weight (weight weight) weight) weight) "
        "<weight <weight <weight weight> weight> weight>"
    )


def test_runs_are_told() -> None:
    model = Blocks(1)
    store, _ = recorded(model, runs=True)
    model(INPUT).sum().backward()
    assert store.told() == "train (a a) <a a>"
    with torch.no_grad():
        model(INPUT)
    assert store.told() == "eval (a a) end of run"
    model.requires_grad_(False)
    assert model(checkpoint(model, INPUT, use_reentrant=False)) is not None
    assert store.told() == "train (a a) train (a a)"


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_root_is_called_again_within_its_backward_pass(reentrant: bool) -> None:
    model = Blocks(2)
    store, _ = recorded(model, runs=True)
    inputs = INPUT.clone().requires_grad_()
    checkpoint(model, inputs, use_reentrant=reentrant).sum().backward()
    told = store.told()
    assert told.count("train") + told.count("eval") == 1
    assert told.count("(a a)") == 2
    assert told.endswith("<a a>" if reentrant else "> <a a>")
    assert not store.open


def test_an_interrupt_leaves_nothing_for_the_next_call() -> None:
    class Interrupted(Blocks):
        stop = True

        def forward(self, inputs: Tensor) -> Tensor:
            if self.stop:
                raise KeyboardInterrupt
            return inputs

    model = Blocks(1)
    model.stop = Interrupted(0)
    model.stop.weight = nn.Parameter(torch.ones(1))
    store, _ = recorded(model, runs=True)
    with pytest.raises(KeyboardInterrupt):
        model(INPUT)
    assert len(store.open) == 1
    model.stop.stop = False
    store.told()
    model(INPUT).sum().backward()
    assert store.told() == "train (a a) (stop stop) <a a>"
    assert not store.open


def test_an_exception_in_backward_is_cleared_by_the_next_call() -> None:
    class Fails(nn.Linear):
        fail = True

        def refuse(self, _: Tensor) -> None:
            if self.fail:
                raise KeyError("in the user's hook")

        def forward(self, inputs: Tensor) -> Tensor:
            output = super().forward(inputs)
            output.register_hook(self.refuse)
            return output * 2

    model = Blocks(2)
    model.b = Fails(8, 8, bias=False)
    store, hooks = recorded(model)
    for _ in range(3):
        with pytest.raises(KeyError):
            model(INPUT).sum().backward()
        assert len(store.open) == 1
    model.b.fail = False
    store.told()
    model(INPUT).sum().backward()
    assert store.told() == "(a a) (b b) <b b> <a a>"
    hooks.end_all()
    assert not store.open


def test_a_store_that_refuses_a_use_is_not_told_of_its_end() -> None:
    class Refuses(Recorder):
        def begin(self, part: int, backward: bool) -> None:
            if self.parts[part] == "b":
                raise OSError("the disk is on fire")
            super().begin(part, backward)

    from taco_torch.zerocache.hooks import attach

    model = Blocks(2)
    store = Refuses()
    attach(model, store)
    with pytest.raises(OSError, match="on fire"):
        model(INPUT)
    assert store.told() == "(a a)"
    assert not store.open


def test_a_hook_of_the_users_own_may_raise_before_or_after() -> None:
    model = Blocks(2)

    def refuse(*_: object) -> None:
        raise KeyError("in the user's hook")

    handles = [model.b.register_forward_pre_hook(refuse)]
    store, _ = recorded(model)
    for register in (model.b.register_forward_pre_hook, model.b.register_forward_hook):
        with pytest.raises(KeyError):
            model(INPUT)
        assert not store.open
        handles.append(register(refuse))
        handles.pop(0).remove()


def test_retained_graphs_announce_every_pass() -> None:
    model = Blocks(2)
    store, _ = recorded(model)
    loss = model(INPUT).sum()
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    torch.autograd.grad(loss, [model.b.weight])
    assert store.told() == "(a a) (b b) <b b> <a a> <b b> <a a> <b b>"


def test_a_gradient_that_is_differentiated_again_announces_its_parts() -> None:
    model = nn.Sequential(linear(), nn.Tanh(), linear())
    store, _ = recorded(model)
    inputs = INPUT.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(inputs).sum(), [inputs], create_graph=True)
    assert store.told().startswith("(0 0) (2 2) <2")
    assert not store.open
    gradient.square().sum().backward()
    told = store.told()
    assert "<0" in told
    assert "<2" in told
    assert not store.open


def test_a_graph_is_freed_as_without_hooks() -> None:
    model = Blocks(3)
    recorded(model)
    gc.disable()
    try:
        output = model(INPUT)
        mark = Custom(torch.ones(1))
        output.grad_fn.register_prehook(lambda *_, mark=mark: None)
        gone = weakref.ref(mark)
        del mark
        assert gone() is not None
        del output
        assert gone() is None
    finally:
        gc.enable()


def test_detached_hooks_say_nothing_any_more() -> None:
    model = Blocks(2)
    store, hooks = recorded(model)
    loss = model(INPUT).sum()
    hooks.detach()
    store.told()
    loss.backward()
    model(INPUT).sum().backward()
    assert store.told() == ""
    assert not model._forward_pre_hooks
    assert not model.a._forward_hooks
    with pytest.raises(KeyError, match="of shape 8x8 is none of those"), hooks.use(model.a):
        pass


def test_a_use_by_hand_outlasts_calls_of_the_model_inside_it() -> None:
    model = Blocks(2)
    store, hooks = recorded(model)
    with hooks.use(model.b):
        model(INPUT).sum().backward()
        assert len(store.open) == 1
    assert store.told() == "(b (a a) (b b) <b b> <a a> b)"
    with pytest.raises(KeyError), hooks.use(model.b):
        raise KeyError("in the user's code")
    assert not store.open
    with hooks.use(model.b):
        hooks.detach()
    assert not store.open


def test_parameters_that_the_store_lacks_are_left_alone() -> None:
    from taco_torch.zerocache.hooks import attach

    model = Blocks(2)
    store = Recorder()
    attach(model, store, {model.b.weight: "it"})
    model(INPUT).sum().backward()
    assert store.told() == "(it it) <it it>"


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """As after another model was compiled: from then on graphs announce what they are given."""
    from taco_torch.zerocache.compiled import graphs_announce

    assert graphs_announce()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("way", ["torch.compile", "module.compile"])
def test_a_compiled_module_is_one_part_announced_outside_of_its_code(way: str) -> None:
    model = Blocks(2)
    model.b = Blocks(2)
    if way == "torch.compile":
        model.b = torch.compile(model.b, backend="aot_eager", fullgraph=True)
    else:
        model.b.compile(backend="aot_eager", fullgraph=True)
    store, hooks = recorded(model)
    for _ in range(2):
        model(INPUT).sum().backward()
        b = store.parts[1]
        assert "+" in b
        assert store.told() == f"(a a) ({b} {b}) <{b} {b}> <a a>"
    hooks.detach()
    model(INPUT).sum().backward()
    assert store.told() == ""


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_root_that_compiles_itself_is_announced_too() -> None:
    model = Blocks(2)
    model.compile(backend="aot_eager", fullgraph=True)
    store, _ = recorded(model, runs=True)
    model(INPUT).sum().backward()
    assert store.told() == "train (a+b a+b) <a+b a+b>"


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
@pytest.mark.usefixtures("fresh_dynamo")
def test_a_model_may_be_compiled_when_it_has_hooks() -> None:
    model = Blocks(2)
    store, _ = recorded(model)
    compiled = torch.compile(model, backend="aot_eager")
    for first in (True, False):
        compiled(INPUT).sum().backward()
        whole = "(a+b a+b) <a+b a+b>"
        assert store.told() == ("(a+b a+b) " if first else "") + whole  # first: whether it fits
        assert not store.open
