"""Whatever a program does with its gradients, none of them is lost and none is doubled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import taco_only
from lightcc_models import OWN_HOSTS
from lightcc_programs import KINDS_OF_FOUR, KINDS_OF_TWO, grown, run_programs
from lightcc_sharded import ranks_of_two_hosts
from spawn_ranks import Ranks

pytestmark = taco_only

KINDS = (*KINDS_OF_TWO, *KINDS_OF_FOUR)
FEW = {kind: range(5 if kind == "hsdp" else 14) for kind in KINDS}
MANY = {kind: range(1000, 1060 if kind == "hsdp" else 1150) for kind in KINDS}


@pytest.fixture(scope="module")
def pair() -> Iterator[Ranks]:
    with Ranks(2, OWN_HOSTS) as made:
        yield made.initialise()


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    with ranks_of_two_hosts() as made:
        yield made


@pytest.fixture
def ranks(request: pytest.FixtureRequest, kind: str) -> Ranks:
    made: Ranks = request.getfixturevalue("pair" if kind in KINDS_OF_TWO else "four")
    return made


def draw(ranks: Ranks, kind: str, seeds: range) -> None:
    at_once = 20
    for first in range(seeds.start, seeds.stop, at_once):
        some = range(first, min(first + at_once, seeds.stop))
        print(f"programs {kind} {some.start} to {some.stop - 1}")
        for wrong in ranks.run(run_programs, kind, some):
            assert not wrong, "\n\n".join(wrong[:3])


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_programs_lose_nothing(ranks: Ranks, kind: str) -> None:
    draw(ranks, kind, FEW[kind])


@pytest.mark.whole(instead="test_drawn_programs_lose_nothing")
@pytest.mark.parametrize("kind", KINDS)
def test_many_drawn_programs_lose_nothing(ranks: Ranks, kind: str) -> None:
    draw(ranks, kind, MANY[kind])


@pytest.mark.whole(because="growth of a few bytes a step shows after hundreds of steps")
@pytest.mark.parametrize("kind", KINDS)
def test_memory_after_500_steps_is_as_after_50(ranks: Ranks, kind: str) -> None:
    seed = 0 if kind == "hsdp" else 1  # each compresses, and hsdp's shards are in two
    assert max(ranks.run(grown, kind, seed)) < 16 << 20
