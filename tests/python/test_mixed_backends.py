"""Groups with taco for the host's memory and another backend for a GPU's. No GPU is needed: gloo
plays the other backend, which torch treats alike. docs/cuda.md."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import BACKEND
from spawn_ranks import Outcome, Ranks, initialise

import taco_torch
from taco_torch.groups import taco_backend

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
pytestmark = pytest.mark.skipif(BACKEND != "taco", reason="behaviour that only taco promises")
since_215 = pytest.mark.skipif(TORCH < (2, 15), reason="torch 2.15 brought it")
MIXED = "cpu:taco,cuda:nccl"


def join(rank: int, world: int, port: int, backend: str, **more: Any) -> None:
    """Where the group is to have NCCL, gloo is created under its name."""
    dist.Backend._ensure_backend_registered("gloo")
    create_gloo = dist.Backend._plugins["GLOO"].creator_fn
    dist.Backend._plugins["NCCL"] = dist.Backend._BackendPlugin(create_gloo, True)
    initialise(rank, world, port, backend, timeout_s=30.0, **more)


def join_with_foreign_options(rank: int, world: int, port: int, backend: str) -> None:
    start = join if backend == MIXED else initialise
    start(rank, world, port, backend, pg_options=dist.ProcessGroupGloo._Options())


def names(group: dist.ProcessGroup | None = None) -> dict[str, str]:
    group = group or dist.group.WORLD
    assert group is not None
    return {device.type: group._get_backend(device).name() for device in group._device_types}


def total(group: dist.ProcessGroup | None = None) -> float:
    tensor = torch.ones(1000)
    dist.all_reduce(tensor, group=group)
    return float(tensor[0])


def use_the_group() -> None:
    calls = taco_torch.stats().algorithms
    assert names() == {"cpu": "taco", "cuda": "gloo"}
    assert total() == 3
    assert taco_torch.stats().algorithms != calls, "it was taco that ran it"
    received = torch.zeros(4)
    rank = dist.get_rank()
    work = dist.isend(torch.full((4,), float(rank)), (rank + 1) % 3)
    dist.recv(received, (rank - 1) % 3)
    assert work is not None
    work.wait()
    assert received[0] == (rank - 1) % 3


def split_it() -> None:
    child: Any = dist.split_group(split_ranks=[[0, 2], [1]])
    size = 1 if dist.get_rank() == 1 else 2
    assert names(child) == {"cpu": "taco", "cuda": "gloo"}
    assert total(child) == size
    assert taco_backend(child).group_id != taco_backend().group_id


def make_groups_of_it() -> None:
    pair: Any = dist.new_group(
        [0, 2], backend="taco", pg_options=taco_torch.Options(algorithm="ring")
    )
    if dist.get_rank() != 1:
        assert names(pair)["cpu"] == "taco"
        assert total(pair) == 2
    both: Any = dist.new_group([0, 1, 2])
    assert names(both) == {"cpu": "taco", "cuda": "gloo"}
    assert total(both) == 3


@since_215
def test_a_group_has_taco_for_the_host_and_another_for_the_gpu(transport: str) -> None:
    with Ranks(3, {"TACO_TRANSPORT": transport, "TACO_LOG": "error"}) as ranks:
        ranks.run_each(join, [(rank, 3, ranks.port, MIXED) for rank in range(3)])
        ranks.run(use_the_group)
        ranks.run(split_it)
        ranks.run(make_groups_of_it)


@since_215
def test_options_of_the_other_backend_are_left_to_it() -> None:
    with Ranks(3, {"TACO_LOG": "error"}) as ranks:
        ranks.run_each(
            join_with_foreign_options, [(rank, 3, ranks.port, MIXED) for rank in range(3)]
        )
        ranks.run(use_the_group)


def test_a_group_of_taco_alone_refuses_the_options_of_another_backend() -> None:
    with Ranks(1, {"TACO_LOG": "error"}) as ranks:
        (outcome,) = ranks.outcomes(join_with_foreign_options, 0, 1, ranks.port, "taco")
        assert outcome.error_type == "TypeError", outcome
        assert "taco_torch.Options" in outcome.error


def ask_for_a_handle() -> str:
    return dist._get_reconfigure_handle()


def supports() -> bool:
    return dist._supports_reconfigure()


def refused_as_mixed(outcome: Outcome) -> None:
    assert outcome.error_type == "RuntimeError", outcome
    assert "multiple backends" in outcome.error


def join_to_be_reconfigured(rank: int, world: int, port: int) -> None:
    join(rank, world, port, MIXED, enable_reconfigure=True)


@since_215
def test_torch_reconfigures_no_group_with_two_backends() -> None:
    with Ranks(2, {"TACO_LOG": "error"}) as ranks:
        ranks.run_each(join_to_be_reconfigured, [(rank, 2, ranks.port) for rank in range(2)])
        for function in (supports, ask_for_a_handle):
            for outcome in ranks.outcomes(function):
                refused_as_mixed(outcome)


def join_with_the_real_nccl(rank: int, world: int, port: int) -> None:
    initialise(rank, world, port, MIXED, timeout_s=30.0)


@since_215
@pytest.mark.skipif(
    not dist.is_nccl_available() or torch.cuda.is_available(),
    reason="needs a build of torch with NCCL, and no GPU",
)
def test_without_a_gpu_nccl_says_so_and_the_process_can_go_on() -> None:
    with Ranks(2, {"TACO_LOG": "error"}) as ranks:
        arguments = [(rank, 2, ranks.port) for rank in range(2)]
        for rank in range(2):
            ranks.begin(rank, join_with_the_real_nccl, *arguments[rank])
        for outcome in ranks.gather([0, 1]):
            assert outcome.error_type == "RuntimeError", outcome
            assert "CUDA device" in outcome.error
        ranks.initialise()
        assert ranks.run(total) == [2.0, 2.0]
