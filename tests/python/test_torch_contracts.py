"""Demands of newer torch versions on a backend beside its collectives. Each test runs where torch
asks; docs/torch-versions.md says which version brought what."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import BACKEND
from launching import until
from spawn_ranks import Ranks, initialise
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh

import taco_torch
from taco_torch.groups import taco_backend

pytestmark = pytest.mark.skipif(BACKEND != "taco", reason="behaviour that only taco promises")

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
DEADLINE_S = 30.0


def since(minor: int) -> Any:
    return pytest.mark.skipif((2, minor) > TORCH, reason=f"torch 2.{minor} brought it")


def total() -> float:
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    return float(tensor[0])


@contextlib.contextmanager
def fresh(world: int, transport: str, **environment: str) -> Iterator[Ranks]:
    with Ranks(world, {"TACO_TRANSPORT": transport, "TACO_LOG": "error", **environment}) as ranks:
        yield ranks


# Options


def join_with_options(rank: int, port: int, world: int) -> None:
    options = taco_torch.Options(algorithm="ring")
    initialise(rank, world, port, pg_options=options, device_id=torch.device("cpu", 0))


def split_and_compare() -> None:
    parent = taco_backend()
    before = (parent.options.algorithm, parent.options._timeout, parent.options.group_name)
    child = dist.split_group(split_ranks=[[0, 1, 2]], timeout=timedelta(seconds=77))
    assert child is not None
    split = taco_backend(child).options
    assert (split.algorithm, split._timeout) == ("ring", timedelta(seconds=77))
    assert (parent.options.algorithm, parent.options._timeout, parent.options.group_name) == before
    tensor = torch.ones(4)
    dist.all_reduce(tensor, group=child)
    assert tensor[0] == 3


def subgroups_under_a_bound_cpu() -> None:
    """Every way to make groups, where one rank is not in the group."""
    assert dist.group.WORLD is not None
    assert dist.group.WORLD.bound_device_id == torch.device("cpu", 0)
    pair = dist.new_group([0, 1])
    tensor = torch.ones(4)
    if dist.get_rank() < 2:
        dist.all_reduce(tensor, group=pair)
        assert tensor[0] == 2
    mesh = init_device_mesh("cpu", (3, 1), mesh_dim_names=("rows", "columns"))
    tensor = torch.ones(4)
    dist.all_reduce(tensor, group=mesh["rows"].get_group())
    assert tensor[0] == 3
    dist.barrier()


@since(15)
def test_a_split_group_keeps_its_parents_options_and_leaves_them_alone(transport: str) -> None:
    with fresh(3, transport) as ranks:
        ranks.run_each(join_with_options, [(rank, ranks.port, 3) for rank in range(3)])
        ranks.run(split_and_compare)


@since(15)
def test_a_group_may_be_bound_to_the_processor(transport: str) -> None:
    with fresh(3, transport) as ranks:
        ranks.run_each(join_with_options, [(rank, ranks.port, 3) for rank in range(3)])
        ranks.run(subgroups_under_a_bound_cpu)


# Longer timeouts


def time_out_after(first_ms: int, extension_ms: int) -> str:
    dist.set_timeout(timedelta(milliseconds=first_ms)) if TORCH >= (2, 15) else (
        c10d._set_pg_timeout(timedelta(milliseconds=first_ms))
    )
    if extension_ms:
        c10d._add_ephemeral_timeout_for_all_pgs(timedelta(milliseconds=extension_ms))
        c10d._add_ephemeral_timeout_for_all_pgs(timedelta(milliseconds=extension_ms))
    try:
        total()
    except taco_torch.CollectiveTimeoutError as error:
        return str(error)
    raise AssertionError("no rank else takes part")


def extend_and_use_up() -> None:
    c10d._add_ephemeral_timeout_for_all_pgs(timedelta(milliseconds=5000))
    total()


@since(14)
def test_an_extension_of_the_timeout_counts_for_the_next_operation(transport: str) -> None:
    with fresh(2, transport) as ranks:
        ranks.initialise()
        ranks.run(total)
        ranks.begin(0, time_out_after, 200, 300)
        (outcome,) = ranks.gather([0], DEADLINE_S)
        assert "Timed out waiting 800ms" in outcome.value, outcome


@since(14)
def test_an_extension_of_the_timeout_ends_with_the_first_operation(transport: str) -> None:
    with fresh(2, transport) as ranks:
        ranks.initialise()
        ranks.run(extend_and_use_up)
        ranks.begin(0, time_out_after, 300, 0)
        (outcome,) = ranks.gather([0], DEADLINE_S)
        assert "Timed out waiting 300ms" in outcome.value, outcome


def extend_by(milliseconds: int) -> None:
    c10d._add_ephemeral_timeout_for_all_pgs(timedelta(milliseconds=milliseconds))


@since(14)
def test_a_timeout_cannot_be_extended_by_less_than_nothing(ranks: Ranks) -> None:
    for outcome in ranks.outcomes(extend_by, -1):
        assert outcome.error_type == "ValueError", outcome
        assert "not by -1" in outcome.error


# Estimates of time


def estimates() -> None:
    started = dist.group.WORLD._get_sequence_number_for_group()  # type: ignore[union-attr]
    small, large = torch.ones(2), torch.ones(1 << 20)
    strided = torch.zeros(4, 6)[:, ::2]
    with c10d._time_estimator() as of_small:
        dist.all_reduce(small)
    with c10d._time_estimator() as of_large:
        dist.all_reduce(large)
    with c10d._time_estimator() as of_both:
        dist.all_reduce(small)
        work = dist.all_reduce(large, async_op=True)
        assert work is not None
        work.wait()
    with c10d._time_estimator() as of_strided:
        dist.all_reduce(strided)
        dist.barrier()
    assert of_small.estimated_time is not None
    assert of_large.estimated_time is not None
    assert 0 < of_small.estimated_time < of_large.estimated_time
    both = of_small.estimated_time + of_large.estimated_time
    assert of_both.estimated_time == pytest.approx(both, rel=1e-3)
    assert of_strided.estimated_time is not None
    assert of_strided.estimated_time > 0
    assert torch.equal(small, torch.ones(2))
    assert torch.equal(large, torch.ones(1 << 20))
    assert torch.equal(strided, torch.zeros(4, 3)), "nothing was received"
    ended = dist.group.WORLD._get_sequence_number_for_group()  # type: ignore[union-attr]
    assert ended == started, "nothing was run"
    assert total() == dist.get_world_size()


def estimate_a_send() -> None:
    with dist._time_estimator():
        dist.send(torch.ones(1), 1 - dist.get_rank() % 2)


def leave_an_estimate() -> None:
    with c10d._time_estimator():
        dist.all_reduce(torch.ones(1))
        raise KeyError("the program's own")


@since(15)
def test_an_estimate_of_time_runs_nothing_and_grows_with_the_bytes(ranks: Ranks) -> None:
    ranks.run(estimates)


@since(15)
def test_messages_are_refused_in_an_estimate(ranks: Ranks) -> None:
    for outcome in ranks.outcomes(estimate_a_send):
        assert outcome.error_type == "TypeError", outcome
        assert "send" in outcome.error
    assert ranks.run(total) == [4.0] * 4


@since(15)
def test_an_exception_ends_an_estimate(ranks: Ranks) -> None:
    """Operations after it are run again, not estimated."""
    for outcome in ranks.outcomes(leave_an_estimate):
        assert outcome.error_type == "KeyError", outcome
    assert ranks.run(total) == [4.0] * 4


@pytest.mark.skipif(TORCH >= (2, 15), reason="from torch 2.15 on it can")
def test_an_older_torch_says_that_it_cannot_estimate(ranks: Ranks) -> None:
    for outcome in ranks.outcomes(leave_an_estimate):
        assert outcome.error_type == "NotImplementedError", outcome


# Hooks


def entries() -> list[dict[str, Any]]:
    trace = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(backend="taco"))
    return list(trace.get("entries", []))


def completed() -> bool:
    return all(entry["state"] == "completed" for entry in entries())


def collectives_of_every_form() -> None:
    tensor = torch.ones(100)
    dist.all_reduce(tensor)
    dist.barrier()
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(3)]
    gathered = [torch.empty(100) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, tensor)
    c10d.all_reduce_coalesced([torch.ones(3), torch.ones(4)])
    strided = torch.zeros(4, 6)[:, ::2]
    dist.broadcast(strided, 0)
    # Nobody has asked the works, and nothing but the recorder's hook tells it of their end.
    until(completed, "the work's end", DEADLINE_S)
    names = {entry["profiling_name"] for entry in entries()}
    assert {"taco:all_reduce", "taco:all_gather", "taco:broadcast"} <= names, names
    assert any(entry["duration_ms"] > 0 for entry in entries() if "duration_ms" in entry)
    for work in works:
        assert work is not None
        work.wait()


def one_alone() -> str:
    work = dist.all_reduce(torch.ones(1), async_op=True)
    state = str(entries()[-1]["state"])
    assert work is not None
    _kept.append(work)
    return state


_kept: list[Any] = []


def wait_for_it() -> str:
    _kept.pop().wait()
    return str(entries()[-1]["state"])


@since(15)
def test_the_flight_recorder_shows_what_has_completed(transport: str) -> None:
    with fresh(3, transport) as ranks:
        ranks.initialise()
        ranks.run(collectives_of_every_form)


@since(15)
def test_the_flight_recorder_shows_what_hangs(transport: str) -> None:
    with fresh(2, transport) as ranks:
        ranks.initialise()
        ranks.run(total)
        ranks.begin(0, one_alone)
        (hanging,) = ranks.gather([0], DEADLINE_S)
        assert hanging.value == "scheduled", hanging
        ranks.begin(1, one_alone)
        ranks.gather([1], DEADLINE_S)
        assert ranks.run(wait_for_it) == ["completed"] * 2


_aborted = threading.Event()


def register_abort_hooks() -> None:
    group = dist.group.WORLD
    assert group is not None
    assert group.supports_abort_hooks
    group.register_abort_hook(7, _aborted.set)
    group.register_abort_hook(8, _never)
    group.unregister_abort_hook(8)


def _never() -> None:
    raise AssertionError("it has been removed")


def fail_and_hear() -> bool:
    with contextlib.suppress(taco_torch.PeerLostError):
        total()
    return _aborted.wait(DEADLINE_S)


def hear_nothing() -> bool:
    dist.destroy_process_group()
    return _aborted.is_set()


@since(15)
def test_abort_hooks_run_when_a_rank_is_lost(transport: str) -> None:
    with fresh(3, transport, TORCH_FR_DUMP_ON_TIMEOUT="0") as ranks:
        ranks.initialise()
        ranks.run(register_abort_hooks)
        ranks.run(total)
        ranks.kill(2)
        for rank in (0, 1):
            ranks.begin(rank, fail_and_hear)
        assert [outcome.value for outcome in ranks.gather([0, 1])] == [True, True]


@since(15)
def test_abort_hooks_do_not_run_when_a_group_is_destroyed(transport: str) -> None:
    with fresh(2, transport) as ranks:
        ranks.initialise()
        ranks.run(register_abort_hooks)
        ranks.run(total)
        assert ranks.run(hear_nothing) == [False, False]
