"""A backward pass that steps, and that an exception ends on all ranks, while one of them has failed
to take a gradient: nobody waits for anybody, and all ranks come to the same end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks
from zerocache_models import TinyGPT, make_cache
from zerocache_ranks import (
    CAPS,
    adamw,
    fail_to_take,
    own_batches,
    refused,
    shared,
    values_of,
)
from zerocache_spread import sharded
from zerocache_steps import check_same

pytestmark = taco_only

GROUPS = ["group", "ddp"]
EARLY = {"step_in_backward": True}


def wrapped(folder: str, group: str) -> tuple[Any, Any, Any]:
    if group == "ddp":
        return shared(folder, TinyGPT(2), adamw, EARLY, bucket_cap_mb=0.05)
    own = Path(folder, f"rank-{dist.get_rank()}")
    own.mkdir()
    cache = make_cache(own / "cache", *CAPS)
    model = TinyGPT(2)
    return cache, *cache.wrap(model, adamw(model), process_group=dist.group.WORLD, **EARLY)


def usual_step(model: Any, optimizer: Any, data: Any) -> None:
    optimizer.zero_grad()
    model(next(data)).backward()
    optimizer.step()


def interrupt(model: Any, data: Any) -> None:
    """On all ranks, when some of the means have come."""

    def fail(_: Any) -> None:
        raise OSError("in the middle")

    inner = getattr(model, "module", model)
    hook = inner.blocks[0].out.weight.register_hook(fail)
    assert refused(lambda: model(next(data)).backward()) == ("OSError", "in the middle")
    hook.remove()


def end(folder: str, group: str, nth: int, call: str) -> list[tuple[str, str]]:
    cache, model, optimizer = wrapped(folder, group)
    data = own_batches()
    usual_step(model, optimizer, data)
    cache.save(f"{folder}/checkpoint")
    before = values_of(cache)
    undo = fail_to_take(optimizer, nth) if dist.get_rank() == 1 else None
    interrupt(model, data)
    if undo is not None:
        undo()
    calls = {
        "zero_grad": optimizer.zero_grad,
        "step": optimizer.step,
        "next pass": lambda: model(next(data)).backward(),
        "save": lambda: cache.save(f"{folder}/checkpoint"),
        "consolidate": optimizer.consolidate_state_dict,
    }
    inner = getattr(model, "module", model)  # DistributedDataParallel itself refuses to go on
    found = [refused(calls[call]), refused(optimizer.zero_grad), refused(lambda: inner(next(data)))]
    cache.load(f"{folder}/checkpoint")
    check_same(before, values_of(cache))
    if group != "ddp":
        usual_step(model, optimizer, data)
        assert set(optimizer.numbers().values()) == {2}
    cache.close()
    return found


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("call", ["zero_grad", "step"])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("job", ["gloo-2", "taco-4"], indirect=True)
def test_what_ends_the_step_fails_on_all_ranks_until_a_load(
    job: Ranks, tmp_path: Path, group: str, call: str, nth: int
) -> None:
    for rank, found in enumerate(job.run(end, str(tmp_path), group, nth, call)):
        if rank == 1:
            assert found[0] == ("OSError", "no more of these")
        else:
            assert "rank 1: OSError: no more of these" in found[0][1], found
        assert "load a checkpoint to go on" in found[2][1], found


@pytest.mark.parametrize("nth", [1, 3])
def test_so_does_another_pass(two: Ranks, tmp_path: Path, nth: int) -> None:
    for rank, found in enumerate(two.run(end, str(tmp_path), "group", nth, "next pass")):
        assert "no more of these" in found[0][1], (rank, found)
        assert "load a checkpoint to go on" in found[2][1], found


@pytest.mark.parametrize("call", ["save", "consolidate"])
@pytest.mark.parametrize("group", GROUPS)
def test_what_needs_the_step_at_its_end_says_so_on_all_ranks(
    two: Ranks, tmp_path: Path, group: str, call: str
) -> None:
    for rank, found in enumerate(two.run(end, str(tmp_path), group, 1, call)):
        assert "the step that a backward pass has begun is not at its end" in found[0][1], found
        assert "no more of these" in found[1][1], (rank, found)


def consolidate(folder: str) -> list[tuple[str, str]]:
    """After a pass that has come to its end."""
    cache, model, optimizer = wrapped(folder, "group")
    undo = fail_to_take(optimizer, 1) if dist.get_rank() == 1 else None
    found = [refused(lambda: model(next(own_batches())).backward())]
    if undo is not None:
        undo()
    found.append(refused(optimizer.consolidate_state_dict))
    cache.close()
    return found


def test_state_is_refused_on_all_ranks_where_one_has_taken_nothing(
    two: Ranks, tmp_path: Path
) -> None:
    for found in two.run(consolidate, str(tmp_path)):
        assert "no more of these" in found[0][1]
        assert "the step that a backward pass has begun is not at its end" in found[1][1], found


def without_failure(folder: str, call: str) -> list[str]:
    cache, model, optimizer = wrapped(folder, "group")
    data = own_batches()
    usual_step(model, optimizer, data)
    before = values_of(cache)
    interrupt(model, data)
    getattr(optimizer, call)()
    after = values_of(cache)
    changed = [name for name, value in after.items() if not value.equal(before[name])]
    numbers = optimizer.numbers()
    assert all(numbers[name] == 2 for name in changed)
    usual_step(model, optimizer, data)
    for value in values_of(cache).values():
        mean = value.clone()
        dist.all_reduce(mean)
        assert mean.equal(value * dist.get_world_size()), "ranks differ"
    cache.close()
    return changed


@pytest.mark.parametrize("call", ["zero_grad", "step"])
@pytest.mark.parametrize("job", ["gloo-2", "taco-4"], indirect=True)
def test_without_a_failure_what_was_averaged_is_stepped(
    job: Ranks, tmp_path: Path, call: str
) -> None:
    for changed in job.run(without_failure, str(tmp_path), call):
        assert "norm.weight" in changed
        assert "blocks.0.first.weight" not in changed


def end_sharded(folder: str, nth: int) -> list[tuple[str, str]]:
    """Where parameters are spread, what one fails to take ends the passes of all."""
    cache, model, optimizer = sharded(folder, TinyGPT(2), **EARLY)
    data = own_batches()
    usual_step(model, optimizer, data)
    cache.save(f"{folder}/checkpoint")
    undo = fail_to_take(optimizer, nth) if dist.get_rank() == 1 else None
    found = [refused(lambda: model(next(data)).backward()), refused(optimizer.zero_grad)]
    if undo is not None:
        undo()
    cache.load(f"{folder}/checkpoint")
    usual_step(model, optimizer, data)
    assert set(optimizer.numbers().values()) == {2}
    cache.close()
    return found


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("job", ["gloo-2", "taco-4"], indirect=True)
def test_of_spread_parameters_nobody_waits_either(job: Ranks, tmp_path: Path, nth: int) -> None:
    for rank, found in enumerate(job.run(end_sharded, str(tmp_path), nth)):
        assert found[0][0] == "OSError" if rank == 1 else found[0][0], found
