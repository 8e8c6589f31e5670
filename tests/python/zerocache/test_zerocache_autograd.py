"""Gradients while the bytes of parameters move: torch's own, or an error; never others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch._dynamo
from conftest import taco_only
from marks import whole
from parameter_range import FRAME, INPUT, Placed, assert_equal_gradients, layers
from torch import nn
from torch.utils.checkpoint import checkpoint

pytestmark = taco_only


def test_gradients_are_the_same_if_parameters_moved_between_forward_and_backward() -> None:
    placed, plain = Placed(layers()), layers()
    loss = placed.model(INPUT).square().sum()
    placed.evict()
    placed.fetch()
    loss.backward()
    plain(INPUT).square().sum().backward()
    assert_equal_gradients(placed.model, plain)


def test_backward_through_an_evicted_parameter_raises_and_works_once_it_is_fetched() -> None:
    placed, plain = Placed(layers()), layers()
    loss = placed.model(INPUT).square().sum()
    placed.evict()
    with pytest.raises(RuntimeError, match=r"'2.weight' is not in memory now"):
        loss.backward()
    placed.fetch()
    placed.model.zero_grad()
    placed.model(INPUT).square().sum().backward()
    plain(INPUT).square().sum().backward()
    assert_equal_gradients(placed.model, plain)


@pytest.mark.parametrize("present", [True, False])
def test_backward_through_a_changed_parameter_raises_as_in_torch(present: bool) -> None:
    placed = Placed(layers())
    loss = placed.model(INPUT).square().sum()
    if not present:
        placed.evict()
    placed.range.write("2.weight", torch.ones(32, 32))
    placed.fetch()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_second_backward_through_a_changed_parameter_raises_as_in_torch() -> None:
    placed = Placed(layers())
    loss = placed.model(INPUT).square().sum()
    loss.backward(retain_graph=True)
    values = placed.model[2].weight.detach().clone()
    placed.range.write("2.weight", values)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_second_backward_through_moved_parameters_gives_the_same() -> None:
    placed = Placed(layers())
    loss = placed.model(INPUT).square().sum()
    loss.backward(retain_graph=True)
    first = [p.grad.clone() for p in placed.model.parameters() if p.grad is not None]
    placed.model.zero_grad()
    placed.evict()
    placed.fetch()
    loss.backward()
    second = [p.grad for p in placed.model.parameters() if p.grad is not None]
    assert len(first) == 4
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_second_derivatives_are_the_same() -> None:
    placed, plain = Placed(layers()), layers()
    results = []
    for model, move in ((placed.model, placed), (plain, None)):
        loss = model(INPUT).square().sum()
        first = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        if move:
            move.evict()
            move.fetch()
        torch.stack([g.square().sum() for g in first]).sum().backward()
        results.append(first)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert_equal_gradients(placed.model, plain)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_are_run_again_with_fetched_parameters(reentrant: bool) -> None:
    placed, plain = Placed(layers()), layers()
    inputs = INPUT.clone().requires_grad_()
    loss = checkpoint(placed.model, inputs, use_reentrant=reentrant).square().sum()
    placed.evict()
    with pytest.raises(RuntimeError, match="is not in memory now"):
        loss.backward(retain_graph=True)
    placed.fetch()
    loss = checkpoint(placed.model, inputs, use_reentrant=reentrant).square().sum()
    placed.evict()
    placed.fetch()
    loss.backward()
    plain(INPUT.clone().requires_grad_()).square().sum().backward()
    assert_equal_gradients(placed.model, plain)


def test_a_saved_view_of_a_parameter_follows_it() -> None:
    placed, plain = Placed(layers()), layers()
    losses = []
    for model in (placed.model, plain):
        chunks = model[0].weight.chunk(2)
        losses.append((INPUT @ chunks[0].t() * (INPUT @ chunks[1].t())).sum())
    placed.evict()
    placed.fetch()
    for loss in losses:
        loss.backward()
    assert torch.equal(placed.model[0].weight.grad, plain[0].weight.grad)


def test_gradients_can_be_clipped_scaled_and_edited_while_parameters_are_evicted() -> None:
    placed, plain = Placed(layers()), layers()
    results = []
    for model, move in ((placed.model, placed), (plain, None)):
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler.scale(model(INPUT).square().sum()).backward()
        if move:
            move.evict()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        model[0].bias.grad = torch.ones(32)
        for parameter in model.parameters():
            parameter.grad.mul_(2)
        results.append(norm)
        if move:
            with pytest.raises(RuntimeError, match="is not in memory now"):
                scaler.step(optimizer)
    assert torch.equal(*results)
    assert_equal_gradients(placed.model, plain)
    placed.model.zero_grad()
    assert placed.model[0].weight.grad is None


@pytest.mark.parametrize("backend", ["aot_eager", whole("inductor")])
def test_compiled_code_runs_on_parameters_that_moved(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    placed = Placed(layers())
    compiled = torch.compile(placed.model, backend=backend, fullgraph=True)
    runs = []
    for _ in range(2):
        output = compiled(INPUT)
        placed.evict()
        placed.fetch()
        output.square().sum().backward()
        grads = [p.grad for p in placed.model.parameters() if p.grad is not None]
        runs.append((output.detach(), *grads))
        placed.model.zero_grad()
    assert len(runs[0]) == 5
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    assert torch.allclose(runs[0][0], layers()(INPUT))
    output = compiled(INPUT)
    placed.evict()
    with pytest.raises(RuntimeError, match="is not in memory now"):
        compiled(INPUT)
    with pytest.raises(RuntimeError, match="is not in memory now"):
        output.sum().backward()
    placed.range.fetch("0.weight")
    placed.range.write("0.weight", torch.zeros(32, 32))
    placed.fetch()
    assert torch.allclose(compiled(INPUT), changed()(INPUT))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def changed() -> nn.Sequential:
    model = layers()
    nn.init.zeros_(model[0].weight)
    return model


def test_a_parameter_of_many_frames_is_one_tensor() -> None:
    model = nn.Sequential(nn.Linear(3 * FRAME // 64, 33))
    placed = Placed(model)
    placed.evict()
    placed.fetch()
    inputs = torch.ones(2, 3 * FRAME // 64)
    model(inputs).sum().backward()
    plain = nn.Sequential(nn.Linear(3 * FRAME // 64, 33))
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(inputs), plain(inputs))
