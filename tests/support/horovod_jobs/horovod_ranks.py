"""Ranks of a Horovod-compatible job for tests: processes that have called ``hvd.init()``."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from spawn_ranks import Pool, Ranks

import taco_torch.horovod as hvd


def enter(rank: int, world: int, port: int) -> None:
    """Sets what a launcher would set, with the test's own store as an agent's, and joins."""
    os.environ.update(
        {
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": str(world),
            "HOROVOD_LOCAL_RANK": str(rank),
            "HOROVOD_LOCAL_SIZE": str(world),
            "HOROVOD_CROSS_RANK": "0",
            "HOROVOD_CROSS_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
    )
    hvd.init()


def joined(ranks: Ranks) -> Ranks:
    """The ranks, after all of them have joined."""
    ranks.run_each(enter, [(rank, ranks.world, ranks.port) for rank in range(ranks.world)], 90.0)
    return ranks


def pool() -> Pool:
    """Jobs by their number of ranks."""
    return Pool(lambda world: Ranks(world, {"TACO_LOG": "warning"}), lambda ranks, _: joined(ranks))


def raises(kind: type[BaseException], call: Callable[[], object], *texts: str) -> str:
    """The text of the error that the call must raise, in which all of ``texts`` stand."""
    with pytest.raises(kind) as caught:
        call()
    for text in texts:
        assert text in str(caught.value), (text, str(caught.value))
    return str(caught.value)


def still_works() -> None:
    """The job adds one of every rank."""
    total = hvd.allreduce(torch.ones(3), op=hvd.Sum)
    assert total.tolist() == [float(hvd.size())] * 3
