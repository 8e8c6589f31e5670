"""Programs that change an optimizer's state between steps: in a cache as in torch."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import taco_only
from torch import nn
from zerocache_models import adamw, make_cache

pytestmark = taco_only

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
Edit = Callable[[Any, nn.Parameter], None]


def made() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))


def step(model: nn.Module, optimizer: Any) -> None:
    model(X).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def set_data(state: Any, p: nn.Parameter) -> None:
    state[p]["exp_avg"].data = torch.full_like(state[p]["exp_avg"], 0.25)


def set_kind(state: Any, p: nn.Parameter) -> None:
    state[p]["exp_avg"] = torch.ones(p.shape)


def set_entry(state: Any, p: nn.Parameter) -> None:
    entry = {kind: values.clone() for kind, values in state[p].items()}
    entry["exp_avg"].mul_(0.5)
    state[p] = entry


def update_entry(state: Any, p: nn.Parameter) -> None:
    state[p].update(exp_avg_sq=torch.ones(p.shape))


def drop(state: Any, p: nn.Parameter) -> None:
    state[p]["step"].fill_(1)
    state[p]["exp_avg"].zero_()


EDITS: dict[str, Edit] = {
    "zero_": lambda state, p: state[p]["exp_avg"].zero_(),
    "mul_": lambda state, p: state[p]["exp_avg_sq"].mul_(0.1),
    "an element": lambda state, p: state[p]["exp_avg"].__setitem__(0, 3.0),
    "a view": lambda state, p: state[p]["exp_avg"].view(-1)[2:4].fill_(2.0),
    "rows": lambda state, p: state[p]["exp_avg"].index_fill_(0, torch.tensor([1]), 0.0),
    "data": lambda state, p: state[p]["exp_avg"].data.clamp_(min=0.01),
    "a chunk": lambda state, p: state[p]["exp_avg"].chunk(2)[1].zero_(),
    "foreach": lambda state, p: torch._foreach_mul_(list(state[p].values())[1:], 0.5),
    "out": lambda state, p: torch.neg(torch.ones(p.shape), out=state[p]["exp_avg"]),
    "the step": lambda state, p: state[p]["step"].fill_(1),
    "a new step": drop,
    "set data": set_data,
    "set a kind": set_kind,
    "set an entry": set_entry,
    "update": update_entry,
    "after another look": lambda state, p: (state[p], len(state), state[p])[0]["exp_avg"].zero_(),
}


@pytest.mark.parametrize("how", EDITS)
def test_a_change_of_state_is_kept_as_in_torch(tmp_path: Path, how: str) -> None:
    plain, model = made(), made()
    cache = make_cache(tmp_path, 4, 6)
    model, optimizer = cache.wrap(model, adamw(model))
    plain_optimizer = adamw(plain)
    for each, own in ((plain, plain_optimizer), (model, optimizer)):
        step(each, own)
        step(each, own)
        EDITS[how](own.state, each[0].weight)
    for _ in range(2):
        for p, q in zip(plain.parameters(), model.parameters(), strict=True):
            for kind, values in plain_optimizer.state[p].items():
                torch.testing.assert_close(optimizer.state[q][kind], values, rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(cache.full(q), p.detach(), rtol=1e-4, atol=1e-5)
        step(plain, plain_optimizer)
        step(model, optimizer)
    cache.close()


@pytest.mark.parametrize("how", ["del", "pop", "clear", "empty"])
def test_state_that_is_taken_away_begins_anew(tmp_path: Path, how: str) -> None:
    plain, model = made(), made()
    cache = make_cache(tmp_path, 4, 6)
    model, optimizer = cache.wrap(model, adamw(model))
    plain_optimizer = adamw(plain)
    for each, own in ((plain, plain_optimizer), (model, optimizer)):
        step(each, own)
        weight = each[1].weight
        if how == "del":
            del own.state[weight]
        elif how == "pop":
            assert own.state.pop(weight)["step"] == 1
        elif how == "clear":
            own.state.clear()
        else:
            own.state[weight] = {}
        step(each, own)
    for p, q in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(cache.full(q), p.detach(), rtol=1e-4, atol=1e-5)
        assert optimizer.state[q]["step"] == plain_optimizer.state[p]["step"]
    cache.close()


def test_mistakes_are_refused_by_name() -> None:
    model = made()
    cache = make_cache(None)
    model, optimizer = cache.wrap(model, adamw(model))
    step(model, optimizer)
    weight = model[0].weight
    entry = optimizer.state[weight]
    with pytest.raises(KeyError, match=r"max_exp_avg_sq.*exp_avg_sq"):
        entry["max_exp_avg_sq"] = torch.ones(8, 8)
    with pytest.raises(ValueError, match=r"exp_avg of parameter '0\.weight' has shape \(8, 8\)"):
        entry["exp_avg"] = torch.ones(7)
    with pytest.raises(TypeError, match=r"del optimizer\.state\[parameter\]"):
        del entry["exp_avg"]
    with pytest.raises(ValueError, match=r"'0\.weight' lacks \['exp_avg_sq'"):
        optimizer.state[weight] = {"exp_avg": torch.ones(8, 8)}
    with pytest.raises(KeyError, match="none of the parameters"):
        optimizer.state[nn.Parameter(torch.ones(2))] = {}
    with pytest.raises(ValueError, match="read-only"):
        entry["exp_avg"].numpy()[0] = 1
    step(model, optimizer)
    kept = optimizer.state[weight]["exp_avg"].clone()
    with pytest.raises(RuntimeError, match=r"of exp_avg of parameter '0\.weight' was made before"):
        entry["exp_avg"].zero_()
    assert torch.equal(optimizer.state[weight]["exp_avg"], kept)
    cache.close()


def test_what_is_made_of_copies_belongs_to_no_cache() -> None:
    model = made()
    cache = make_cache(None)
    model, optimizer = cache.wrap(model, adamw(model))
    step(model, optimizer)
    state = optimizer.state[model[0].weight]["exp_avg"]
    file = io.BytesIO()
    torch.save(dict(optimizer.state[model[0].weight]), file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    for other in (state.clone(), state + 0, copy.deepcopy(state), loaded["exp_avg"]):
        assert type(other) is torch.Tensor
        assert torch.equal(other, state)
        other.zero_()
    for entry in optimizer.state_dict()["state"].values():
        assert all(type(values) is torch.Tensor for values in entry.values())
    assert state.abs().max() > 0
    assert torch.equal(optimizer.state[model[0].weight]["exp_avg"], state)
    cache.close()
