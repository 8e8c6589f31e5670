"""Programs that fork where a group lives or has lived (launchers in notebooks, servers, pools): the
children make groups of their own."""

from __future__ import annotations

import multiprocessing
import os
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks, connect, initialise

pytestmark = taco_only

PARENTS, CHILDREN = 2, 2  # of each parent
WORLD = PARENTS * CHILDREN
# Within that a child gets an answer in any case: of its group, or an error.
DEADLINE_S = 60.0


def be_a_child(rank: int, port: int, pending: Any) -> float:
    if pending is not None:
        for attempt in (pending.wait, partial(dist.all_reduce, torch.ones(2))):
            with pytest.raises(RuntimeError, match="was forked from one that uses taco_torch"):
                attempt()
        with pytest.raises(ValueError, match="twice"):
            initialise(rank, WORLD, port)
        dist.destroy_process_group()
    dist.init_process_group(
        "taco",
        store=dist.PrefixStore("children", connect(port, WORLD)),
        rank=rank,
        world_size=WORLD,
    )
    summed = torch.full((100_000,), float(rank))
    dist.all_reduce(summed)
    dist.destroy_process_group()
    return summed[7].item()


def answer(pipe: Any, rank: int, port: int, pending: Any) -> None:
    try:
        pipe.send(be_a_child(rank, port, pending))
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {error}")
    os._exit(0)


def fork_children(rank: int, port: int, keeps: bool, used: bool) -> list[Any]:
    initialise(rank, PARENTS, port)
    if used:
        dist.all_reduce(torch.ones(100_000))
    pending = None
    if keeps:
        pending = dist.irecv(torch.zeros(4), 1 - rank)
    else:
        dist.destroy_process_group()
    context = multiprocessing.get_context("fork")
    pipes = []
    for child in range(CHILDREN):
        ours, theirs = context.Pipe(duplex=False)
        number = rank * CHILDREN + child
        context.Process(target=answer, args=(theirs, number, port, pending), daemon=True).start()
        pipes.append(ours)
    answers = [pipe.recv() if pipe.poll(DEADLINE_S) else "no answer" for pipe in pipes]
    if pending is not None:
        dist.send(torch.ones(4), 1 - rank)
        pending.wait()
        after = torch.ones(100_000)
        dist.all_reduce(after)
        assert after[7].item() == PARENTS
        dist.destroy_process_group()
    return answers


@pytest.mark.parametrize("used", [False, True], ids=["idle", "used"])
@pytest.mark.parametrize("keeps", [False, True], ids=["group_destroyed", "group_kept"])
def test_children_of_ranks_make_a_group_of_their_own(
    transport: str, keeps: bool, used: bool
) -> None:
    ranks = Ranks(PARENTS, {"TACO_TRANSPORT": transport, "TACO_LOG": "warning"})
    try:
        answers = ranks.run_each(
            fork_children, [(rank, ranks.port, keeps, used) for rank in range(PARENTS)]
        )
        assert answers == [[float(sum(range(WORLD)))] * CHILDREN] * PARENTS
    finally:
        ranks.close()
