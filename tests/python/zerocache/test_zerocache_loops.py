"""Training loops around their steps: interrupts, hooks, frozen and empty parameters."""

from __future__ import annotations

import argparse
import collections
import copy
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import taco_only
from torch import Tensor, nn

pytestmark = taco_only

INPUT = torch.linspace(-1, 1, 64).view(4, 16)


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4))


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=0.1)


def wrapped(model: nn.Module, inner: torch.optim.Optimizer) -> tuple[Any, Any]:
    from taco_torch.zerocache import ZeroCache

    cache = ZeroCache(device="1MiB", host="8MiB", page="4KiB")
    return cache, cache.wrap(model, inner)[1]


def one_step(model: nn.Module, optimizer: Any) -> Any:
    loss = model(INPUT).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def test_an_interrupt_finds_each_step_counted_that_was_taken() -> None:
    torch.manual_seed(0)
    model = nn.Linear(1000, 500)
    from taco_torch.zerocache import ZeroCache

    with ZeroCache(device="8MiB", host="16MiB", page="64KiB", threads=1) as cache:
        _, optimizer = cache.wrap(model, adamw(model))
        before = cache.full("bias")
        counted = 0
        found: list[bool] = []

        def look(*_: object) -> None:
            changed = not torch.equal(cache.full("bias"), before)
            found.append(changed == (optimizer.numbers().get("bias", 0) > counted))

        usual = signal.signal(signal.SIGALRM, look)
        try:
            for _ in range(20):
                model(torch.ones(2, 1000)).sum().backward()
                signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-3)
                optimizer.step()
                signal.setitimer(signal.ITIMER_REAL, 0)
                optimizer.zero_grad()
                before = cache.full("bias")
                counted = optimizer.numbers()["bias"]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, usual)
    assert found
    assert all(found)


def test_a_checkpoint_that_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    model = layers()
    cache, optimizer = wrapped(model, adamw(model))
    with cache:
        cache.save(tmp_path / "saved", extra={"epoch": 3})
        one_step(model, optimizer)
        with pytest.raises(TypeError, match="could not be loaded again"):
            cache.save(tmp_path / "saved", extra=argparse.Namespace(epoch=4))
        assert cache.load(tmp_path / "saved") == {"epoch": 3}


def test_state_cannot_be_replaced_unnoticed() -> None:
    model = layers()
    cache, optimizer = wrapped(model, adamw(model))
    with cache:
        one_step(model, optimizer)
        with pytest.raises(AttributeError, match="load_state_dict"):
            optimizer.state = collections.defaultdict(dict)
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": {}, "param_groups": groups})
        assert len(optimizer.state) == 0


def test_hooks_of_the_given_optimizer_are_called() -> None:
    model = layers()
    inner = adamw(model)
    called: list[str] = []
    inner.register_step_pre_hook(lambda *_: called.append("before"))
    handle = inner.register_step_post_hook(lambda *_: called.append("after"))
    inner.register_state_dict_post_hook(lambda *_: called.append("state"))
    cache, optimizer = wrapped(model, inner)
    with cache:
        one_step(model, optimizer)
        handle.remove()
        one_step(model, optimizer)
        optimizer.state_dict()
    assert called == ["before", "after", "before", "state"]


def test_the_given_optimizer_says_who_has_the_state() -> None:
    model = layers()
    inner = adamw(model)
    cache, optimizer = wrapped(model, inner)
    with cache:
        one_step(model, optimizer)
        for call in (
            inner.state_dict,
            lambda: inner.load_state_dict(optimizer.state_dict()),
            lambda: inner.add_param_group({"params": [torch.ones(2)]}),
        ):
            with pytest.raises(RuntimeError, match="of the optimizer that wrap"):
                call()


@pytest.mark.parametrize(
    "options", [{}, {"step_in_backward": True}, {"step_in_backward": True, "clipping": True}]
)
def test_what_is_unfrozen_after_wrap_is_trained_from_then_on(options: dict[str, bool]) -> None:
    from taco_torch.zerocache import ZeroCache

    model, plain = layers(), layers()
    for each in (model, plain):
        each[0].requires_grad_(False)
    inner = adamw(plain)
    with ZeroCache("64KiB", "64KiB", page="4KiB") as cache:
        _, optimizer = cache.wrap(model, adamw(model), **options)
        states = []
        for unfrozen in (False, True, False):
            for each in (model, plain):
                each[0].requires_grad_(unfrozen)
            losses = [one_step(model, optimizer) for _ in range(2)]
            assert losses == pytest.approx([one_step(plain, inner) for _ in range(2)], rel=1e-5)
            states.append(cache.stats()["state_bytes"])
        found = optimizer.state_dict()["state"]
        assert {number: int(each["step"]) for number, each in found.items()} == {
            number: int(each["step"]) for number, each in inner.state_dict()["state"].items()
        }
        every, trained = (
            sum(p.nbytes for p in modules.parameters()) for modules in (model, model[1])
        )
        assert states == [2 * trained, 2 * every, 2 * every]


def test_what_is_unfrozen_without_room_is_refused_before_anything_is_stepped() -> None:
    from taco_torch.zerocache import ZeroCache

    def wrapped_with(host: int) -> Any:
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 4))
        model[0].requires_grad_(False)
        cache = ZeroCache("24KiB", f"{4 * host}KiB", page="4KiB")
        return cache, *cache.wrap(model, adamw(model))

    for host in range(3, 40):
        try:
            cache, model, optimizer = wrapped_with(host)
            break
        except ValueError:
            continue

    def train(model: Any, optimizer: Any) -> None:
        model(torch.ones(2, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    with cache:
        train(model, optimizer)
        model[0].requires_grad_(True)
        before = cache.full("1.weight")
        with pytest.raises(RuntimeError, match=r"'0.weight' was frozen.*give the cache more"):
            train(model, optimizer)
        assert torch.equal(cache.full("1.weight"), before)
        model[0].requires_grad_(False).zero_grad()
        train(model, optimizer)
        assert len(optimizer.state_dict()["state"]) == 2


def test_state_of_layers_that_were_frozen_since_is_kept() -> None:
    model = layers()
    inner = adamw(model)
    one_step(model, inner)
    model[0].requires_grad_(False)
    expected = copy.deepcopy(model)
    plain = adamw(expected)
    plain.load_state_dict(inner.state_dict())
    cache, optimizer = wrapped(model, inner)
    with cache:
        assert len(optimizer.state) == len(plain.state) == 4
        losses = [one_step(model, optimizer) for _ in range(3)]
    assert losses == pytest.approx([one_step(expected, plain) for _ in range(3)], rel=1e-5)


class WithNothing(nn.Linear):
    """One of whose parameters has no elements, but a gradient."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(16, 4)
        self.nothing = nn.Parameter(torch.empty(0, 16))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(torch.cat([inputs, self.nothing]))


def test_parameters_without_elements_are_stepped_as_in_torch(tmp_path: Path) -> None:
    plain, model = WithNothing(), WithNothing()
    inner = adamw(plain)
    expected = [one_step(plain, inner) for _ in range(2)]
    cache, optimizer = wrapped(model, adamw(model))
    with cache:
        assert [one_step(model, optimizer) for _ in range(2)] == pytest.approx(expected, rel=1e-5)
        optimizer.load_state_dict(inner.state_dict())
        cache.save(tmp_path / "saved")
        cache.load(tmp_path / "saved")
        assert one_step(model, optimizer) == pytest.approx(one_step(plain, inner), rel=1e-5)


def averaged(model: nn.Module) -> Any:
    """An exponential moving average, as programs keep one; it lies beside the cache."""
    averaging = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    return torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=averaging, use_buffers=True)


@pytest.mark.parametrize("way", ["in a use", "one by one"])
def test_a_moving_average_of_parameters_is_that_of_torch(way: str) -> None:
    plain, model = layers(), layers()
    inner, expected, average = adamw(plain), averaged(plain), averaged(model)
    cache, optimizer = wrapped(model, adamw(model))
    with cache:
        with pytest.raises(TypeError, match="copy the model before"):
            averaged(model)
        for _ in range(3):
            one_step(plain, inner)
            expected.update_parameters(plain)
            one_step(model, optimizer)
            if way == "in a use":
                with cache.use(model, writes=False):
                    average.update_parameters(model)
                continue
            for name, mean in average.module.named_parameters():
                value = cache.full(name)
                # The first update is a copy, as AveragedModel has it.
                mean.detach().lerp_(value, 0.1 if average.n_averaged > 0 else 1.0)
            average.n_averaged += 1
        for name, mean in average.module.named_parameters():
            torch.testing.assert_close(mean, expected.module.get_parameter(name), msg=name)
            assert not torch.equal(mean, cache.full(name))
        torch.testing.assert_close(average(INPUT), expected(INPUT))  # evaluates beside the model
        # And the average becomes the model's.
        for name, mean in average.module.named_parameters():
            cache.full(name, mean.detach())
        assert torch.equal(model(INPUT), average(INPUT))
