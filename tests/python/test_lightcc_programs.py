"""Whatever a program does with its gradients, none of them is lost and none is doubled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import taco_only
from lightcc_models import OWN_HOSTS
from lightcc_programs import KINDS, grown, run_programs
from spawn_ranks import Ranks

pytestmark = taco_only

FEW, MANY = range(17), range(1000, 1340)


@pytest.fixture(scope="module")
def pair() -> Iterator[Ranks]:
    with Ranks(2, OWN_HOSTS) as made:
        yield made.initialise()


def draw(ranks: Ranks, kind: str, seeds: range) -> None:
    at_once = 20
    for first in range(seeds.start, seeds.stop, at_once):
        some = range(first, min(first + at_once, seeds.stop))
        print(f"programs {kind} {some.start} to {some.stop - 1}")
        for wrong in ranks.run(run_programs, kind, some):
            assert not wrong, "\n\n".join(wrong[:3])


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_programs_lose_nothing(pair: Ranks, kind: str) -> None:
    draw(pair, kind, FEW)


@pytest.mark.whole
@pytest.mark.parametrize("kind", KINDS)
def test_many_drawn_programs_lose_nothing(pair: Ranks, kind: str) -> None:
    draw(pair, kind, MANY)


@pytest.mark.whole
@pytest.mark.parametrize("kind", KINDS)
def test_memory_after_500_steps_is_as_after_50(pair: Ranks, kind: str) -> None:
    for gradients in pair.run(grown, kind, 500, 200_000):
        assert gradients < 8
