"""Fixtures: groups of real processes over each transport, kept for the whole session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from marks import whole
from spawn_ranks import Ranks

if TYPE_CHECKING:
    from horovod_ranks import HorovodJobs
    from zerocache_ranks import Jobs

# TACO_TEST_BACKEND=gloo checks the tests themselves against another implementation.
BACKEND = os.environ.get("TACO_TEST_BACKEND", "taco")
TRANSPORTS = ["shm", "udp"] if BACKEND == "taco" else ["auto"]


class Pools:
    """Initialised groups by (world, transport); a broken one is replaced."""

    def __init__(self) -> None:
        self._pools: dict[tuple[int, str], Ranks] = {}

    def get(self, world: int, transport: str) -> Ranks:
        key = (world, transport)
        pool = self._pools.get(key)
        if pool is not None and pool.broken:
            pool.close(1)
            pool = None
        if pool is None:
            pool = Ranks(world, {"TACO_TRANSPORT": transport, "TACO_LOG": "warning"})
            self._pools[key] = pool
            pool.initialise(BACKEND)
        return pool

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close(10)


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    made = Pools()
    yield made
    made.close()


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ranks(pools: Pools, transport: str) -> Ranks:
    """Four ranks in an initialised default group."""
    return pools.get(4, transport)


@pytest.fixture
def three(pools: Pools, transport: str) -> Ranks:
    """Three: not a power of two."""
    return pools.get(3, transport)


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    """Groups over gloo and taco, for caches on several ranks."""
    from zerocache_ranks import Jobs

    made = Jobs()
    yield made
    made.close()


@pytest.fixture(params=["gloo-2", whole("gloo-3"), "taco-2", "taco-3"])
def job(request: pytest.FixtureRequest, jobs: Jobs) -> Ranks:
    backend, world = str(request.param).split("-")
    return jobs.get(backend, int(world))


@pytest.fixture
def two(jobs: Jobs) -> Ranks:
    return jobs.get("taco", 2)


@pytest.fixture(scope="session")
def horovod_jobs() -> Iterator[HorovodJobs]:
    """Jobs of taco_torch.horovod, by the number of ranks."""
    from horovod_ranks import HorovodJobs

    made = HorovodJobs()
    yield made
    made.close()


@pytest.fixture
def hvd2(horovod_jobs: HorovodJobs) -> Ranks:
    return horovod_jobs.get(2)


@pytest.fixture
def hvd3(horovod_jobs: HorovodJobs) -> Ranks:
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
