"""Nothing grows: descriptors, threads, mappings, memory."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import BACKEND, taco_only
from footprint import footprint
from spawn_ranks import Ranks, initialise

pytestmark = taco_only


def operations(count: int) -> dict[str, int]:
    tensor = torch.ones(100)
    large = torch.ones(50_000)
    for i in range(count):
        dist.all_reduce(tensor)
        if i % 100 == 0:
            dist.all_reduce(large)
            works = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(20)]
            for work in works:
                work.get_future().wait()
    return footprint()


def again(rank: int, world: int, port: int, times: int) -> dict[str, int]:
    for _ in range(times):
        dist.destroy_process_group()
        initialise(rank, world, port, BACKEND)
        tensor = torch.ones(10_000)
        dist.all_reduce(tensor)
    return footprint()


def assert_flat(before: dict[str, int], after: dict[str, int]) -> None:
    assert after["threads"] <= before["threads"]
    assert after["descriptors"] <= before["descriptors"] + 1
    assert after["mappings"] <= before["mappings"] + 20
    assert after["resident"] <= before["resident"] + (8 << 20)


def test_operations_leave_nothing_behind(transport: str) -> None:
    with Ranks(2, {"TACO_TRANSPORT": transport, "TACO_LOG": "warning"}) as ranks:
        ranks.initialise()
        before = ranks.run(operations, 1000, deadline_s=120)
        after = ranks.run(operations, 10_000, deadline_s=240)
        for one, other in zip(before, after, strict=True):
            assert_flat(one, other)


@pytest.mark.whole(instead="test_every_thread_has_a_name_and_ends_with_the_last_group")
def test_fifty_new_beginnings_leave_nothing_behind(transport: str) -> None:
    with Ranks(2, {"TACO_TRANSPORT": transport, "TACO_LOG": "warning"}) as ranks:
        ranks.initialise()
        arguments = [(rank, 2, ranks.port, 5) for rank in range(2)]
        before = ranks.run_each(again, arguments, 120)
        after = ranks.run_each(again, [(rank, 2, ranks.port, 50) for rank in range(2)], 240)
        for one, other in zip(before, after, strict=True):
            assert_flat(one, other)


def threads_after_leaving() -> tuple[list[str], list[str]]:
    """Names of threads that work for taco, in use and after the last group has gone."""

    def nested(future: torch.futures.Future) -> None:
        dist.all_reduce(future.value()[0])

    def names() -> list[str]:
        texts = set()
        for path in Path("/proc/self/task").glob("*/comm"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ends just now
                texts.add(path.read_text().strip())
        return sorted(text for text in texts if text.startswith("taco"))

    futures = [dist.all_reduce(torch.ones(9), async_op=True).get_future() for _ in range(20)]
    for future in [future.then(nested) for future in futures]:
        future.wait()
    during = names()
    dist.destroy_process_group()
    # A thread that has been joined stays in the kernel's list for a moment longer.
    deadline = time.monotonic() + 5
    while (after := names()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return during, after


def test_every_thread_has_a_name_and_ends_with_the_last_group(transport: str) -> None:
    with Ranks(2, {"TACO_TRANSPORT": transport, "TACO_LOG": "warning"}) as ranks:
        for during, after in ranks.initialise().run(threads_after_leaving):
            assert {"taco-callbacks", "taco-dump"} <= set(during), during
            assert len(during) >= 3  # and an engine
            assert after == []
