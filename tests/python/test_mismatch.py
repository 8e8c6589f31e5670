"""Ranks that call different things: always found out, and both sides shown.

One rank of three deviates. Every rank must get a MismatchError, at the call, at its next one, or
when it waits; and the error of at least one rank must show both sides in words.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from conftest import BACKEND, TRANSPORTS
from spawn_ranks import Outcome, Ranks

pytestmark = pytest.mark.skipif(BACKEND != "taco", reason="behaviour that only taco promises")

WORLD = 3
SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX
Group = dist.ProcessGroup


def floats(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(count, dtype=dtype)


def blocks(count: int) -> list[torch.Tensor]:
    return [floats(count) for _ in range(WORLD)]


def gather(group: Group, count: int, root: int = 0) -> None:
    dist.gather(floats(count), blocks(count) if dist.get_rank() == root else None, root, group)


def scatter(group: Group, count: int, root: int = 0) -> None:
    dist.scatter(floats(count), blocks(count) if dist.get_rank() == root else None, root, group)


def all_to_all(group: Group, count: int, uneven: bool = False) -> None:
    splits = [count] * WORLD
    if uneven:  # all but this rank's own block
        splits[dist.get_rank() - 1] += 1
        splits[dist.get_rank() - 2] -= 1
    inputs, outputs = floats(WORLD * count), floats(WORLD * count)
    dist.all_to_all_single(outputs, inputs, [count] * WORLD, splits, group)


def two_in_turn(group: Group, first: int, second: int) -> None:
    dist.all_reduce(floats(first), group=group)
    dist.all_reduce(floats(second), group=group)


Call = Callable[[Group], object]
# name: what most ranks call, what the deviating rank calls, words that the errors must show
CASES: dict[str, tuple[Call, Call, tuple[str, str]]] = {
    "all_reduce count": (
        lambda g: dist.all_reduce(floats(3), group=g),
        lambda g: dist.all_reduce(floats(4), group=g),
        ("float32 x 3", "float32 x 4"),
    ),
    "all_reduce large count": (
        lambda g: dist.all_reduce(floats(300_000), group=g),
        lambda g: dist.all_reduce(floats(300_001), group=g),
        ("float32 x 300000", "float32 x 300001"),
    ),
    "all_reduce small beside large": (
        lambda g: dist.all_reduce(floats(2), group=g),
        lambda g: dist.all_reduce(floats(3_000_000), group=g),
        ("float32 x 2", "float32 x 3000000"),
    ),
    "all_reduce dtype of the same size": (
        lambda g: dist.all_reduce(floats(8), group=g),
        lambda g: dist.all_reduce(floats(8, torch.int32), group=g),
        ("float32 x 8", "int32 x 8"),
    ),
    "all_reduce reduction": (
        lambda g: dist.all_reduce(floats(8), SUM, group=g),
        lambda g: dist.all_reduce(floats(8), MAX, group=g),
        ("SUM", "MAX"),
    ),
    "broadcast count": (
        lambda g: dist.broadcast(floats(5), 0, group=g),
        lambda g: dist.broadcast(floats(6), 0, group=g),
        ("broadcast float32 x 5", "broadcast float32 x 6"),
    ),
    "broadcast root": (
        lambda g: dist.broadcast(floats(5), 0, group=g),
        lambda g: dist.broadcast(floats(5), 2, group=g),
        ("root 0", "root 2"),
    ),
    "all_gather count": (
        lambda g: dist.all_gather(blocks(7), floats(7), group=g),
        lambda g: dist.all_gather(blocks(9), floats(9), group=g),
        ("all_gather", "all_gather"),
    ),
    "reduce_scatter reduction": (
        lambda g: dist.reduce_scatter(floats(7), blocks(7), SUM, group=g),
        lambda g: dist.reduce_scatter(floats(7), blocks(7), MAX, group=g),
        ("SUM", "MAX"),
    ),
    "reduce root": (
        lambda g: dist.reduce(floats(7), 0, group=g),
        lambda g: dist.reduce(floats(7), 1, group=g),
        ("root 0", "root 1"),
    ),
    "gather count": (
        lambda g: gather(g, 4),
        lambda g: gather(g, 5),
        ("gather", "gather"),
    ),
    "scatter count": (
        lambda g: scatter(g, 4),
        lambda g: scatter(g, 5),
        ("scatter", "scatter"),
    ),
    "all_to_all count": (
        lambda g: all_to_all(g, 4),
        lambda g: all_to_all(g, 5),
        ("all_to_all", "all_to_all"),
    ),
    "all_to_all splits": (
        lambda g: all_to_all(g, 4),
        lambda g: all_to_all(g, 4, uneven=True),
        ("all_to_all", "all_to_all"),
    ),
    "all_reduce beside barrier": (
        lambda g: dist.all_reduce(floats(4), group=g),
        lambda g: dist.barrier(group=g),
        ("all_reduce", "barrier"),
    ),
    "broadcast beside all_gather": (
        lambda g: dist.broadcast(floats(4), 0, group=g),
        lambda g: dist.all_gather(blocks(4), floats(4), group=g),
        ("broadcast", "all_gather"),
    ),
    "order": (
        lambda g: two_in_turn(g, 10, 20),
        lambda g: two_in_turn(g, 20, 10),
        ("float32 x 10", "float32 x 20"),
    ),
    "one operation left out": (
        lambda g: two_in_turn(g, 10, 20),
        lambda g: two_in_turn(g, 20, 30),
        ("float32 x 10", "float32 x 20"),
    ),
}


def deviate(name: str, deviant: int) -> None:
    """Calls the case, and then what shows an error to a rank whose own part was complete."""
    group = dist.new_group(list(range(WORLD)), timeout=timedelta(seconds=20))
    usual, other, _ = CASES[name]
    (other if dist.get_rank() == deviant else usual)(group)
    time.sleep(0.3)
    dist.all_reduce(floats(1), group=group)
    raise AssertionError("nothing was noticed")


def check(outcomes: list[Outcome], words: tuple[str, str], least: float = 15.0) -> None:
    for outcome in outcomes:
        assert outcome.error_type == "MismatchError", f"{outcome.error_type}: {outcome.error}"
        assert outcome.seconds < least
    assert any(all(word in outcome.error for word in words) for outcome in outcomes), [
        outcome.error for outcome in outcomes
    ]


@pytest.fixture(scope="module", params=TRANSPORTS)
def world(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    with Ranks(WORLD, {"TACO_TRANSPORT": request.param, "TACO_LOG": "off"}) as ranks:
        yield ranks.initialise()


@pytest.mark.parametrize("deviant", range(WORLD))
@pytest.mark.parametrize("name", CASES)
def test_a_deviating_rank_is_found_out(world: Ranks, name: str, deviant: int) -> None:
    check(world.outcomes(deviate, name, deviant), CASES[name][2])


def agreed_then_disputed(rounds: int) -> list[str]:
    """Errors of the first of two operations: none, whichever rank leaves after the second."""
    found = []
    for i in range(rounds):
        group = dist.new_group(list(range(WORLD)), timeout=timedelta(seconds=20))
        first = floats(4)
        try:
            dist.all_reduce(first, group=group)
            assert first.tolist() == [float(WORLD)] * 4
        except dist.DistBackendError as error:
            found.append(f"round {i}, operation 1: {error}")
        deviates = dist.get_rank() == i % WORLD
        try:
            dist.all_reduce(floats(4, torch.int32 if deviates else torch.float32), group=group)
            found.append(f"round {i}, operation 2: nothing was noticed")
        except dist.DistBackendError as error:
            if type(error).__name__ != "MismatchError":
                found.append(f"round {i}, operation 2: {error}")
        dist.destroy_process_group(group)
    return found


def test_a_disagreement_does_not_end_the_operation_before_it(world: Ranks) -> None:
    assert world.run(agreed_then_disputed, 40) == [[]] * WORLD


def root_has_finished(group: dist.ProcessGroup) -> None:
    """Rank 0 says so, the others wait for it: not by the group, whose order of calls it must not
    touch."""
    store, key = dist.distributed_c10d._get_default_store(), f"{group.group_name}: root is done"
    if dist.get_rank() == 0:
        store.set(key, "")
    else:
        store.wait([key])


def send_until_told(data: torch.Tensor, group: dist.ProcessGroup) -> None:
    """A small send is done before it is received; a later one tells what came of it."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        dist.send(data, 1, group=group)
        time.sleep(0.01)


def send_three_receive(what: str) -> None:
    group = dist.new_group([0, 1], timeout=timedelta(seconds=10))
    if dist.get_rank() > 1:
        return
    count, dtype = {"count": (4, torch.float32), "dtype": (3, torch.int32)}[what]
    if dist.get_rank() == 0:
        send_until_told(floats(3), group)
    else:
        dist.recv(floats(count, dtype), 0, group=group)


@pytest.mark.parametrize("what", ["count", "dtype"])
def test_a_send_and_receive_that_differ_fail_on_both_sides(world: Ranks, what: str) -> None:
    outcomes = world.outcomes(send_three_receive, what)[:2]
    check(outcomes, ("float32 x 3", "float32 x 4" if what == "count" else "int32 x 3"))


def receive_too_little(size: int) -> list[float]:
    group = dist.new_group([0, 1], timeout=timedelta(seconds=10))
    if dist.get_rank() == 0:
        dist.send(floats(size), 1, group=group)
        dist.barrier(group=group)
    elif dist.get_rank() == 1:
        buffer = torch.full((2 * size,), 7.0)
        try:
            dist.recv(buffer[: size // 2], 0, group=group)
        except dist.DistBackendError:
            if not bool((buffer == 7).all()):
                raise AssertionError("the receive buffer was written") from None
            raise
    return []


@pytest.mark.parametrize("size", [8, 200_000])
def test_a_short_receive_buffer_is_an_error_and_is_not_written(world: Ranks, size: int) -> None:
    outcomes = world.outcomes(receive_too_little, size)[:2]
    check(outcomes, (f"float32 x {size}", f"float32 x {size // 2}"))


def root_finishes_first() -> str:
    """The root's part of a small broadcast is complete before anyone disagrees."""
    group = dist.new_group(list(range(WORLD)), timeout=timedelta(seconds=20))
    if dist.get_rank() == 0:
        dist.broadcast(floats(4), 0, group=group)  # must not fail
        root_has_finished(group)
        try:
            dist.all_reduce(floats(4), group=group)
        except dist.DistBackendError as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"
    root_has_finished(group)
    try:
        dist.broadcast(floats(5 if dist.get_rank() == 1 else 4), 0, group=group)
        dist.all_reduce(floats(4), group=group)
    except dist.DistBackendError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_a_broadcasts_root_hears_of_it_at_its_next_operation(world: Ranks) -> None:
    texts = world.run(root_finishes_first)
    assert all(text.startswith("MismatchError") for text in texts), texts
    assert "float32 x 4" in texts[0]
    assert "float32 x 5" in texts[0]


def root_only_leaves(deviant: int) -> str:
    """As above, but the root does nothing more than destroy the group, which waits only a second
    for what the others have to say: it begins once the deviant is about to call."""
    group = dist.new_group(list(range(WORLD)), timeout=timedelta(seconds=20))
    store, calls = dist.distributed_c10d._get_default_store(), f"{group.group_name}: it deviates"
    rank = dist.get_rank()
    if rank != 0:
        root_has_finished(group)
    if rank == deviant:
        store.set(calls, "")
    try:
        dist.broadcast(floats(5 if rank == deviant else 4), 0, group=group)
        if rank == 0:
            root_has_finished(group)
            store.wait([calls])
        dist.destroy_process_group(group)
    except dist.DistBackendError as error:
        dist.destroy_process_group(group)  # the second call finds nothing to tell
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.parametrize("deviant", [1, 2])
def test_a_broadcasts_root_hears_of_it_when_it_destroys_the_group(
    world: Ranks, deviant: int
) -> None:
    texts = world.run(root_only_leaves, deviant)
    for rank in (0, deviant):
        assert texts[rank].startswith("MismatchError"), texts
        assert "float32 x 4" in texts[rank]
        assert "float32 x 5" in texts[rank]


def root_leaves_in_peace() -> str:
    group = dist.new_group(list(range(WORLD)), timeout=timedelta(seconds=20))
    if dist.get_rank() == 2:
        time.sleep(0.3)  # so slow that the root is leaving already
    dist.broadcast(floats(4), 0, group=group)
    dist.destroy_process_group(group)
    return "left"


def test_a_broadcasts_root_may_leave_before_slow_receivers_come(world: Ranks) -> None:
    assert world.run(root_leaves_in_peace) == ["left"] * WORLD
