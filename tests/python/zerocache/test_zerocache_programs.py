"""Programs drawn at random that freeze, unfreeze, save, load and copy in mid training: after every
step of theirs torch has the same parameters, gradients, state and options, bit for bit.

Learning rates, momentum and decay are powers of two, so products are exact, and it is no matter
that the cache's steps are fused.
"""

from __future__ import annotations

import copy
import io
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import taco_only
from marks import whole
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

pytestmark = taco_only

PAGE = 4096
TOKENS = torch.randint(0, 48, (8, 8), generator=torch.Generator().manual_seed(5))


class Net(nn.Module):
    """With a tie, a norm and a module that is a part as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(48, 32)
        self.layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.up, self.norm, self.down = nn.Linear(32, 48), nn.LayerNorm(48), nn.Linear(48, 32)
        self.head = nn.Linear(32, 48, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        seen = self.layer(self.tokens(tokens))
        seen = seen + self.down(torch.tanh(self.norm(self.up(seen))))
        return F.cross_entropy(self.head(seen).flatten(0, 1), tokens.roll(1, 1).flatten())


class Program:
    """A model that is trained, by torch alone, or in a cache of so many pages."""

    def __init__(self, frozen: list[int], folder: Path, pages: tuple[int, int] | None) -> None:
        self.frozen, self.folder, self.pages = frozen, folder, pages
        self.options: dict[str, bool] = {}
        self.cache: Any = None
        self.saved: Any = None
        self.states: Any = None

    def begin(self) -> None:
        """Makes all of it anew."""
        from taco_torch.zerocache import ZeroCache

        torch.manual_seed(0)
        self.model: Any = Net()
        parameters = list(self.model.parameters())
        for number in self.frozen:
            parameters[number % len(parameters)].requires_grad_(False)
        groups = [{"params": parameters[0::2], "lr": 2**-4}, {"params": parameters[1::2]}]
        self.optimizer: Any = torch.optim.SGD(groups, lr=2**-5, momentum=0.5)
        if self.pages is not None:
            if self.cache is not None:
                self.cache.close()
            device, host = (number * PAGE for number in self.pages)
            self.cache = ZeroCache(device, host, f"{self.folder}:4MiB", page=PAGE, _poison=True)
            self.model, self.optimizer = self.cache.wrap(self.model, self.optimizer, **self.options)

    def parameter(self, number: int) -> Any:
        parameters = list(self.model.parameters())
        return parameters[number % len(parameters)]

    def value(self, parameter: Any) -> Tensor:
        return parameter.detach().clone() if self.cache is None else self.cache.full(parameter)

    def backward(self, number: int) -> float:
        tokens = (TOKENS + number) % 48
        loss: Tensor = self.model(tokens) if number % 3 else self.recomputed(tokens)
        if loss.requires_grad:
            loss.backward()
        return loss.item()

    def recomputed(self, tokens: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.model, tokens, use_reentrant=False)
        return result

    def end_step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, number: int) -> float:
        loss = self.backward(number)
        self.end_step()
        return loss

    def freeze(self, number: int) -> None:
        self.parameter(number).requires_grad_(False)

    def unfreeze(self, number: int) -> None:
        self.parameter(number).requires_grad_(True)

    def unfreeze_all(self, _: int) -> None:
        self.model.requires_grad_(True)

    def freeze_a_module(self, number: int) -> None:
        modules = list(self.model.modules())
        modules[number % len(modules)].requires_grad_(number % 2 == 0)

    def freeze_before_the_step(self, number: int) -> float:
        loss = self.backward(number)
        self.freeze(number)
        self.end_step()
        return loss

    def freeze_in_forward(self, number: int) -> float:
        modules = [self.model.up, self.model.norm, self.model.down, self.model.head]
        change = self.freeze if number % 2 else self.unfreeze
        hook = modules[number % 4].register_forward_pre_hook(lambda *_: change(number))
        loss = self.train(3 * number + 1)  # torch recomputes nothing that has changed
        hook.remove()
        return loss

    def freeze_in_backward(self, number: int) -> float | None:
        if not self.model.down.weight.requires_grad:
            return None
        hook = self.model.down.weight.register_hook(lambda _: self.freeze(number))
        loss = self.train(3 * number + 1)
        hook.remove()
        return loss

    def evaluate(self, number: int) -> float:
        with torch.no_grad():
            return self.model((TOKENS + number) % 48).item()  # type: ignore[no-any-return]

    def set_values(self, number: int) -> None:
        parameter = self.parameter(number)
        values = self.value(parameter) * 0.75
        if self.cache is None:
            parameter.data.copy_(values)
        else:
            self.cache.full(parameter, values)

    def edit_state(self, number: int) -> None:
        for parameter in list(self.optimizer.state):
            entry = copy.deepcopy(dict(self.optimizer.state[parameter]))
            if entry.get("momentum_buffer") is not None:
                entry["momentum_buffer"].mul_(0.5)
                self.optimizer.state[parameter] = entry

    def take_state_dicts(self, _: int) -> None:
        self.states = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def load_state_dicts(self, number: int) -> None:
        if self.states is None or number % 2:
            file = io.BytesIO()
            torch.save((self.model.state_dict(), self.optimizer.state_dict()), file)
            file.seek(0)
            self.states = torch.load(file)
        model, optimizer = copy.deepcopy(self.states)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)

    def save(self, _: int) -> None:
        if self.cache is None:
            self.saved = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))
        else:
            self.saved = self.cache.save(self.folder / "saved")

    def load(self, number: int) -> None:
        """Into the same, or all made anew."""
        if self.saved is None:
            return
        if number % 2:
            self.begin()
        if self.cache is None:
            model, optimizer = copy.deepcopy(self.saved)
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(optimizer)
        else:
            self.cache.load(self.folder / "saved")

    def found(self) -> dict[str, Any]:
        state = self.optimizer.state_dict()
        for group in state["param_groups"]:
            del group["foreach"], group["fused"]
        return {
            "parameters": {n: self.value(p) for n, p in self.model.named_parameters()},
            "frozen": [n for n, p in self.model.named_parameters() if not p.requires_grad],
            "state": state,
        }


LATER = [
    "train",
    "train",
    "freeze",
    "unfreeze",
    "unfreeze_all",
    "freeze_a_module",
    "freeze_before_the_step",
    "freeze_in_forward",
    "freeze_in_backward",
    "evaluate",
    "set_values",
    "edit_state",
    "take_state_dicts",
    "load_state_dicts",
    "save",
    "load",
]


def assert_same(one: Any, other: Any, where: str) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where} {key}")
    elif isinstance(one, Tensor):
        assert torch.equal(one, other), where
    else:
        assert one == other, where


@pytest.mark.parametrize(
    "gradients", ["in memory", whole("stepped"), whole("kept")], ids=lambda value: str(value)
)
@pytest.mark.parametrize("pages", [(400, 400), (10, 5)], ids=["ample", "least"])
def test_programs_have_the_bits_of_torch(
    tmp_path: Path, pages: tuple[int, int], gradients: str
) -> None:
    for seed in range(4):
        draw = random.Random(seed)
        frozen = [draw.randrange(20) for _ in range(draw.randrange(4))]
        torchs = Program(frozen, tmp_path, None)
        cached = Program(frozen, tmp_path, pages)
        cached.options = {
            "step_in_backward": gradients != "in memory",
            "clipping": gradients == "kept",
        }
        torchs.begin()
        cached.begin()
        done = f"seed {seed}:"
        for _ in range(10):
            name, number = draw.choice(LATER), draw.randrange(100)
            done += f" {name}({number})"
            assert getattr(torchs, name)(number) == getattr(cached, name)(number), done
            assert_same(torchs.found(), cached.found(), done)
        cached.cache.close()
