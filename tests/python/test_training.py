"""DDP, FSDP2, DTensor, compiled functional collectives and DETAIL debugging over taco."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from conftest import BACKEND, taco_only
from spawn_ranks import Ranks, initialise
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.BatchNorm2d(8),
        nn.Flatten(),
        nn.Linear(8 * 64, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def data(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return (
        torch.randn(16, 1, 8, 8, generator=generator),
        torch.randint(0, 10, (16,), generator=generator),
    )


def train(module: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    inputs, labels = data(dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs), labels).backward()
        optimizer.step()


def ddp_equals_one_process() -> None:
    world = dist.get_world_size()
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    parallel = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    parallel.load_state_dict(plain.state_dict())
    wrapped = DistributedDataParallel(parallel, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05)
    batches = [data(rank) for rank in range(world)]
    for _ in range(5):
        optimizer.zero_grad()
        for inputs, labels in batches:
            (nn.functional.cross_entropy(plain(inputs), labels) / world).backward()
        optimizer.step()
    train(wrapped, 5)
    for expected, actual in zip(plain.parameters(), parallel.parameters(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def ddp_with_hooks() -> None:
    for name in ("fp16", "powersgd", "channels_last"):
        module = model()
        if name == "channels_last":
            module = module.to(memory_format=torch.channels_last)
        wrapped = DistributedDataParallel(module, bucket_cap_mb=0.01)
        if name == "fp16":
            wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif name == "powersgd":
            state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
            wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        train(wrapped, 4)
        for parameter in wrapped.parameters():
            gathered = [torch.zeros_like(parameter) for _ in range(dist.get_world_size())]
            dist.all_gather(gathered, parameter.detach().contiguous())
            for other in gathered:
                torch.testing.assert_close(other, gathered[0], rtol=0, atol=0)


def ddp_with_sparse_gradients() -> None:
    torch.manual_seed(1)
    module = nn.EmbeddingBag(100, 8, sparse=True)
    wrapped = DistributedDataParallel(module)
    inputs = torch.randint(
        0, 100, (10, 4), generator=torch.Generator().manual_seed(dist.get_rank())
    )
    wrapped(inputs).sum().backward()
    assert module.weight.grad is not None
    dense = module.weight.grad.to_dense()
    reference = dense.clone()
    dist.broadcast(reference, src=0)
    torch.testing.assert_close(dense, reference, rtol=0, atol=0)


def fsdp_trains() -> None:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(5)
    reference = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10))
    sharded = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10))
    sharded.load_state_dict(reference.state_dict())
    fully_shard(sharded[1])
    fully_shard(sharded)
    train(sharded, 3)
    train(DistributedDataParallel(reference), 3)
    for expected, actual in zip(reference.parameters(), sharded.parameters(), strict=True):
        torch.testing.assert_close(actual.full_tensor(), expected.data, rtol=1e-4, atol=1e-5)


def fsdp_one_trains() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    def build() -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10))

    reference, sharded = build(), build()
    wrapped = FullyShardedDataParallel(sharded, device_id=torch.device("cpu"))
    train(wrapped, 3)
    train(DistributedDataParallel(reference), 3)
    with FullyShardedDataParallel.summon_full_params(wrapped):
        for expected, actual in zip(reference.parameters(), wrapped.parameters(), strict=True):
            torch.testing.assert_close(
                actual.data.view_as(expected), expected.data, rtol=1e-4, atol=1e-5
            )


def pipeline_trains() -> None:
    """Two stages, four microbatches: sends and receives in both directions."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank = dist.get_rank()
    torch.manual_seed(5)
    stages = [nn.Sequential(nn.Linear(16, 32), nn.Tanh()), nn.Linear(32, 4)]
    whole = nn.Sequential(*(copy.deepcopy(stage) for stage in stages))
    stage = PipelineStage(stages[rank], rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(32, 16, generator=generator)
    targets = torch.randn(32, 4, generator=generator)
    if rank == 0:
        schedule.step(inputs)
    else:
        output = schedule.step(target=targets)
        torch.testing.assert_close(output, whole(inputs))
    nn.functional.mse_loss(whole(inputs), targets).backward()
    expected = [parameter.grad for parameter in whole[rank].parameters()]
    for grad, parameter in zip(expected, stages[rank].parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-4, atol=1e-6)


def pipeline_by_edges_trains() -> None:
    """Two stages on each of three ranks; every directed pair of ranks has a group of its own."""
    from torch.distributed import config
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

    from taco_torch.groups import taco_backend

    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    blocks = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2 * world)]
    whole = nn.Sequential(*(copy.deepcopy(block) for block in blocks))
    mine = [rank, rank + world]
    with config.patch(pipeline_per_edge_p2p=True):
        stages = [PipelineStage(blocks[i], i, len(blocks), torch.device("cpu")) for i in mine]
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=6, loss_fn=nn.functional.mse_loss)
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(2, 24, 16, generator=generator)
    for _ in range(2):
        for i in mine:
            blocks[i].zero_grad()
        output = schedule.step(
            *([inputs] if rank == 0 else []), **({"target": targets} if rank == world - 1 else {})
        )
        if rank == world - 1:
            torch.testing.assert_close(output, whole(inputs))
    edges = stages[0]._p2p_edge_groups
    assert set(edges) == {(a, b) for a in range(world) for b in range(world) if rank in {a, b}} - {
        (rank, rank)
    }
    assert len({taco_backend(group).group_id for group in edges.values()}) == len(edges)
    nn.functional.mse_loss(whole(inputs), targets).backward()
    expected = [parameter.grad for i in mine for parameter in whole[i].parameters()]
    found = [parameter.grad for i in mine for parameter in blocks[i].parameters()]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def dtensor() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    left, right = torch.randn(37, 20), torch.randn(20, 13)
    product = distribute_tensor(left, mesh, [Shard(0)]) @ distribute_tensor(
        right, mesh, [Replicate()]
    )
    torch.testing.assert_close(product.full_tensor(), left @ right)
    other = distribute_tensor(left, mesh, [Shard(1)]).redistribute(mesh, [Shard(0)])
    torch.testing.assert_close(other.full_tensor(), left)


def functional_collectives() -> None:
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    rank, world = dist.get_rank(), dist.get_world_size()
    total = float(sum(range(world)))

    def step(tensor: torch.Tensor) -> torch.Tensor:
        reduced = functional.all_reduce(tensor, "sum", group)
        gathered = functional.all_gather_tensor(reduced, 0, group)
        scattered = functional.reduce_scatter_tensor(gathered, "sum", 0, group)
        return functional.all_to_all_single(scattered, None, None, group) + 1

    expected = torch.full((8,), total * world + 1)
    torch.testing.assert_close(torch.as_tensor(step(torch.full((8,), float(rank)))), expected)
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(torch.as_tensor(compiled(torch.full((8,), float(rank)))), expected)


@pytest.fixture
def two(pools, transport: str) -> Ranks:
    return pools.get(2, transport)


def test_ddp_equals_training_in_one_process(two: Ranks) -> None:
    two.run(ddp_equals_one_process, deadline_s=120)


@taco_only
def test_ddp_with_communication_hooks(two: Ranks) -> None:
    two.run(ddp_with_hooks, deadline_s=120)


def test_ddp_with_sparse_gradients(two: Ranks) -> None:
    two.run(ddp_with_sparse_gradients, deadline_s=120)


@taco_only
def test_fsdp2_equals_ddp(two: Ranks) -> None:
    two.run(fsdp_trains, deadline_s=120)


@taco_only
def test_fsdp1_equals_ddp(two: Ranks) -> None:
    two.run(fsdp_one_trains, deadline_s=120)


def test_a_pipeline_of_two_stages(two: Ranks) -> None:
    two.run(pipeline_trains, deadline_s=120)


@taco_only
@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15), reason="torch 2.15 brought it"
)
def test_a_pipeline_with_a_group_for_each_edge(three: Ranks) -> None:
    three.run(pipeline_by_edges_trains, deadline_s=120)


def test_dtensor(two: Ranks) -> None:
    two.run(dtensor, deadline_s=120)


def test_functional_collectives_also_compiled(two: Ranks) -> None:
    two.run(functional_collectives, deadline_s=180)


def debugged_all_reduce() -> None:
    tensor = torch.ones(5)
    dist.all_reduce(tensor)
    assert tensor[0].item() == dist.get_world_size()
    dist.barrier()


def initialise_in_detail(rank: int, world: int, port: int) -> None:
    # torch reads TORCH_DISTRIBUTED_DEBUG when it is imported, before the ranks were forked.
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    initialise(rank, world, port, BACKEND)
    assert hasattr(dist.group.WORLD._get_backend(torch.device("cpu")), "wrapped_pg")


@pytest.fixture
def detailed(transport: str) -> Iterator[Ranks]:
    with Ranks(2, {"TACO_TRANSPORT": transport, "TACO_LOG": "off"}) as ranks:
        ranks.run_each(initialise_in_detail, [(rank, 2, ranks.port) for rank in range(2)])
        yield ranks


def test_detail_debugging_wraps_the_backend(detailed: Ranks) -> None:
    detailed.run(debugged_all_reduce)


def debugged_mismatch() -> None:
    dist.all_reduce(torch.ones(5 + dist.get_rank()))


@taco_only
def test_detail_debugging_says_what_ranks_call(detailed: Ranks) -> None:
    for outcome in detailed.outcomes(debugged_mismatch):
        assert "Detected mismatch between collectives on ranks" in outcome.error, outcome


@taco_only
@pytest.mark.parametrize("backend", ["cpu:taco", "cpu:taco,cuda:taco", "cpu:taco,cuda:gloo"])
def test_backend_strings_by_device(backend: str) -> None:
    with Ranks(2) as ranks:
        ranks.initialise(backend).run(debugged_all_reduce)
