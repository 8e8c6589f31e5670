"""torch's profiler looks at parameters in places that no hook comes before; much else takes only
those of torch's own class."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import taco_only
from torch import nn
from torch.profiler import ProfilerActivity, profile

pytestmark = taco_only


class Net(nn.Module):
    """With parameters of the root's own, too."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))
        self.layers = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(inputs) * self.scale
        return result


@pytest.mark.parametrize("step_in_backward", [False, True])
def test_training_is_profiled_with_stacks(step_in_backward: bool, tmp_path: Path) -> None:
    from taco_torch.zerocache import ZeroCache

    torch.manual_seed(0)
    model = Net()
    with ZeroCache(device="40KiB", host="80KiB", ssd=f"{tmp_path}:8MiB", page="4KiB") as cache:
        _, optimizer = cache.wrap(
            model, torch.optim.AdamW(model.parameters()), step_in_backward=step_in_backward
        )
        losses = []
        everything = {"with_stack": True, "record_shapes": True, "profile_memory": True}
        with profile(
            activities=[ProfilerActivity.CPU], with_modules=True, **everything
        ) as profiler:
            for _ in range(3):
                loss = model(torch.ones(2, 64)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
    assert losses[2] < losses[0]
    # Their names are not asked for: of modules that torch imports meanwhile it has none.
    assert len(profiler.profiler.kineto_results.events()) > 100
    assert {type(parameter) for parameter in model.parameters()} == {nn.Parameter}


def test_a_model_is_wrapped_while_the_profiler_runs() -> None:
    from taco_torch.zerocache import ZeroCache

    torch.manual_seed(0)
    model = Net()
    with profile(activities=[ProfilerActivity.CPU], with_stack=True):
        cache = ZeroCache(device="40KiB", host="400KiB", page="4KiB")
        _, optimizer = cache.wrap(model, torch.optim.AdamW(model.parameters()))
        model(torch.ones(2, 64)).square().mean().backward()
        optimizer.step()
    assert {type(parameter) for parameter in model.parameters()} == {nn.Parameter}
    cache.close()


def test_functions_are_traced_as_in_torch() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    from taco_torch.zerocache import ZeroCache

    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 64)
    expected = torch.func.linearize(model, x)[1](x)
    with ZeroCache(device="120KiB", host="400KiB", page="4KiB") as cache:
        cache.wrap(model)
        with cache.lend():
            assert torch.equal(torch.func.linearize(model, x)[1](x), expected)
        with cache.use(model):
            assert torch.equal(make_fx(model)(x)(x), model(x))
