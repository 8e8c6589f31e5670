"""taco in programs that compute on a GPU: its own tensors lie in the host's memory.

`make test-cuda` runs these where torch finds a GPU; they need one, and are skipped elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from spawn_ranks import Ranks, connect
from torch import nn
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")

WORLD = 2
MIB = 1 << 20


@pytest.fixture(params=["shm", "udp"], scope="module")
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    made = Ranks(WORLD, {"TACO_TRANSPORT": str(request.param), "TACO_LOG": "warning"})
    made.initialise()
    yield made
    made.close(10)


def refuse_cuda() -> str:
    on_gpu = torch.ones(8, device="cuda")
    calls: list[Callable[[], object]] = [
        lambda: dist.all_reduce(on_gpu),
        lambda: dist.broadcast(on_gpu, 0),
        lambda: dist.all_gather_into_tensor(on_gpu.repeat(WORLD), on_gpu),
        lambda: dist.reduce_scatter_tensor(on_gpu[:4].clone(), on_gpu),
        lambda: dist.all_to_all_single(on_gpu.clone(), on_gpu),
        lambda: dist.send(on_gpu, 1 - dist.get_rank()),
    ]
    texts = set()
    for call in calls:
        with pytest.raises(NotImplementedError) as caught:
            call()
        texts.add(str(caught.value).splitlines()[0])
    mine = torch.ones(1)
    dist.all_reduce(mine)  # the group goes on
    return "\n".join(sorted(texts)) if mine.item() == WORLD else "a sum is wrong"


def test_a_tensor_on_a_gpu_is_refused_by_every_call_and_the_group_goes_on(ranks: Ranks) -> None:
    for text in ranks.run(refuse_cuda):
        for line in text.splitlines():
            assert "cuda:0" in line, line
            assert "cpu:taco,cuda:nccl" in line, line


def exchange_pinned(count: int) -> list[bool]:
    """Sums, exchanges and messages over memory that CUDA has allocated for its own copies."""
    rank = dist.get_rank()
    pinned = torch.arange(count, dtype=torch.float32).mul_(rank + 1).pin_memory()
    assert pinned.is_pinned()
    base = torch.arange(count, dtype=torch.float32)
    reduced = pinned.clone().pin_memory()
    dist.all_reduce(reduced)
    gathered = torch.empty(WORLD * count).pin_memory()
    dist.all_gather_into_tensor(gathered, pinned)
    swapped = torch.empty(count).pin_memory()
    dist.all_to_all_single(swapped, pinned)
    received = torch.empty(count).pin_memory()
    send = dist.isend(pinned, 1 - rank)
    dist.recv(received, 1 - rank)
    if send is not None:
        send.wait()
    half = count // WORLD
    part = base[rank * half : (rank + 1) * half]
    return [
        torch.equal(reduced, base * 3),
        torch.equal(gathered, torch.cat([base, base * 2])),
        torch.equal(swapped, torch.cat([part, part * 2])),
        torch.equal(received, base * (2 - rank)),
    ]


@pytest.mark.parametrize("count", [2, 1024, 8 * MIB])
def test_pinned_memory_travels_as_any_other(ranks: Ranks, count: int) -> None:
    assert all(all(found) for found in ranks.run(exchange_pinned, count))


def train(steps: int) -> list[float]:
    """Data parallel by hand: gradients go from the GPU through pinned memory and back."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(steps):
        inputs = torch.randn(32, 64, generator=generator).cuda()
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            staged = parameter.grad.cpu().pin_memory()
            dist.all_reduce(staged, dist.ReduceOp.AVG)
            parameter.grad.copy_(staged)
        optimizer.step()
        losses.append(loss.item())
    weights = torch.cat([one.detach().flatten() for one in model.parameters()]).cpu()
    others = [torch.empty_like(weights) for _ in range(WORLD)]
    dist.all_gather(others, weights)
    assert torch.equal(others[0], others[1]), "ranks differ"
    return losses


def test_a_model_on_the_gpu_trains_with_gradients_through_the_host(ranks: Ranks) -> None:
    for losses in ranks.run(train, 60):
        assert losses[-1] < losses[0] / 4, losses


def wrap_on_the_gpu() -> str:
    with pytest.raises((NotImplementedError, RuntimeError)) as caught:
        DistributedDataParallel(nn.Linear(4, 4).cuda())
    return str(caught.value)


def test_ddp_of_a_model_on_the_gpu_says_what_to_write(ranks: Ranks) -> None:
    for text in ranks.run(wrap_on_the_gpu):
        assert "cpu:taco,cuda:nccl" in text, text


def both_devices(port: int) -> tuple[float, float]:
    dist.init_process_group("cpu:taco,cuda:nccl", store=connect(port, 1), rank=0, world_size=1)
    try:
        on_host, on_gpu = torch.ones(4), torch.ones(4, device="cuda")
        dist.all_reduce(on_host)
        dist.all_reduce(on_gpu)
        model = DistributedDataParallel(nn.Linear(4, 4).cuda())
        model(on_gpu).sum().backward()
        return on_host.sum().item(), on_gpu.sum().item()
    finally:
        dist.destroy_process_group()


def test_a_group_has_taco_for_the_host_and_nccl_for_the_gpu() -> None:
    with Ranks(1, {"TACO_LOG": "warning"}) as alone:
        assert alone.run(both_devices, alone.port) == [(4.0, 4.0)]


def join_both(port: int) -> None:
    gpu = torch.device("cuda", int(os.environ["RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(gpu)
    store = connect(port, WORLD)
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "cpu:taco,cuda:nccl", store=store, rank=rank, world_size=WORLD, device_id=gpu
    )


def totals(group: dist.ProcessGroup | None = None) -> list[float]:
    """Sums over all ranks of their ones, on the host and on the GPU."""
    tensors = [torch.ones(1000), torch.ones(1000, device="cuda")]
    for tensor in tensors:
        dist.all_reduce(tensor, group=group)
    return [tensor[0].item() for tensor in tensors]


def use_groups_of_both() -> dict[str, list[float]]:
    rank = dist.get_rank()
    made = dist.new_group(list(range(WORLD)))
    split = dist.split_group(split_ranks=[list(range(WORLD))])
    alone = dist.split_group(split_ranks=[[other] for other in range(WORLD)])
    host = dist.new_group(list(range(WORLD)), backend="taco")
    on_host = torch.full((4,), float(rank))
    dist.all_reduce(on_host, group=host)
    return {
        "all": totals(),
        "new_group": totals(made),
        "split_group": totals(split),
        "alone": totals(alone),
        "taco": [on_host[0].item()],
    }


def train_over_both() -> tuple[float, bool]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 1).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(40):
        inputs = torch.randn(32, 64, generator=generator).cuda()
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = model.module.weight.detach().cpu()
    others = [torch.empty_like(weights) for _ in range(WORLD)]
    dist.all_gather(others, weights)
    return losses[-1] / losses[0], torch.equal(others[0], others[1])


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15),
    reason="torch gives each backend of a group its own options from 2.15 on",
)
def test_two_ranks_make_groups_of_both_and_train() -> None:
    """On one GPU if need be: NCCL takes the ranks for two hosts'."""
    own = [{"RANK": str(rank), "NCCL_HOSTID": f"host{rank}"} for rank in range(WORLD)]
    sockets = {"NCCL_NET": "Socket", "NCCL_NET_PLUGIN": "none", "NCCL_SOCKET_IFNAME": "lo"}
    with Ranks(WORLD, {"TACO_LOG": "warning", **sockets}, own) as ranks:
        ranks.run(join_both, ranks.port)
        for found in ranks.run(use_groups_of_both):
            assert found.pop("alone") == [1.0, 1.0]
            assert found.pop("taco") == [1.0]
            assert all(sums == [WORLD, WORLD] for sums in found.values()), found
        for left, same in ranks.run(train_over_both):
            assert left < 0.5
            assert same


def test_a_cache_names_a_parameter_on_the_gpu() -> None:
    from taco_torch.zerocache import ZeroCache

    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    caught = pytest.raises(TypeError, match="lies on cuda")
    with ZeroCache("1MiB", "1MiB", page="64KiB") as cache, caught:
        cache.wrap(model, optimizer)
