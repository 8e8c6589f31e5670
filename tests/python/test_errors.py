"""Mistakes are named, with the right type, on every rank that can know of them."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks

pytestmark = taco_only


@pytest.fixture
def fresh(transport: str) -> Ranks:
    """Three ranks of their own: these tests break their group."""
    with Ranks(3, {"TACO_TRANSPORT": transport, "TACO_LOG": "off"}) as ranks:
        yield ranks.initialise(timeout_s=20)


def unsupported_pairs() -> None:
    with pytest.raises(TypeError, match=r"supported: float32.*complex128"):
        dist.all_reduce(torch.ones(2, dtype=torch.uint16))
    with pytest.raises(TypeError, match="BAND"):
        dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND)
    with pytest.raises((TypeError, ValueError)):
        dist.group.WORLD.allreduce(torch.ones(2, dtype=torch.complex64), dist.ReduceOp.MAX)


def wrong_sizes() -> None:
    world = dist.get_world_size()
    with pytest.raises((ValueError, RuntimeError), match=r"element|size"):
        dist.all_gather_into_tensor(torch.zeros(world * 3 + 1), torch.zeros(3))
    with pytest.raises((ValueError, RuntimeError), match=r"element|size"):
        dist.reduce_scatter_tensor(torch.zeros(3), torch.zeros(world * 3 + 1))
    with pytest.raises(ValueError, match="add up"):
        dist.all_to_all_single(torch.zeros(4), torch.zeros(4), [1] * world, [2] * world)
    with pytest.raises(ValueError, match="divide"):
        dist.all_to_all_single(torch.zeros(world + 1), torch.zeros(world + 1))
    with pytest.raises(ValueError, match="expanded"):
        dist.all_reduce(torch.zeros(1).expand(5))


def group_still_works() -> None:
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor[0].item() == dist.get_world_size()


def short_receive() -> None:
    if dist.get_rank() == 0:
        dist.send(torch.ones(100), 1)
    elif dist.get_rank() == 1:
        dist.recv(torch.zeros(10), 0)


def monitored(timeout_s: float) -> None:
    import taco_torch

    if dist.get_rank() == 0:
        taco_torch.monitored_barrier(timeout=timedelta(seconds=timeout_s), wait_all_ranks=True)


def one_call_in_a_hurry() -> float:
    """The group has 20 s, this call half a second."""
    import taco_torch

    if dist.get_rank() == 1:  # does not come
        return 0.0
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=0.5)
    begin = time.monotonic()
    with pytest.raises(taco_torch.CollectiveTimeoutError, match="Timed out waiting 500ms"):
        dist.group.WORLD.allreduce([torch.ones(5)], options).wait()
    return time.monotonic() - begin


def abort_from_a_thread() -> float:
    import threading

    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    timer = threading.Timer(0.5, backend.abort)
    begin = time.monotonic()
    if dist.get_rank() == 0:
        timer.start()
    if dist.get_rank() != 1:  # rank 1 does not come, so nobody can finish
        with pytest.raises(RuntimeError, match="abort"):
            dist.all_reduce(torch.ones(5))
    return time.monotonic() - begin


def test_unsupported_dtypes_and_reductions_name_what_is_supported(ranks: Ranks) -> None:
    ranks.run(unsupported_pairs)
    ranks.run(group_still_works)


def test_wrong_sizes_are_refused_before_anything_is_sent(ranks: Ranks) -> None:
    ranks.run(wrong_sizes)
    ranks.run(group_still_works)


def test_a_receive_buffer_that_is_too_short(fresh: Ranks) -> None:
    outcomes = fresh.outcomes(short_receive, deadline_s=30)
    assert outcomes[1].error_type in ("MismatchError", "ValueError"), outcomes[1]
    assert outcomes[0].error_type in ("", "MismatchError", "ValueError"), outcomes[0]


def test_monitored_barrier_names_all_missing_ranks(fresh: Ranks) -> None:
    outcome = fresh.outcomes(monitored, 1.0, deadline_s=30)[0]
    assert outcome.error_type == "CollectiveTimeoutError", outcome
    assert "Ranks 1, 2 failed to pass monitoredBarrier" in outcome.error


def test_abort_from_another_thread_ends_a_blocked_operation(fresh: Ranks) -> None:
    assert max(fresh.run(abort_from_a_thread, deadline_s=30)) < 10


def test_a_calls_own_timeout_comes_before_the_groups(fresh: Ranks) -> None:
    assert max(fresh.run(one_call_in_a_hurry, deadline_s=30)) < 10
