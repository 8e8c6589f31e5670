"""Compressed gradients of modules of fully_shard: checkpoints, how they are switched on and by
whom, and mistakes about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from lightcc_models import ELEMENTS, Bag, chosen, close, dense_average, owed, same
from lightcc_sharded import (
    WORLD,
    average_of_whole_numbers,
    backward,
    bag,
    coded_bytes,
    line,
    passes,
    ranks_of_two_hosts,
    replicas_only,
    sharded_bag,
    sharded_bags,
    square,
    top_k,
    whole_numbers,
)
from spawn_ranks import Ranks
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import taco_torch

pytestmark = taco_only

lightcc = taco_torch.lightcc


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with ranks_of_two_hosts() as made:
        yield made


# -- checkpoints


def goes_on_exactly() -> None:
    straight = top_k(sharded_bags(square()))
    list(passes(straight, 4))
    state = lightcc.state_dict(straight)
    expected = list(passes(straight, 4, first=4))
    resumed = top_k(sharded_bags(square()))
    lightcc.load_state_dict(state, resumed)
    for gradients, wanted in zip(passes(resumed, 4, first=4), expected, strict=True):
        same(gradients, wanted)


def test_a_resumed_job_goes_on_bit_by_bit(ranks: Ranks) -> None:
    ranks.run(goes_on_exactly)


def resumes_elsewhere(folder: str) -> None:
    """Two replicas of two shards save; four replicas, and a model of DDP, go on."""
    import torch.distributed.checkpoint as dcp

    model = top_k(bag())
    for step in range(5):
        backward(model, whole_numbers(step, dist.get_rank()))
    before = owed(model)
    assert float(before.abs().sum()) > 1000
    dcp.save({"lightcc": lightcc.state_dict(model)}, checkpoint_id=folder)
    fresh = top_k(replicas_only())
    state = {"lightcc": lightcc.state_dict(fresh)}
    dcp.load(state, checkpoint_id=folder)
    lightcc.load_state_dict(state["lightcc"], fresh)
    same(owed(fresh), before)
    delivered = backward(fresh, whole_numbers(5, dist.get_rank()))
    same(delivered + owed(fresh), before + average_of_whole_numbers(5))
    replicated = DistributedDataParallel(Bag())
    lightcc.compress(replicated, "topk", threshold=0)
    whole = {"lightcc": lightcc.state_dict(replicated)}
    dcp.load(whole, checkpoint_id=folder)
    lightcc.load_state_dict(whole["lightcc"], replicated)
    same(owed(replicated), before)
    again = top_k(bag())
    lightcc.load_state_dict(lightcc.state_dict(replicated), again)
    same(owed(again), before)


def test_other_shards_and_other_worlds_lose_nothing(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(resumes_elsewhere, str(tmp_path))


def loads_what_it_cannot_send() -> None:
    model = top_k(bag())
    list(passes(model, 2))
    state = lightcc.state_dict(model)
    shards_alone = sharded_bag(line())
    lightcc.compress(shards_alone, "float16")
    assert lightcc.state_dict(shards_alone)["residuals"] == {}
    with pytest.raises(ValueError, match=r"weights\.0 and .* without replicas cannot send later"):
        lightcc.load_state_dict(state, shards_alone)
    lightcc.load_state_dict(lightcc.state_dict(shards_alone), model)
    same(owed(model), torch.zeros(ELEMENTS))
    with pytest.raises(ValueError, match="is sharded otherwise than the parameter"):
        lightcc.load_state_dict(state, top_k(replicas_only()))
    wrong = {**state, "residuals": {**state["residuals"], "weights.1": torch.zeros(3)}}
    with pytest.raises(ValueError, match=r"weights\.1 has shape \(50,\) in the model, \(3,\)"):
        lightcc.load_state_dict(wrong, model)


def test_states_that_do_not_fit_are_refused(ranks: Ranks) -> None:
    ranks.run(loads_what_it_cannot_send)


# -- switching on


def is_on(mesh: Callable[[], DeviceMesh]) -> bool:
    before = coded_bytes()
    for step, gradients in enumerate(passes(sharded_bags(mesh()), 2)):
        difference = float((gradients - dense_average(step, WORLD)).abs().max())
        on = coded_bytes() > before
        assert on == (difference > 1e-4)
    return on


class Own:
    """A program's own reduce_scatter."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        return dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group, async_op)


def ways_of_its_own() -> Iterator[tuple[nn.Module, str]]:
    model = sharded_bag(line())
    model.set_custom_reduce_scatter(Own())
    yield model, r"custom reduce_scatter \(Own\)"
    model = sharded_bag(line())
    model.set_all_reduce_hook(lambda _: None)
    yield model, r"an all-reduce hook \(.*lambda"


def gives_way() -> None:
    before = coded_bytes()
    for model, _ in ways_of_its_own():
        close(backward(model, chosen(0, dist.get_rank())), dense_average(0, WORLD))
    assert coded_bytes() == before


def has_said(text: str) -> bool:
    from taco_torch.lightcc import once

    return any(text in said for said in once._said)


def named_by_the_program() -> None:
    model = sharded_bag(line())
    lightcc.compress(model, "none")
    close(backward(model, chosen(0, dist.get_rank())), dense_average(0, WORLD))


@pytest.mark.parametrize(
    ("environment", "shards", "replicas"),
    [
        ({"LIGHT_WIRE_DTYPE": "float16"}, True, True),
        ({"LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_THRESHOLD": "0"}, False, True),
        ({"LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_WIRE_DTYPE": "bfloat16"}, True, True),
    ],
)
def test_the_environment_switches_it_on_for_every_model(
    environment: dict[str, str], shards: bool, replicas: bool
) -> None:
    with ranks_of_two_hosts(environment) as ranks:
        assert ranks.run(is_on, line) == [shards] * WORLD
        is_top_k = "LIGHT_TOPK_ALLREDUCE" in environment
        assert ranks.run(has_said, "are not sent by TopK") == [is_top_k] * WORLD
        assert ranks.run(is_on, square) == [replicas] * WORLD
        ranks.run(gives_way)
        assert all(ranks.run(has_said, "are not compressed: it has a custom reduce_scatter (Own)"))
        assert all(ranks.run(has_said, "are not compressed: it has an all-reduce hook"))
        ranks.run(named_by_the_program)


def without_it() -> None:
    assert not is_on(line)


def test_nothing_is_compressed_unless_somebody_asks_for_it(ranks: Ranks) -> None:
    ranks.run(without_it)


# -- mistakes


def one_replica() -> DeviceMesh:
    """On both hosts."""
    return init_device_mesh("cpu", (1, WORLD), mesh_dim_names=("replicate", "shard"))


def one_replica_inside_a_host() -> DeviceMesh:
    names = ("hosts", "replicate", "shard")
    mesh = DeviceMesh("cpu", [[[0, 1]], [[2, 3]]], mesh_dim_names=names)
    return mesh["replicate", "shard"]


def mistakes() -> None:
    model = sharded_bags(line())
    for mesh in (line, one_replica):
        with pytest.raises(ValueError, match="Name float16 or bfloat16"):
            lightcc.compress(sharded_bags(mesh()), "topk")
    lightcc.compress(sharded_bag(one_replica_inside_a_host()), "topk")  # nothing leaves a host
    lightcc.compress(sharded_bag(one_replica()), "float16")
    empty = nn.Tanh()
    fully_shard(empty, mesh=line())
    with pytest.raises(ValueError, match="FSDPTanh has no parameters that fully_shard has sharded"):
        lightcc.compress(empty, "float16")
    parts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    fully_shard(list(parts), mesh=square())
    with pytest.raises(RuntimeError, match=r"it is sharded together with .* outside of it"):
        lightcc.compress(parts[0], "topk")
    lightcc.compress(parts, "topk")
    assert len(lightcc.state_dict(parts)["residuals"]) == 4
    with pytest.raises(ValueError, match="ratio is 2"):
        lightcc.compress(sharded_bag(square()), "topk", ratio=2.0)
    with pytest.raises(TypeError, match="or modules of fully_shard, got Linear"):
        lightcc.compress(nn.Linear(1, 1), "float16")
    with pytest.raises(ValueError, match="not compressed"):
        lightcc.flush(model)
    lightcc.compress(model, "float16")
    with pytest.raises(RuntimeError, match="a model that it is part of"):
        lightcc.compress(model.first, "float16")
    for other, text in ways_of_its_own():
        with pytest.raises(RuntimeError, match=text):
            lightcc.compress(other, "float16")
    gloo = DeviceMesh.from_group(dist.new_group(backend="gloo"), "cpu")
    with pytest.raises(TypeError, match="is not taco"):
        lightcc.compress(sharded_bag(gloo), "float16")


def test_mistakes_are_named(ranks: Ranks) -> None:
    ranks.run(mistakes)


def another_torch() -> None:
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group

    model = sharded_bag(square())
    del _fsdp_param_group.foreach_reduce
    with pytest.raises(RuntimeError, match=r"has no .*_fsdp_param_group\.foreach_reduce"):
        lightcc.compress(model, "topk")


def test_a_torch_without_what_is_needed_is_named() -> None:
    with ranks_of_two_hosts() as ranks:
        ranks.run(another_torch)


def unfreezes() -> None:
    """A parameter that lightcc has not seen travels as it is, with all that is reduced with it."""
    model = Bag()
    model.weights[1].requires_grad_(False)
    fully_shard(model, mesh=square())
    top_k(model)
    backward(model, chosen(0, dist.get_rank()))
    remaining = owed(model)
    list(model.parameters())[1].requires_grad_(True)
    close(backward(model, chosen(1, dist.get_rank())), dense_average(1, WORLD))
    same(owed(model), remaining)


def test_a_parameter_that_was_frozen_travels_as_it_is(ranks: Ranks) -> None:
    ranks.run(unfreezes)


def disagrees() -> None:
    model = sharded_bag(line())
    lightcc.compress(model, "bfloat16" if dist.get_rank() else "float16")
    backward(model, chosen(0, dist.get_rank()))


def test_ranks_whose_settings_differ_get_an_error_that_shows_both() -> None:
    with ranks_of_two_hosts({"TACO_LOG": "off"}) as ranks:
        for outcome in ranks.outcomes(disagrees):
            assert outcome.error_type == "MismatchError", outcome
            assert "coded as float16" in outcome.error
            assert "coded as bfloat16" in outcome.error
