"""``with cache.init():`` builds a model in pages, and it comes out as without."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import taco_only
from footprint import printed_by
from torch import nn
from zerocache_models import PAGE, TinyGPT, adamw, batches, make_cache, train

pytestmark = taco_only

MIB = 1 << 20
WIDE = 64  # a square matrix of so many rows is a page
SMALL = (14, 10, 600)


def uneven() -> nn.Module:
    """Parameters of other modules, of no module yet, and in all ways to write to them."""

    class Scaled(nn.Module):
        def __init__(self, inner: nn.Linear) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(WIDE))
            self.inner = inner
            self.twice = nn.Parameter(inner.weight * 2)
            self.inner.weight.data[0] = 3.0
            self.inner.weight.data.mul_(0.5)
            with torch.no_grad():
                self.gain[1::2] = self.inner.bias[::2].repeat(2)[: WIDE // 2]
                self.inner.weight[:, 5].copy_(self.gain)
                torch.add(self.gain, 1, out=self.gain.data)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(Scaled(nn.Linear(WIDE, WIDE)) for _ in range(8))
            self.norm = nn.LayerNorm(WIDE)
            self.embedding = nn.Embedding(3 * WIDE, WIDE, padding_idx=1)
            self.head = nn.Linear(WIDE, 3 * WIDE, bias=False)
            self.head.weight = self.embedding.weight
            nn.init.orthogonal_(self.parts[3].inner.weight)
            self.apply(self.initialize)
            self.register_buffer("scale", self.parts[2].gain.norm().detach())

        @staticmethod
        def initialize(module: nn.Module) -> None:
            if isinstance(module, nn.Embedding):
                module.weight.data.normal_(0.0, 0.02)
                module.weight.data[module.padding_idx].zero_()
            for parameter in module.parameters(recurse=False):
                if parameter.dim() > 1:
                    nn.init.trunc_normal_(parameter, std=parameter.std().item())

    return Net()


def cloned() -> nn.Module:
    """nn.Transformer makes its layers by deepcopy()."""
    return nn.Transformer(
        WIDE, 4, num_encoder_layers=4, num_decoder_layers=4, dim_feedforward=WIDE, batch_first=True
    )


def parametrized() -> nn.Module:
    layers = [nn.Linear(WIDE, WIDE) for _ in range(8)]
    nn.utils.parametrizations.weight_norm(layers[0])
    nn.utils.parametrizations.spectral_norm(layers[1])
    nn.utils.parametrizations.orthogonal(layers[2])
    return nn.Sequential(*layers)


def converted() -> nn.Module:
    """Parameters are given other memory, in another dtype or by their owner."""
    model = nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(8)))
    model[4:].to(torch.bfloat16)
    model[0].weight.data = model[1].weight.data + 1
    model[1].weight = nn.Parameter(torch.zeros(WIDE, WIDE))
    return model


def from_meta() -> nn.Module:
    with torch.device("meta"):
        inner = nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(8)))
    inner.to_empty(device="cpu")
    model = nn.Sequential(inner, nn.Linear(WIDE, WIDE))
    for layer in inner:
        layer.reset_parameters()  # type: ignore[operator]
    return model


MODELS = [TinyGPT, uneven, cloned, parametrized, converted, from_meta]


def built(make: Callable[[], nn.Module], cache: Any) -> nn.Module:
    torch.manual_seed(7)
    with cache.init():
        return make()


@pytest.mark.parametrize("make", MODELS)
def test_it_has_the_values_that_it_would_have_without(
    make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    torch.manual_seed(7)
    plain, drawn = make(), torch.get_rng_state()
    cache = make_cache(tmp_path, *SMALL)
    model = built(make, cache)
    assert torch.equal(torch.get_rng_state(), drawn)
    model, _ = cache.wrap(model)
    expected = dict(plain.named_parameters(remove_duplicate=False))
    found = dict(model.named_parameters(remove_duplicate=False))
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].requires_grad == values.requires_grad
        assert found[name].dtype == values.dtype
        assert torch.equal(cache.full(name), values), name
    for name, buffer in plain.named_buffers():
        assert torch.equal(model.get_buffer(name), buffer), name
    cache.close()
    for name, values in expected.items():
        assert torch.equal(found[name], values), name


def test_it_trains_as_one_that_was_built_before(tmp_path: Path) -> None:
    plain = make_cache(tmp_path / "plain", *SMALL)
    expected = train(*plain.wrap(before := TinyGPT(), adamw(before)), 3)
    plain.save(tmp_path / "saved")
    cache = make_cache(tmp_path / "cache", *SMALL)
    model = built(TinyGPT, cache)
    model, optimizer = cache.wrap(model, adamw(model))
    data = batches()
    assert train(model, optimizer, 2, data) == expected[:2]
    cache.save(tmp_path / "other")
    # Its head's own weight is gone, and its pages lie otherwise: a checkpoint is the same.
    cache.load(tmp_path / "saved")
    plain.load(tmp_path / "other")
    assert train(plain._model, plain._optimizer, 1, data) == expected[2:]
    assert torch.equal(cache.full("head.weight"), plain.full("head.weight"))
    cache.close()
    plain.close()


def test_parameters_are_absent_once_they_are_made(tmp_path: Path) -> None:
    cache = make_cache(tmp_path, *SMALL)
    with cache.init():
        layer = nn.Linear(WIDE, WIDE)
        assert layer.weight.norm() > 0  # for a function it is there
        with pytest.raises(RuntimeError, match=r"'Linear\.\w+ .* is not in memory now"):
            layer.weight.detach().numpy()
    for touch in (lambda: layer.weight.norm(), lambda: layer(torch.ones(1, WIDE))):
        with pytest.raises(RuntimeError, match=r"'Linear\.\w+ .* is not in memory now"):
            touch()
    cache.wrap(nn.Sequential(layer))
    with pytest.raises(RuntimeError, match=r"'0\.weight' is not in memory now"):
        layer.weight.norm()
    assert layer(torch.ones(1, WIDE)).isfinite().all()
    cache.close()


def test_a_state_dict_is_loaded_into_a_model_while_it_is_built(tmp_path: Path) -> None:
    values = TinyGPT().state_dict()
    cache = make_cache(tmp_path, *SMALL)
    with cache.init():
        model = TinyGPT()
        model.load_state_dict({name: value + 1 for name, value in values.items()})
    cache.wrap(model)
    assert all(torch.equal(cache.full(name), values[name] + 1) for name in values)
    cache.close()


def test_what_is_gone_takes_no_room(tmp_path: Path) -> None:
    cache = make_cache(tmp_path, 4, 4, 16)
    with cache.init():
        for _ in range(30):
            model = nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(4)))
        del model
        gc.collect()
        model = nn.Linear(WIDE, WIDE)
    resident = sum(tier["resident"] for tier in cache.stats()["tiers"].values())
    assert resident <= 8 * PAGE
    cache.wrap(model)
    assert cache.stats()["parameter_bytes"] == model.weight.nbytes + model.bias.nbytes
    cache.close()


def test_what_the_model_does_not_have_becomes_ordinary_memory(tmp_path: Path) -> None:
    cache = make_cache(tmp_path, *SMALL)
    torch.manual_seed(0)
    expected = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
    torch.manual_seed(0)
    with cache.init():
        beside, model = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
    cache.wrap(model)
    assert torch.equal(beside.weight, expected[0].weight)
    assert torch.equal(cache.full("weight"), expected[1].weight)
    assert cache.stats()["parameter_bytes"] == model.weight.nbytes + model.bias.nbytes
    cache.close()
    assert torch.equal(model.weight, expected[1].weight)


def test_a_model_that_was_never_wrapped_is_given_back(tmp_path: Path) -> None:
    cache = make_cache(tmp_path, *SMALL)
    model = built(uneven, cache)
    cache.close()
    torch.manual_seed(7)
    for (name, found), value in zip(model.named_parameters(), uneven().parameters(), strict=True):
        assert torch.equal(found, value), name


def test_a_constructor_that_fails_leaves_the_cache_as_it_was(tmp_path: Path) -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(9))
            raise KeyError("half way")

    cache = make_cache(tmp_path, *SMALL)
    with pytest.raises(KeyError, match="half way"):
        built(Fails, cache)
    copied = copy.deepcopy(nn.Linear(WIDE, WIDE))  # ordinary again, as are new modules
    assert copied.weight.isfinite().all()
    model = built(TinyGPT, cache)
    model, optimizer = cache.wrap(model, adamw(model))
    train(model, optimizer, 1)
    held = {id(parameter): parameter.nbytes for parameter in model.parameters()}
    assert cache.stats()["parameter_bytes"] == sum(held.values())
    cache.close()


def test_it_may_be_opened_several_times_and_wrapped_when_a_cap_suffices(tmp_path: Path) -> None:
    cache = make_cache(tmp_path, 14, 3, 60)
    with cache.init():
        first = nn.Linear(WIDE, WIDE)
    with cache.init():
        model = nn.Sequential(first, *(nn.Linear(WIDE, WIDE) for _ in range(30)))
    with pytest.raises(ValueError, match="does not fit"):
        cache.wrap(model, adamw(model))
    model, optimizer = cache.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.ones(2, WIDE)).sum().backward()
    optimizer.step()
    cache.close()


def test_mistakes_are_named(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "one", *SMALL)
    other = make_cache(tmp_path / "two", *SMALL)
    with cache.init():
        model = nn.Linear(WIDE, WIDE)
        for again in (cache, other):
            with pytest.raises(RuntimeError, match=r"init\(\) inside init\(\)"), again.init():
                pass
        with pytest.raises(RuntimeError, match="leave that block first"):
            cache.wrap(model)
    with (
        other.init(),
        pytest.raises(TypeError, match=r"'Sequential\.0\.weight.*held by another cache: close"),
    ):
        nn.Sequential(model)
    with pytest.raises(TypeError, match="held by another cache"):
        other.wrap(model)
    cache.wrap(model)
    with pytest.raises(RuntimeError, match=r"call init\(\) before wrap"):
        cache.init()
    cache.close()
    with pytest.raises(RuntimeError, match="closed"):
        cache.init()
    with other.init():
        assert nn.Sequential(model)[0].weight.norm() > 0
    other.close()


def test_what_does_not_fit_is_named_while_it_is_built(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "device", 4, 4, 100)
    with cache.init(), pytest.raises(ValueError, match=r"'Linear\.weight \(number 1 .*device"):
        nn.Linear(WIDE, 5 * WIDE)
    with cache.init():
        layers = [nn.Linear(WIDE, WIDE) for _ in range(6)]
        with pytest.raises(ValueError, match="device"):
            torch.cat([layer.weight for layer in layers])
        assert torch.cat([layer.weight for layer in layers[:3]]).isfinite().all()
    cache.close()
    cache = make_cache(tmp_path / "all", 4, 4, 8)
    made: list[nn.Module] = []

    def fill() -> None:
        while len(made) < 100:
            made.append(nn.Linear(WIDE, WIDE))

    with cache.init(), pytest.raises(ValueError, match=r"'Linear\.\w+ \(number .*memory and disk"):
        fill()
    assert len(made) >= 12
    with pytest.raises(ValueError, match="does not fit"):
        cache.wrap(nn.Sequential(*made), adamw(nn.Sequential(*made)))
    cache.wrap(nn.Sequential(*made[:8]))
    cache.close()
    assert all(layer.weight.isfinite().all() for layer in made)


PEAK = """
import sys, torch
from torch import nn
from taco_torch.zerocache import ZeroCache

def status(field):
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1]) * 1024

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(24)))
        self.apply(self.initialize)

    def initialize(self, module):
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(0, 0.02)

nn.Linear(8, 8).weight.data.normal_()
before = status("VmHWM")
cache = ZeroCache("32MiB", "32MiB", sys.argv[1] + ":1GiB")
if sys.argv[2] == "plain":
    model = Net()
else:
    with cache.init():
        model = Net()
    cache.wrap(model)
print(status("VmHWM") - before + status("RssShmem"))
"""


@pytest.mark.whole(instead="test_parameters_are_absent_once_they_are_made")
def test_a_model_is_built_that_memory_could_not_hold(tmp_path: Path) -> None:
    """The peak is the caps, the largest module and little else."""
    caps, largest = 64 * MIB, 16 * MIB
    plain = printed_by(PEAK, tmp_path, "plain")
    assert plain >= 24 * largest
    found = printed_by(PEAK, tmp_path, "built")
    assert found <= caps + largest + 64 * MIB, f"{found / MIB:.0f} MiB"
    print(f"{found / MIB:.0f} MiB beside {plain / MIB:.0f} without init()")
