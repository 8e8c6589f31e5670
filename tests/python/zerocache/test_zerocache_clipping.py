"""Gradients on pages, clipped by their norm, are those that torch clips in memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import taco_only
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from zerocache_models import PAGE, TinyGPT, adamw, make_cache
from zerocache_steps import Step, check_same, everything, tokens, trained

pytestmark = taco_only


def clipped(
    norms: list[float], max_norm: float = 0.5, norm_type: float = 2.0, times: int = 1
) -> Step:
    """A step whose gradients are clipped, by the cache where they are on its pages."""

    def step(model: nn.Module, optimizer: Any, cache: Any, number: int) -> None:
        model(tokens(number)).backward()
        for _ in range(times):
            if cache._gradients is None:
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type)
            else:
                assert all(parameter.grad is None for parameter in model.parameters())
                norm = cache.clip_grad_norm_(max_norm, norm_type)
            assert norm.shape == ()
            norms.append(norm.item())
        optimizer.step()
        optimizer.zero_grad()

    return step


def kept(
    folder: Path, make: Callable[[], nn.Module], step: Step, steps: int = 4, **options: Any
) -> dict[str, Tensor]:
    """The result of training with gradients on pages."""
    return trained(folder, make, step, steps, step_in_backward=True, clipping=True, **options)


@pytest.mark.parametrize("host", [5, 12, 400])
@pytest.mark.parametrize("norm_type", [2.0, math.inf])
def test_the_bits_are_those_of_torch(tmp_path: Path, host: int, norm_type: float) -> None:
    """Also where gradients do not fit into memory, but for those of a page."""
    torchs: list[float] = []
    ours: list[float] = []
    max_norm = 0.5 if norm_type == 2.0 else 0.01
    usual = trained(tmp_path / "usual", TinyGPT, clipped(torchs, max_norm, norm_type), 4, host=12)
    early = kept(tmp_path / "early", TinyGPT, clipped(ours, max_norm, norm_type), host=host)
    check_same(usual, early)
    assert ours == torchs
    assert max(ours) > max_norm


def by_torch(norms: list[float], max_norm: float, norm_type: float) -> Step:
    """A step of a program that knows no cache."""

    def step(model: nn.Module, optimizer: Any, _: Any, number: int) -> None:
        model(tokens(number)).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type).item())
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.parametrize(("max_norm", "norm_type"), [(0.5, 2.0), (math.inf, 2.0), (0.5, 1.0)])
def test_a_program_may_clip_by_the_function_of_torch(
    tmp_path: Path, max_norm: float, norm_type: float
) -> None:
    torchs: list[float] = []
    ours: list[float] = []
    usual = trained(tmp_path / "usual", TinyGPT, by_torch(torchs, max_norm, norm_type), 3)
    early = kept(tmp_path / "early", TinyGPT, by_torch(ours, max_norm, norm_type), 3)
    assert ours == pytest.approx(torchs, rel=1e-6)
    for name, value in usual.items():
        torch.testing.assert_close(early[name], value, msg=name)


def test_clipping_a_part_of_the_gradients_is_refused(tmp_path: Path) -> None:
    model = TinyGPT(2)
    with make_cache(tmp_path) as cache:
        cache.wrap(model, adamw(model), step_in_backward=True, clipping=True)
        model(tokens(0)).backward()
        some = [each for each in model.parameters() if each is not model.places]
        with pytest.raises(RuntimeError, match=r"'places' was left out.*model.parameters"):
            torch.nn.utils.clip_grad_norm_(some, 1.0)
        with pytest.raises(RuntimeError, match=r"was left out.*model.parameters"):
            torch.nn.utils.clip_grad_norm_([model.places], 1.0)
        other = nn.Parameter(torch.ones(3))
        other.grad = torch.ones(3)
        with pytest.raises(RuntimeError, match="others are among them"):
            torch.nn.utils.clip_grad_norm_([*model.parameters(), other], 1.0)


@pytest.mark.parametrize("norm_type", [0.0, 1.0, 3.0, -math.inf])
def test_other_norms(tmp_path: Path, norm_type: float) -> None:
    torchs: list[float] = []
    ours: list[float] = []
    usual = trained(tmp_path / "usual", TinyGPT, clipped(torchs, 0.5, norm_type), 2)
    early = kept(tmp_path / "early", TinyGPT, clipped(ours, 0.5, norm_type), 2)
    assert ours == pytest.approx(torchs, rel=1e-6)
    for name, value in usual.items():
        torch.testing.assert_close(early[name], value, msg=name)


@pytest.mark.usefixtures("two_threads")
def test_what_is_clipped_twice(tmp_path: Path) -> None:
    torchs: list[float] = []
    ours: list[float] = []
    usual = trained(tmp_path / "usual", TinyGPT, clipped(torchs, 0.3, times=2), 3)
    early = kept(tmp_path / "early", TinyGPT, clipped(ours, 0.3, times=2), 3)
    assert ours == pytest.approx(torchs, rel=1e-6)
    for name, value in usual.items():
        torch.testing.assert_close(early[name], value, msg=name)


def test_gradients_leave_memory_as_soon_as_they_are_final(tmp_path: Path) -> None:
    model = TinyGPT()
    most = 0

    def count(_: Tensor) -> None:
        nonlocal most
        most = max(most, sum(p.grad is not None for p in model.parameters()))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(count)
    with make_cache(tmp_path, device=10, host=5) as cache:
        _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True, clipping=True)
        gradients = sum(parameter.nbytes for parameter in model.parameters())
        model(tokens(0)).backward()
        assert most == 1
        tiers = cache.stats()["tiers"]
        held = sum(tier["resident"] for tier in tiers.values())
        assert held >= cache.store.parameter_bytes + gradients
        assert tiers["ssd"]["resident"] > gradients / 2
        cache.clip_grad_norm_(1.0)
        optimizer.step()
        state = cache.store.parameter_bytes + cache.store.state_bytes
        tiers = cache.stats()["tiers"]
        copies = tiers["device"]["capacity"] + tiers["host"]["capacity"]
        assert sum(tier["resident"] for tier in tiers.values()) < 1.1 * state + copies


def test_bfloat16(tmp_path: Path) -> None:
    """torch rounds what it has multiplied to bfloat16 once more."""
    torchs: list[float] = []
    ours: list[float] = []
    make = lambda: TinyGPT().bfloat16()  # noqa: E731
    usual = trained(tmp_path / "usual", make, clipped(torchs), 3, host=14)
    early = kept(tmp_path / "early", make, clipped(ours), 3, host=14)
    assert ours[0] == torchs[0]
    for name, value in usual.items():
        torch.testing.assert_close(early[name], value, rtol=0.05, atol=0.05, msg=name)
    unclipped = trained(tmp_path / "unclipped", make, clipped(torchs, 1e9), 3, host=14)
    check_same(unclipped, kept(tmp_path / "all", make, clipped(ours, 1e9), 3, host=14))


def adafactor(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(model.parameters(), lr=1e-2)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, maximize=True)


def lion(model: nn.Module) -> torch.optim.Optimizer:
    from taco_torch.zerocache import Lion

    return Lion(model.parameters(), lr=1e-3)


@pytest.mark.parametrize("inner", [adafactor, momentum, lion])
def test_all_optimizers(
    tmp_path: Path, inner: Callable[[nn.Module], torch.optim.Optimizer]
) -> None:
    usual = trained(tmp_path / "usual", TinyGPT, clipped([]), 4, inner=inner)
    check_same(usual, kept(tmp_path / "early", TinyGPT, clipped([]), inner=inner))


def test_steps_without_clipping(tmp_path: Path) -> None:
    def step(model: nn.Module, optimizer: Any, cache: Any, number: int) -> None:
        model(tokens(number)).backward()
        optimizer.step()

    def zeroed(model: nn.Module, optimizer: Any, cache: Any, number: int) -> None:
        step(model, optimizer, cache, number)
        optimizer.zero_grad()

    usual = trained(tmp_path / "usual", TinyGPT, zeroed, 4)
    check_same(usual, kept(tmp_path / "early", TinyGPT, step))


def accumulated(norms: list[float], passes: int = 3) -> Step:
    """Several passes that make one step; the last one has no gradient of the first block."""

    def step(model: nn.Module, optimizer: Any, cache: Any, number: int) -> None:
        for each in range(passes):
            last = each + 1 == passes
            with nullcontext() if last else cache.accumulate():
                freeze = model.blocks[0].parameters() if last else []
                for parameter in freeze:
                    parameter.requires_grad_(False)
                model(tokens(passes * number + each)).backward()
                for parameter in model.blocks[0].parameters():
                    parameter.requires_grad_(True)
            if cache._gradients is not None:
                assert all(parameter.grad is None for parameter in model.parameters())
        if cache._gradients is None:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        else:
            norm = cache.clip_grad_norm_(0.5)
        norms.append(norm.item())
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.parametrize("host", [5, 400])
def test_gradients_that_accumulate(tmp_path: Path, host: int) -> None:
    """On pages, as torch adds them in memory."""
    torchs: list[float] = []
    ours: list[float] = []
    usual = trained(tmp_path / "usual", TinyGPT, accumulated(torchs), 3)
    check_same(usual, kept(tmp_path / "early", TinyGPT, accumulated(ours), 3, host=host))
    assert ours == torchs


def test_bfloat16_gradients_that_accumulate(tmp_path: Path) -> None:
    """Each sum is rounded. Norms are bitwise those of torch until a step that rounds otherwise."""
    torchs: list[float] = []
    ours: list[float] = []
    make = lambda: TinyGPT().bfloat16()  # noqa: E731
    trained(tmp_path / "usual", make, accumulated(torchs, 5), 1, host=14)
    kept(tmp_path / "early", make, accumulated(ours, 5), 1, host=14)
    assert ours == torchs


def test_what_is_clipped_between_two_passes_is_added_to(tmp_path: Path) -> None:
    def step(model: nn.Module, optimizer: Any, cache: Any, number: int) -> None:
        def clip() -> None:
            if cache._gradients is None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            else:
                cache.clip_grad_norm_(0.1)

        with cache.accumulate():
            model(tokens(2 * number)).backward()
        clip()
        model(tokens(2 * number + 1)).backward()
        clip()
        optimizer.step()
        optimizer.zero_grad()

    usual = trained(tmp_path / "usual", TinyGPT, step, 3)
    check_same(usual, kept(tmp_path / "early", TinyGPT, step, 3))


def test_gradients_of_passes_that_make_no_step_are_dropped_by_the_optimizer(
    tmp_path: Path,
) -> None:
    """Where the model would be asked to, it says so: the next pass would add to them."""
    model = layers()
    with make_cache(tmp_path) as cache:
        _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True, clipping=True)
        with cache.accumulate():
            model(torch.ones(2, 64)).sum().backward()
        with pytest.raises(RuntimeError, match=r"'0\.weight'.*optimizer\.zero_grad\(\)"):
            model.zero_grad()
        with pytest.raises(RuntimeError, match=r"'3\.weight'.*optimizer\.zero_grad\(\)"):
            model[3].zero_grad()
        optimizer.zero_grad()
        model.zero_grad()
        model(torch.ones(2, 64)).sum().backward()
        norm = cache.clip_grad_norm_(1.0)
        refused = pytest.raises(RuntimeError, match=r"'5\.(weight|bias)'.*cache.accumulate\(\)")
        with refused, cache.accumulate():
            model(torch.ones(2, 64)).sum().backward()
        optimizer.zero_grad()
        model(torch.ones(2, 64)).sum().backward()
        assert cache.clip_grad_norm_(1.0) == norm
        optimizer.step()
        assert set(optimizer.numbers().values()) == {1}


def test_a_sum_that_is_lost_is_not_stepped(tmp_path: Path) -> None:
    model = layers()
    with make_cache(tmp_path) as cache:
        _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True, clipping=True)
        before = everything(cache, optimizer)
        with cache.accumulate():
            model(torch.ones(2, 64)).sum().backward()
        model[2].weight.grad = torch.ones(64, 64)
        keep = optimizer.kept._cache._store

        class Failing:
            read_gradient = staticmethod(keep.read_gradient)

            @staticmethod
            def keep_gradient(*_: Any) -> None:
                raise RuntimeError("the disk failed")

        optimizer.kept._cache = SimpleNamespace(store=Failing)
        with pytest.raises(RuntimeError, match="the disk failed"):
            optimizer.take_gradient(model[2].weight)
        optimizer.kept._cache = cache
        for call in (optimizer.step, lambda: cache.clip_grad_norm_(1.0)):
            with pytest.raises(RuntimeError, match=r"'2\.weight' was lost.*zero_grad\(\)"):
                call()
        optimizer.zero_grad()
        optimizer.step()
        check_same(everything(cache, optimizer), before)


class Reentrant(TinyGPT):
    """Gradients of its blocks are accumulated in passes inside the pass, and stay in memory."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.tokens(x) + self.places
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=True)
        return nn.functional.cross_entropy(
            nn.functional.linear(self.norm(hidden), torch.ones(61, 48)).flatten(0, 1),
            x.roll(-1, 1).flatten(),
        )


def test_some_gradients_in_memory_and_some_on_pages(tmp_path: Path) -> None:
    norms: dict[bool, list[float]] = {True: [], False: []}

    def step(model: nn.Module, optimizer: Any, cache: Any, number: int) -> None:
        model(tokens(number)).backward()
        ours = cache._gradients is not None
        clip = cache.clip_grad_norm_ if ours else None
        if clip is None:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        else:
            assert len({parameter.grad is None for parameter in model.parameters()}) == 2
            norm = clip(0.1)
        norms[ours].append(norm.item())
        optimizer.step()
        optimizer.zero_grad()

    usual = trained(tmp_path / "usual", Reentrant, step, 3)
    check_same(usual, kept(tmp_path / "early", Reentrant, step, 3))
    assert norms[True] == norms[False]


class AtTimesReentrant(Reentrant):
    checkpointing = True

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.checkpointing else TinyGPT.forward(self, x)


@pytest.mark.parametrize("first", [False, True])
def test_passes_with_and_without_reentrant_checkpoints_add_up(tmp_path: Path, first: bool) -> None:
    norms: dict[bool, list[float]] = {True: [], False: []}

    def step(model: nn.Module, optimizer: Any, cache: Any, number: int) -> None:
        ours = cache._gradients is not None
        model.checkpointing = first
        with cache.accumulate():
            model(tokens(2 * number)).backward()
        model.checkpointing = not first
        model(tokens(2 * number + 1)).backward()
        clip = partial(torch.nn.utils.clip_grad_norm_, list(model.parameters()))
        norms[ours].append((cache.clip_grad_norm_ if ours else clip)(0.1).item())
        optimizer.step()
        optimizer.zero_grad()

    usual = trained(tmp_path / "usual", AtTimesReentrant, step, 3)
    check_same(usual, kept(tmp_path / "early", AtTimesReentrant, step, 3))
    assert norms[True] == norms[False]


def test_gradients_that_are_not_finite(tmp_path: Path) -> None:
    model = TinyGPT()
    with make_cache(tmp_path) as cache:
        _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True, clipping=True)
        before = everything(cache, optimizer)
        (model(tokens(0)) * math.inf).backward()
        with pytest.raises(RuntimeError, match=r"nan.*optimizer\.zero_grad\(\)"):
            cache.clip_grad_norm_(1.0, error_if_nonfinite=True)
        assert cache.clip_grad_norm_(1.0).isnan()
        optimizer.zero_grad()
        optimizer.step()
        check_same(everything(cache, optimizer), before)
        model(tokens(0)).backward()
        assert cache.clip_grad_norm_(1.0) > 0
        optimizer.step()
        assert set(optimizer.numbers().values()) == {1}


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])


def test_clipping_by_torch_names_ours(tmp_path: Path) -> None:
    model = layers()
    with make_cache(tmp_path) as cache:
        _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True, clipping=True)
        model(torch.ones(2, 64)).sum().backward()
        for clip in (
            torch.nn.utils.clip_grad_value_,
            lambda parameters, norm: torch.nn.utils.clip_grads_with_norm_(
                parameters, norm, torch.tensor(2.0)
            ),
        ):
            with pytest.raises(RuntimeError, match=r"kept by the cache.*cache\.clip_grad_norm_"):
                clip(model.parameters(), 1.0)
        optimizer.step()
        assert all(numbers == 1 for numbers in optimizer.numbers().values())


def test_a_second_backward_pass_is_refused_by_name(tmp_path: Path) -> None:
    """Nobody can tell it from one after gradients were set to None behind our back."""
    model = layers()
    with make_cache(tmp_path) as cache:
        _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True, clipping=True)
        model(torch.ones(2, 64)).sum().backward()
        model.zero_grad()
        with pytest.raises(RuntimeError, match=r"'5\.(weight|bias)'.*cache.accumulate\(\)"):
            model(torch.ones(2, 64)).sum().backward()
        with pytest.raises(RuntimeError, match=r"'5\.(weight|bias)'.*another gradient"):
            optimizer.step()
        optimizer.zero_grad()
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        assert set(optimizer.numbers().values()) == {1}


def test_checkpoints_have_no_gradients(tmp_path: Path) -> None:
    """They move between caches that keep them on pages and caches that do not."""
    model, other = layers(), layers()
    with make_cache(tmp_path / "pages") as cache, make_cache(tmp_path / "others") as plain:
        _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True, clipping=True)
        _, usual = plain.wrap(other, adamw(other))
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        saved = everything(cache, optimizer)
        model(torch.ones(2, 64)).sum().backward()
        cache.save(tmp_path / "saved")
        plain.load(tmp_path / "saved")
        check_same(everything(plain, usual), saved)
        plain.save(tmp_path / "saved")
        cache.load(tmp_path / "saved")
        check_same(everything(cache, optimizer), saved)
        optimizer.step()
        check_same(everything(cache, optimizer), saved)


def test_options_are_those_of_the_step(tmp_path: Path) -> None:
    def late(model: nn.Module, optimizer: Any, cache: Any, number: int) -> None:
        optimizer.param_groups[0]["lr"] = 1.0
        model(tokens(number)).backward()
        optimizer.param_groups[0]["lr"] = 1e-2 / (number + 1)
        optimizer.step()
        optimizer.zero_grad()

    check_same(
        trained(tmp_path / "usual", TinyGPT, late, 3), kept(tmp_path / "e", TinyGPT, late, 3)
    )


def test_caps_have_to_hold_the_gradients(tmp_path: Path) -> None:
    def refused(ssd: int, **options: bool) -> str:
        model = layers()
        with make_cache(tmp_path, device=4, host=6, ssd=ssd) as cache:
            try:
                cache.wrap(model, adamw(model), **options)
            except ValueError as error:
                return str(error)
        return ""

    both = {"step_in_backward": True, "clipping": True}
    least = next(ssd for ssd in range(2, 100) if not refused(ssd))
    assert "does not fit into the cache: the sum of memory and disk" in refused(least, **both)
    with_gradients = next(ssd for ssd in range(2, 100) if not refused(ssd, **both))
    parameters = sum(parameter.nbytes for parameter in layers().parameters())
    assert with_gradients - least == -(-parameters // PAGE)


def test_closing_in_the_middle_of_a_step(tmp_path: Path) -> None:
    model = layers()
    cache = make_cache(tmp_path)
    _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True, clipping=True)
    model(torch.ones(2, 64)).sum().backward()
    cache.close()
    model(torch.ones(2, 64)).sum().backward()
    assert torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) > 0
    optimizer.zero_grad()


def test_what_lay_where_is_shown(tmp_path: Path) -> None:
    from taco_torch._extension import _C

    model = TinyGPT()
    with make_cache(tmp_path) as cache:
        _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True, clipping=True)
        for number in range(3):
            clipped([])(model, optimizer, cache, number)
        found = _C.zerocache.residency_over_run(cache.store, "train", 50)
        assert any(max(of_tier["gradients"]) >= PAGE for of_tier in found["residency"].values())
        assert cache.plan().step_s > 0
