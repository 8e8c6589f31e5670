"""After a death the job starts again: with a replacement, with the survivors only, with ranks
permuted; under a store that outlives every group and knows the dead rank's keys."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks, initialise

pytestmark = taco_only

WORLD = 4
VICTIM = 2


@pytest.fixture
def fresh(transport: str) -> Ranks:
    with Ranks(WORLD, {"TACO_TRANSPORT": transport, "TACO_LOG": "off"}) as ranks:
        yield ranks.initialise()


def all_reduce_forever(count: int) -> None:
    tensor = torch.ones(count)
    while True:
        dist.all_reduce(tensor.fill_(1))


def start_again(rank: int, world: int, port: int) -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    initialise(rank, world, port)
    tensor = torch.ones(100)
    dist.all_reduce(tensor)
    assert tensor[0].item() == world


def assert_survivors_name_the_victim(ranks: Ranks) -> None:
    for outcome in ranks.gather([rank for rank in range(WORLD) if rank != VICTIM], 20):
        assert outcome.error_type == "PeerLostError", outcome
        assert outcome.fields is not None
        assert outcome.fields["rank"] == VICTIM
        assert f"rank {VICTIM}" in outcome.error


def test_the_survivors_go_on_and_a_replacement_joins(fresh: Ranks) -> None:
    for rank in range(WORLD):
        fresh.begin(rank, all_reduce_forever, 1000)
    time.sleep(0.3)
    fresh.kill(VICTIM)
    assert_survivors_name_the_victim(fresh)
    survivors = [rank for rank in range(WORLD) if rank != VICTIM]
    for place, rank in enumerate(survivors):
        fresh.begin(rank, start_again, place, len(survivors), fresh.port)
    for outcome in fresh.gather(survivors, 30):
        assert outcome.ok, outcome
    fresh.restart(VICTIM)
    for rank in range(WORLD):
        fresh.begin(rank, start_again, (rank + 1) % WORLD, WORLD, fresh.port)
    for outcome in fresh.gather(range(WORLD), 30):
        assert outcome.ok, outcome
