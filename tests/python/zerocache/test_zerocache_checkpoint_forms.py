"""The groups and modules in a checkpoint of a ZeroCache, and loads that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import taco_only
from torch import nn
from zerocache_models import make_cache

pytestmark = taco_only


def groups_of(model: nn.Module, turned: bool) -> list[dict[str, Any]]:
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [
        {"params": weights, "weight_decay": 0.1, "lr": 1e-2},
        {"params": others, "weight_decay": 0.0, "lr": 1e-3},
    ]
    return groups[::-1] if turned else groups


def wrapped(model: nn.Module, groups: Any = None) -> tuple[Any, Any, Any]:
    cache = make_cache(None, 40, 40)
    trained = [p for p in model.parameters() if p.requires_grad]
    return cache, *cache.wrap(model, torch.optim.AdamW(groups or trained, lr=1e-2))


def step(model: nn.Module, optimizer: Any, x: torch.Tensor) -> float:
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def norms() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8, bias=False))


def test_options_go_to_the_group_that_has_the_parameters(tmp_path: Path) -> None:
    model = norms()
    cache, model, optimizer = wrapped(model, groups_of(model, False))
    step(model, optimizer, torch.ones(2, 8))
    optimizer.param_groups[0]["lr"] = 7e-3
    cache.save(tmp_path / "saved")
    cache.close()
    model = norms()
    cache, model, optimizer = wrapped(model, groups_of(model, True))
    cache.load(tmp_path / "saved")
    found = [
        (len(group["params"]), group["weight_decay"], group["lr"])
        for group in optimizer.param_groups
    ]
    assert found == [(3, 0.0, 1e-3), (2, 0.1, 7e-3)]
    cache.close()


def test_groups_of_other_parameters_are_refused_by_name(tmp_path: Path) -> None:
    model = norms()
    cache, model, _ = wrapped(model, groups_of(model, False))
    cache.save(tmp_path / "saved")
    cache.close()
    model = norms()
    mixed = groups_of(model, False)
    mixed[0]["params"].append(mixed[1]["params"].pop())
    cache, _, _ = wrapped(model, mixed)
    before = cache.full("0.weight")
    with pytest.raises(ValueError, match=r"group 0 \('0\.weight', '2\.weight' and 1 more\)"):
        cache.load(tmp_path / "saved")
    assert torch.equal(cache.full("0.weight"), before)
    cache.close()


def convolutions(channels_last: bool) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3))
    return model.to(memory_format=torch.channels_last) if channels_last else model


@pytest.mark.parametrize("saved_channels_last", [True, False])
def test_elements_in_another_order_are_put_in_theirs(
    tmp_path: Path, saved_channels_last: bool
) -> None:
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    cache, model, optimizer = wrapped(convolutions(saved_channels_last))
    step(model, optimizer, x)
    cache.save(tmp_path / "saved")
    values = {name: cache.full(name) for name, _ in model.named_parameters()}
    state = optimizer.state_dict()["state"]
    cache.close()
    cache, model, optimizer = wrapped(convolutions(not saved_channels_last))
    strides = model[0].weight.stride()
    cache.load(tmp_path / "saved")
    assert model[0].weight.stride() == strides
    for name, value in values.items():
        assert torch.equal(cache.full(name), value)
    for number, entry in optimizer.state_dict()["state"].items():
        for kind, value in entry.items():
            assert torch.equal(value, state[number][kind]), (number, kind)
    cache.close()


class Frozen(nn.Module):
    """A base that is not trained, of some dtype and shape."""

    def __init__(self, base: torch.Tensor, buffer: torch.Tensor) -> None:
        super().__init__()
        self.base = nn.Parameter(base, requires_grad=False)
        self.head = nn.Linear(4, 2)
        self.register_buffer("mean", buffer)


def test_another_dtype_or_shape_is_refused_by_name_and_changes_nothing(tmp_path: Path) -> None:
    base, mean = torch.arange(24, dtype=torch.float16).view(4, 6), torch.zeros(3)
    cache, _, _ = wrapped(Frozen(base, mean))
    cache.save(tmp_path / "saved")
    cache.close()
    for other, buffer, said in (
        (base.bfloat16(), mean, r"'base' is float16 of shape \(4, 6\), this one's is bfloat16"),
        (base.view(6, 4).clone(), mean, r"shape \(4, 6\), this one's is float16 of shape \(6, 4\)"),
        (base.view(24).clone(), mean, r"this one's is float16 of shape \(24,\)"),
        (base, mean.double(), r"buffer 'mean' of torch\.float32 .* the model of torch\.float64"),
    ):
        cache, _, _ = wrapped(Frozen(other.clone(), buffer))
        with pytest.raises(ValueError, match=said):
            cache.load(tmp_path / "saved")
        assert torch.equal(cache.full("base"), other)
        cache.close()


class Choosy(nn.Linear):
    """Refuses an extra state that it does not like."""

    likes = 1

    def get_extra_state(self) -> int:
        return self.likes

    def set_extra_state(self, state: int) -> None:
        if state > 5:
            raise KeyError("too many")
        self.likes = state


def test_a_load_that_a_module_refuses_changes_nothing(tmp_path: Path) -> None:
    def made() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(Choosy(4, 4), nn.BatchNorm1d(4), Choosy(4, 4))

    cache, model, optimizer = wrapped(made())
    step(model, optimizer, torch.randn(3, 4))
    model[0].likes, model[2].likes = 2, 7
    cache.save(tmp_path / "saved")
    cache.close()
    cache, model, optimizer = wrapped(made())
    before, x = cache.full("0.weight"), torch.randn(3, 4)
    with pytest.raises(KeyError, match="too many"):
        cache.load(tmp_path / "saved")
    assert torch.equal(cache.full("0.weight"), before)
    assert torch.equal(model[1].running_mean, torch.zeros(4))
    assert (model[0].likes, model[2].likes, len(optimizer.state)) == (1, 1, 0)
    step(model, optimizer, x)  # and the cache goes on
    cache.close()


def test_a_model_that_is_not_trained_takes_a_checkpoint_of_training(tmp_path: Path) -> None:
    cache, model, optimizer = wrapped(norms())
    for _ in range(2):
        step(model, optimizer, torch.ones(2, 8))
    cache.save(tmp_path / "c", {"epoch": 3})
    expected = {name: cache.full(name) for name, _ in model.named_parameters()}
    cache.close()
    cache = make_cache(None, 40, 40)
    model, _ = cache.wrap(norms())
    assert cache.load(tmp_path / "c") == {"epoch": 3}
    for name, values in expected.items():
        assert torch.equal(cache.full(name), values)
    cache.save(tmp_path / "alone")
    cache.close()
    cache, *_ = wrapped(norms())  # the other way round there is no state to go on with
    with pytest.raises(ValueError, match=r"it lacks tensor '0\.weight/exp_avg'|no optimizer"):
        cache.load(tmp_path / "alone")
    cache.close()
    cache = make_cache(None, 40, 40)
    cache.wrap(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)))
    with pytest.raises(ValueError, match=r"it has a tensor '2\.weight' of"):
        cache.load(tmp_path / "c")
    cache.close()


def test_a_parameter_too_many_is_no_state_whatever_it_is_called(tmp_path: Path) -> None:
    def tables(*keys: str) -> nn.Module:
        return nn.ParameterDict({key: torch.ones(4) for key in keys})

    with make_cache(None, 40, 40) as cache:
        cache.wrap(tables("a", "a/b"))
        cache.save(tmp_path / "saved")
    with make_cache(None, 40, 40) as cache:
        cache.wrap(tables("a"))
        with pytest.raises(ValueError, match="it has a tensor 'a/b' of 16 bytes"):
            cache.load(tmp_path / "saved")


@pytest.mark.parametrize("key", ["a/b", "/", "a//exp_avg", "a\nb", "ä", "x" * 5000, " ", "'"])
def test_parameters_may_be_called_as_in_torch(tmp_path: Path, key: str) -> None:
    def tables() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Module()
        model.add_module(key, nn.ParameterDict({"a": torch.ones(4), key: torch.ones(4)}))
        model.forward = lambda x: sum((p * x).sum() for p in model.parameters())
        return model

    cache, model, optimizer = wrapped(tables())
    losses = [step(model, optimizer, torch.ones(4)) for _ in range(2)]
    cache.save(tmp_path / "saved")
    losses.append(step(model, optimizer, torch.ones(4)))
    state = model.state_dict(), optimizer.state_dict()
    with pytest.raises(RuntimeError) as error:
        model.get_parameter(f"{key}.a").sum()
    assert f"'{key}.a' is not in memory" in str(error.value)
    cache.close()
    cache, model, optimizer = wrapped(tables())
    cache.load(tmp_path / "saved")
    assert step(model, optimizer, torch.ones(4)) == losses[2]
    plain = tables()
    plain.load_state_dict(state[0])
    torch.optim.AdamW(plain.parameters(), lr=1e-2).load_state_dict(state[1])
    assert torch.equal(plain.get_parameter(f"{key}.{key}"), cache.full(f"{key}.{key}"))
    cache.close()


@pytest.mark.parametrize("trained", [True, False])
def test_a_model_that_has_lost_a_parameter_is_neither_saved_nor_loaded(
    tmp_path: Path, trained: bool
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    cache = make_cache(None, 40, 40)
    model, _ = cache.wrap(model, torch.optim.AdamW(model.parameters()) if trained else None)
    cache.save(tmp_path / "saved")
    before = model[1]
    model[1] = nn.Linear(4, 4)
    with pytest.raises(ValueError, match=r"have parameter '1.weight' any more.* be saved before"):
        cache.save(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"have parameter '1.weight' any more.* be loaded before"):
        cache.load(tmp_path / "saved")
    model[1] = before
    cache.load(tmp_path / "saved")
    model.append(nn.Linear(4, 4))  # whose values are saved, though the cache does not hold them
    cache.save(tmp_path / "saved")
    values = model[2].weight.detach().clone()
    model[2].weight.data.zero_()
    cache.load(tmp_path / "saved")
    assert torch.equal(model[2].weight, values)
    cache.close()


def test_a_load_that_would_swap_parameters_for_others_changes_nothing(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(8, affine=False), nn.Linear(8, 8), nn.Linear(8, 4))
    cache, model, optimizer = wrapped(model)
    before = {name: cache.full(name) for name, _ in model.named_parameters()}
    other = nn.Sequential(nn.BatchNorm1d(8, affine=False), nn.Linear(8, 8), nn.Linear(8, 4))
    other[0].running_mean.fill_(3.0)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with pytest.raises(ValueError, match=r"would swap the parameters of 'Sequential'"):
            model.load_state_dict(other.state_dict())
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert all(torch.equal(cache.full(name), values) for name, values in before.items())
    assert model[0].running_mean.sum() == 0
    step(model, optimizer, torch.ones(2, 8))
    model.load_state_dict(other.state_dict())
    assert torch.equal(cache.full("2.bias"), other[2].bias)
    cache.close()


def test_a_module_that_is_added_later_is_saved_and_not_trained(tmp_path: Path) -> None:
    def begin() -> Any:
        torch.manual_seed(0)
        cache, model, optimizer = wrapped(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)))
        model.append(nn.Linear(4, 4))
        return cache, model, optimizer

    cache, model, optimizer = begin()
    values = model[2].weight.detach().clone()
    losses = [step(model, optimizer, torch.ones(2, 8)) for _ in range(2)]
    assert losses[1] < losses[0]
    assert torch.equal(model[2].weight, values)
    cache.save(tmp_path)
    cache.close()
    cache, model, optimizer = begin()
    with torch.no_grad():
        model[2].weight.zero_()
    cache.load(tmp_path)
    assert torch.equal(model[2].weight, values)
    cache.close()
