"""Fixtures: groups of real processes over each transport, kept for the whole session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from marks import whole
from spawn_ranks import Pool, Ranks

# TACO_TEST_BACKEND=gloo checks the tests themselves against another implementation.
BACKEND = os.environ.get("TACO_TEST_BACKEND", "taco")
TRANSPORTS = ["shm", "udp"] if BACKEND == "taco" else ["auto"]


@pytest.fixture(scope="session")
def pools() -> Iterator[Pool]:
    """Initialised groups by (world, transport)."""
    with Pool(
        lambda world, transport: Ranks(world, {"TACO_TRANSPORT": transport, "TACO_LOG": "warning"}),
        lambda ranks, *_: ranks.initialise(BACKEND),
    ) as made:
        yield made


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ranks(pools: Pool, transport: str) -> Ranks:
    """Four ranks in an initialised default group."""
    return pools.get(4, transport)


@pytest.fixture
def three(pools: Pool, transport: str) -> Ranks:
    """Three: not a power of two."""
    return pools.get(3, transport)


@pytest.fixture(scope="module")
def jobs() -> Iterator[Pool]:
    """Groups over gloo and taco, for caches on several ranks."""
    from zerocache_ranks import pool

    with pool() as made:
        yield made


@pytest.fixture(params=["gloo-2", whole("gloo-3"), "taco-2", "taco-3"])
def job(request: pytest.FixtureRequest, jobs: Pool) -> Ranks:
    backend, world = str(request.param).split("-")
    return jobs.get(backend, int(world))


@pytest.fixture
def two(jobs: Pool) -> Ranks:
    return jobs.get("taco", 2)


@pytest.fixture(scope="session")
def horovod_jobs() -> Iterator[Pool]:
    """Jobs of taco_torch.horovod, by the number of ranks."""
    from horovod_ranks import pool

    with pool() as made:
        yield made


@pytest.fixture
def hvd2(horovod_jobs: Pool) -> Ranks:
    return horovod_jobs.get(2)


@pytest.fixture
def hvd3(horovod_jobs: Pool) -> Ranks:
    return horovod_jobs.get(3)


taco_only = pytest.mark.skipif(BACKEND != "taco", reason="behaviour that only taco promises")


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Gives torch, and so a cache's optimizer, two threads; tests have one each."""
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(usual)


@pytest.fixture(params=["range", "cache"])
def hold(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int, int], Any]:
    """Puts a model where there are few frames of 64 KiB, or few pages of 4 KiB."""
    from parameter_range import InCache, InRange

    def holder(frames: int, pages: int) -> Callable[[Any], Any]:
        if request.param == "range":
            return lambda model: InRange(model, frames)
        return lambda model: InCache(model, pages, tmp_path)

    return holder
