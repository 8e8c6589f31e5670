"""Backward passes that step, and that exceptions end at other places on other ranks, or on one of
them alone. Nobody waits for ever: all of them come to the same parameters, and go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks
from zerocache_models import TinyGPT, make_cache
from zerocache_ranks import CAPS, adamw, fail_to_take, own_batches, refused, shared, values_of
from zerocache_steps import check_same

pytestmark = taco_only

EARLY = {"step_in_backward": True}
KEPT = {"step_in_backward": True, "clipping": True}
DEADLINE_S = 30.0
# Where a rank's pass ends: nowhere, in its forward pass, before any gradient, or at a parameter.
NOWHERE, FORWARD, START = "nowhere", "forward", "start"
MIDDLE, LATE, LAST = "blocks.1.out.weight", "blocks.1.first.weight", "blocks.0.first.weight"
UNBEGUN = {FORWARD, START}


def wrapped(folder: str, group: str, early: dict[str, Any] = EARLY) -> tuple[Any, Any, Any]:
    if group == "ddp":
        return shared(folder, TinyGPT(2), adamw, early, bucket_cap_mb=0.05)
    own = Path(folder, f"rank-{dist.get_rank()}")
    own.mkdir()
    cache = make_cache(own / "cache", *CAPS)
    model = TinyGPT(2)
    return cache, *cache.wrap(model, adamw(model), process_group=dist.group.WORLD, **early)


def interrupted(model: Any, tokens: torch.Tensor, place: str) -> tuple[str, str]:
    """The error of a pass that fails there."""

    def fail(*_: Any) -> None:
        raise OSError("in the middle")

    inner = getattr(model, "module", model)
    hooks: list[Any] = []
    if place == FORWARD:
        hooks = [inner.norm.register_forward_hook(fail)]
    elif place == START:
        hooks = [inner.norm.register_full_backward_pre_hook(fail)]
    elif place != NOWHERE:
        hooks = [inner.get_parameter(place).register_hook(fail)]
    try:
        return refused(lambda: model(tokens).backward())
    finally:
        for hook in hooks:
            hook.remove()


def usual_step(model: Any, optimizer: Any, data: Any) -> None:
    optimizer.zero_grad()
    model(next(data)).backward()
    optimizer.step()


def check_alike(cache: Any) -> None:
    for value in values_of(cache).values():
        mean = value.clone()
        dist.all_reduce(mean)
        assert mean.equal(value * dist.get_world_size()), "ranks differ"


def own_place(places: list[str]) -> str:
    return places[min(dist.get_rank(), len(places) - 1)]


def check_found(found: tuple[str, str], places: list[str]) -> None:
    """The first to leave raises its own; others hear of it, unless they come to their own first."""
    assert found[0] == "MismatchError" or own_place(places) != NOWHERE
    if found[0] == "MismatchError":
        assert own_place(places) != MIDDLE
        assert "has left its backward pass by an exception" in found[1]
    else:
        assert found == ("OSError", "in the middle")


def part(folder: str, group: str, places: list[str], call: str, early: dict[str, Any]) -> None:
    """The passes end, all ranks make the call, and are alike."""
    cache, model, optimizer = wrapped(folder, group, early)
    data = own_batches()
    usual_step(model, optimizer, data)
    before = values_of(cache)
    cache.save(f"{folder}/checkpoint")
    check_found(interrupted(model, next(data), own_place(places)), places)
    if call == "load":
        cache.load(f"{folder}/checkpoint")
        check_same(before, values_of(cache))
    elif call == "save":
        assert "not at its end" in refused(lambda: cache.save(f"{folder}/checkpoint"))[1]
        optimizer.zero_grad()
    else:
        getattr(optimizer, call)()
    check_alike(cache)
    if group != "ddp":  # which refuses to go on itself
        usual_step(model, optimizer, data)
        usual_step(model, optimizer, data)
        check_alike(cache)
        assert set(optimizer.numbers().values()) <= {3, 4}
    cache.save(f"{folder}/checkpoint")
    cache.close()


PLACES = [[MIDDLE, LAST], [LATE, MIDDLE], [MIDDLE, NOWHERE], [NOWHERE, MIDDLE]]


def named(places: list[str]) -> str:
    return "-".join(places)


@pytest.mark.parametrize("places", PLACES, ids=named)
@pytest.mark.parametrize("group", ["group", "ddp"])
@pytest.mark.parametrize("job", ["gloo-2", "taco-2"], indirect=True)
def test_nobody_waits(job: Ranks, tmp_path: Path, group: str, places: list[str]) -> None:
    job.run(part, str(tmp_path), group, places, "zero_grad", EARLY, deadline_s=DEADLINE_S)


@pytest.mark.parametrize("call", ["step", "save", "load"])
@pytest.mark.parametrize("group", ["group", "ddp"])
def test_whatever_all_call_next(two: Ranks, tmp_path: Path, group: str, call: str) -> None:
    two.run(part, str(tmp_path), group, [MIDDLE, LAST], call, EARLY, deadline_s=DEADLINE_S)


@pytest.mark.parametrize("places", [[MIDDLE, LAST, NOWHERE], [LAST, LATE, MIDDLE]], ids=named)
@pytest.mark.parametrize("group", ["group", "ddp"])
@pytest.mark.parametrize("job", ["gloo-4", "taco-4"], indirect=True)
def test_of_many_nobody_does(job: Ranks, tmp_path: Path, group: str, places: list[str]) -> None:
    job.run(part, str(tmp_path), group, places, "zero_grad", EARLY, deadline_s=DEADLINE_S)


@pytest.mark.parametrize("places", PLACES[:3], ids=named)
def test_nor_where_gradients_are_kept(two: Ranks, tmp_path: Path, places: list[str]) -> None:
    two.run(part, str(tmp_path), "group", places, "zero_grad", KEPT, deadline_s=DEADLINE_S)


def part_before(folder: str, group: str, places: list[str]) -> list[tuple[str, str]]:
    """A rank that has not come to a gradient joins the others' pass with its next one."""
    cache, model, optimizer = wrapped(folder, group)
    data = own_batches()
    usual_step(model, optimizer, data)
    interrupted(model, next(data), own_place(places))
    optimizer.zero_grad()
    found = []
    for _ in range(3 if own_place(places) in UNBEGUN else 2):
        found.append(refused(lambda: usual_step(model, optimizer, data)))
        optimizer.zero_grad()
    check_alike(cache)
    cache.close()
    return found


@pytest.mark.parametrize("places", [[START, MIDDLE], [MIDDLE, FORWARD]], ids=named)
@pytest.mark.parametrize("job", ["gloo-2", "taco-2"], indirect=True)
def test_before_a_gradient_there_is_nothing_to_leave(
    job: Ranks, tmp_path: Path, places: list[str]
) -> None:
    all_found = job.run(part_before, str(tmp_path), "group", places, deadline_s=DEADLINE_S)
    late = next(rank for rank, place in enumerate(places) if place in UNBEGUN)
    assert "has left its backward pass by an exception" in all_found[late].pop(0)[1]
    assert all_found == [[("", "")] * 2] * 2


@pytest.mark.parametrize("places", [[START, START], [FORWARD, START]], ids=named)
@pytest.mark.parametrize("group", ["group", "ddp"])
def test_where_none_has_begun_all_go_on(
    two: Ranks, tmp_path: Path, group: str, places: list[str]
) -> None:
    for found in two.run(part_before, str(tmp_path), group, places, deadline_s=DEADLINE_S):
        assert found == [("", "")] * 3


def miss_a_step(folder: str) -> list[tuple[str, str]]:
    """One rank has stepped with the pass that the other has given up."""
    cache, model, optimizer = wrapped(folder, "group")
    data = own_batches()
    usual_step(model, optimizer, data)
    found = []
    if dist.get_rank() == 0:
        model(next(data)).backward()
        optimizer.zero_grad()
    for _ in range(3):
        found.append(refused(lambda: usual_step(model, optimizer, data)))
        optimizer.zero_grad()
    check_alike(cache)
    cache.close()
    return found


@pytest.mark.parametrize("job", ["gloo-2", "taco-2"], indirect=True)
def test_a_step_that_is_matched_with_a_pass_is_told(job: Ranks, tmp_path: Path) -> None:
    for found in job.run(miss_a_step, str(tmp_path), deadline_s=DEADLINE_S):
        assert found[0][0] == "MismatchError"
        assert "rank 0 begins a backward pass where rank 1 takes a step" in found[0][1]
        assert found[1:] == [("", "")] * 2


def fail_and_part(folder: str, group: str) -> list[tuple[str, str]]:
    """Rank 1 has failed to take a gradient before."""
    cache, model, optimizer = wrapped(folder, group)
    data = own_batches()
    usual_step(model, optimizer, data)
    cache.save(f"{folder}/checkpoint")
    before = values_of(cache)
    undo = fail_to_take(optimizer, 1) if dist.get_rank() == 1 else None
    interrupted(model, next(data), own_place([LAST, MIDDLE]))
    found = [refused(optimizer.zero_grad)]
    if undo is not None:
        undo()
    cache.load(f"{folder}/checkpoint")
    check_same(before, values_of(cache))
    cache.close()
    return found


@pytest.mark.parametrize("group", ["group", "ddp"])
@pytest.mark.parametrize("job", ["gloo-2", "taco-2"], indirect=True)
def test_what_one_has_failed_to_take_is_told_as_ever(
    job: Ranks, tmp_path: Path, group: str
) -> None:
    first, second = job.run(fail_and_part, str(tmp_path), group, deadline_s=DEADLINE_S)
    assert "rank 1: OSError: no more of these" in first[0][1]
    assert second[0] == ("OSError", "no more of these")
