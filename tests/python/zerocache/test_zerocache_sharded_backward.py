"""Ranks that share a model's parameters, and step pages in the backward pass: the same bits."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
import zerocache_ranks as on_ranks
from conftest import taco_only
from spawn_ranks import Pool, Ranks
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from zerocache_models import TinyGPT
from zerocache_ranks import MAKES, own_batches, refused, state_of, values_of
from zerocache_spread import sharded
from zerocache_steps import check_same

pytestmark = taco_only

Step = Callable[[Any, Any, Any, Iterator[Tensor]], None]


def usual_step(_: Any, model: Any, optimizer: Any, data: Iterator[Tensor]) -> None:
    optimizer.zero_grad()
    model(next(data)).backward()
    optimizer.step()


def accumulated(cache: Any, model: Any, optimizer: Any, data: Iterator[Tensor]) -> None:
    optimizer.zero_grad()
    with cache.accumulate():
        model(next(data)).backward()
        assert model.norm.weight.grad is not None
    model(next(data)).backward()
    assert model.norm.weight.grad is None
    optimizer.step()


def compare(
    folder: str, model: Callable[[], nn.Module], make: str = "adamw", step: Step = usual_step
) -> None:
    """Trains with steps at the end and in backward passes, and expects the same bits."""
    found = []
    for name, options in (("usual", {}), ("early", {"step_in_backward": True})):
        Path(folder, f"{name}-{dist.get_rank()}").mkdir()
        own = f"{folder}/{name}-{dist.get_rank()}"
        cache, made, optimizer = sharded(own, model(), MAKES[make], **options)
        data = own_batches()
        for _ in range(4):
            step(cache, made, optimizer, data)
        assert set(optimizer.numbers().values()) == {4}
        found.append({**values_of(cache), **state_of(optimizer)})
        cache.close()
    check_same(*found)


def compare_gpt(folder: str, make: str) -> None:
    compare(folder, lambda: TinyGPT(2), make)


@pytest.mark.parametrize("make", MAKES)
def test_the_bits_are_those_of_steps_at_the_end(job: Ranks, tmp_path: Path, make: str) -> None:
    job.run(compare_gpt, str(tmp_path), make)


def compare_mixed(folder: str, make: str) -> None:
    compare(folder, on_ranks.mixed_model, make)


@pytest.mark.parametrize("make", ["adamw", "adafactor"])
def test_bfloat16_frozen_and_tied_parameters(two: Ranks, tmp_path: Path, make: str) -> None:
    two.run(compare_mixed, str(tmp_path), make)


def compare_accumulated(folder: str, make: str) -> None:
    compare(folder, lambda: TinyGPT(2), make, accumulated)


@pytest.mark.parametrize("make", ["adamw", "adafactor"])
def test_gradients_that_accumulate(two: Ranks, tmp_path: Path, make: str) -> None:
    two.run(compare_accumulated, str(tmp_path), make)


class Checkpointed(TinyGPT):
    reentrant = False

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        logits = F.linear(self.norm(x), torch.ones(61, 48))
        return F.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())


class Reentrant(Checkpointed):
    reentrant = True


def compare_checkpointed(folder: str, reentrant: bool) -> None:
    compare(folder, lambda: (Reentrant if reentrant else Checkpointed)(2))


@pytest.mark.parametrize("reentrant", [False, True])
def test_activations_may_be_computed_again(two: Ranks, tmp_path: Path, reentrant: bool) -> None:
    two.run(compare_checkpointed, str(tmp_path), reentrant)


def step_before_step(folder: str) -> None:
    cache, model, optimizer = sharded(folder, TinyGPT(2), step_in_backward=True)
    data = own_batches()
    usual_step(cache, model, optimizer, data)
    before = values_of(cache)
    optimizer.zero_grad()
    model(next(data)).backward()
    after = values_of(cache)
    assert all(not torch.equal(before[name], value) for name, value in after.items())
    assert set(optimizer.numbers().values()) == {1}
    for call in (optimizer.consolidate_state_dict, lambda: cache.save(folder + "/saved")):
        assert "call optimizer.step()" in refused(call)[1]
    optimizer.step()
    assert set(optimizer.numbers().values()) == {2}
    check_same(values_of(cache), after)
    cache.close()


def test_all_is_stepped_when_backward_returns(two: Ranks, tmp_path: Path) -> None:
    two.run(step_before_step, str(tmp_path))


def drop(folder: str) -> None:
    """zero_grad() comes too late for what has been stepped, which counts."""
    cache, model, optimizer = sharded(folder, TinyGPT(2), step_in_backward=True)
    data = own_batches()
    model(next(data)).backward()
    after = values_of(cache)
    optimizer.zero_grad()
    check_same(values_of(cache), after)
    assert set(optimizer.numbers().values()) == {1}
    model(next(data)).backward()
    # Another pass without a step between: where gradients should have been added up.
    kind, text = refused(lambda: model(next(data)).backward())
    assert kind == "RuntimeError", text
    assert "cache.accumulate()" in text, text
    optimizer.zero_grad()
    assert set(optimizer.numbers().values()) == {2}
    usual_step(cache, model, optimizer, data)
    assert set(optimizer.numbers().values()) == {3}
    cache.close()


def test_what_has_been_stepped_stays_and_counts(two: Ranks, tmp_path: Path) -> None:
    two.run(drop, str(tmp_path))


# Ranks that part.


def fail_in(folder: str, where: str) -> list[tuple[str, str]]:
    cache, model, optimizer = sharded(folder, TinyGPT(2), step_in_backward=True)
    data, fails = own_batches(), [False]

    def hook(*_: Any) -> None:
        if fails[0] and dist.get_rank() == 1:
            raise ZeroDivisionError("in the middle")

    if where == "forward":
        model.norm.register_forward_hook(hook)
    else:
        model.blocks[0].register_full_backward_hook(hook)
    usual_step(cache, model, optimizer, data)
    saved = f"{folder}/saved"
    cache.save(saved)
    values = {**values_of(cache), **state_of(optimizer)}
    fails[0] = True
    found = [refused(lambda: usual_step(cache, model, optimizer, data))]
    fails[0] = False
    found.append(refused(lambda: usual_step(cache, model, optimizer, data)))
    if where == "forward":
        assert set(optimizer.numbers().values()) == {2}
    else:
        found.append(refused(lambda: cache.save(saved)))
        cache.load(saved)
        check_same({**values_of(cache), **state_of(optimizer)}, values)
        usual_step(cache, model, optimizer, data)
        assert set(optimizer.numbers().values()) == {2}
    cache.close()
    return found


def test_before_a_page_is_stepped_nothing_is_lost(two: Ranks, tmp_path: Path) -> None:
    for found in two.run(fail_in, str(tmp_path), "forward"):
        assert "ZeroDivisionError" in "".join(found[0])
        assert found[1] == ("", "")


def test_in_the_middle_of_a_step_a_checkpoint_is_asked_for(two: Ranks, tmp_path: Path) -> None:
    for found in two.run(fail_in, str(tmp_path), "backward"):
        assert found[0][0]
        for _, text in found[1:]:
            assert "load a checkpoint to go on" in text, found


def step_otherwise(folder: str) -> tuple[str, str]:
    cache, model, optimizer = sharded(folder, TinyGPT(2), step_in_backward=True)
    data = own_batches()
    usual_step(cache, model, optimizer, data)
    optimizer.param_groups[0]["lr"] = 1e-2 * (1 + dist.get_rank())
    before = values_of(cache)
    optimizer.zero_grad()
    found = refused(lambda: model(next(data)).backward())
    optimizer.param_groups[0]["lr"] = 1e-2
    optimizer.zero_grad()
    check_same(values_of(cache), before)
    usual_step(cache, model, optimizer, data)
    cache.close()
    return found


def test_steps_that_differ_are_refused_before_one_is_taken(job: Ranks, tmp_path: Path) -> None:
    for kind, text in job.run(step_otherwise, str(tmp_path)):
        assert kind == "MismatchError", text
        assert "for steps with the constants" in text


# Clipping, and calls that are refused.


def clip_kept(folder: str) -> None:
    found = []
    for name, options in (
        ("usual", {}),
        ("clipping", {"step_in_backward": True, "clipping": True}),
    ):
        own = f"{folder}/{name}-{dist.get_rank()}"
        Path(own).mkdir()
        cache, model, optimizer = sharded(own, TinyGPT(2), **options)
        data = own_batches()
        for _ in range(3):
            optimizer.zero_grad()
            model(next(data)).backward()
            assert cache.clip_grad_norm_(0.1) > 0.1
            optimizer.step()
        found.append({**values_of(cache), **state_of(optimizer)})
        cache.close()
    check_same(*found)


def test_with_clipping_means_wait_for_the_step(two: Ranks, tmp_path: Path) -> None:
    two.run(clip_kept, str(tmp_path))


def refuse(folder: str) -> list[tuple[str, str]]:
    cache, model, optimizer = sharded(folder, TinyGPT(2), step_in_backward=True)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(next(own_batches()))).backward()
    found = [
        refused(lambda: cache.clip_grad_norm_(1.0)),
        refused(lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)),
        refused(lambda: scaler.unscale_(optimizer)),
    ]
    optimizer.step()
    cache.close()
    return found


def test_what_comes_too_late_is_said(two: Ranks, tmp_path: Path) -> None:
    for found in two.run(refuse, str(tmp_path)):
        assert all("clipping=True" in text for _, text in found), found


def die_in_backward(folder: str) -> list[tuple[str, str]]:
    cache, model, optimizer = sharded(folder, TinyGPT(2), step_in_backward=True)
    data = own_batches()
    usual_step(cache, model, optimizer, data)

    def die(*_: Any) -> None:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    model.blocks[0].register_full_backward_hook(die)
    found = [refused(lambda: usual_step(cache, model, optimizer, data))]
    found.append(refused(lambda: usual_step(cache, model, optimizer, data)))
    cache.close()
    return found


def test_the_others_hear_of_a_rank_that_dies(jobs: Pool, tmp_path: Path) -> None:
    outcomes = jobs.get("taco", 3).outcomes(die_in_backward, str(tmp_path))
    for rank in (0, 2):
        found = outcomes[rank].value
        assert found[0][0] == "PeerLostError", found
        assert found[1][0], found
