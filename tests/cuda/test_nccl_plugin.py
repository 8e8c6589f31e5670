"""NCCL over the plugin: two processes, on one GPU where there is no second one.

`make test-cuda` runs these where torch finds a GPU; they need one, and the plugin, and are skipped
elsewhere. NCCL takes the two for processes of different hosts (NCCL_HOSTID), so that it neither
refuses the second on a GPU nor goes by shared memory of its own. `NCCL_PROTOCOLS="Simple LL LL128
default"` tries protocols other than the one that taco_torch.nccl sets: in LL and LL128 a GPU reads
data while it arrives.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from fabric import Fabric, why_unavailable
from hosts import host_ranks
from nccl_files import find_plugin
from spawn_ranks import Ranks, connect
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PLUGIN = find_plugin()
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU"),
    pytest.mark.skipif(PLUGIN is None, reason="the plugin for NCCL is neither built nor installed"),
]

WORLD = 2
GROUP_TIMEOUT = timedelta(seconds=60)
COUNTS = [2, 1000, (64 << 10) + 2, 4 << 20]  # elements; each is a multiple of WORLD
PROTOCOLS = os.environ.get("NCCL_PROTOCOLS", "Simple").split()
PLACES = [f"{where}, {protocol}" for protocol in PROTOCOLS for where in ("loopback", "hosts")]


def join(port: int | None) -> None:
    torch.cuda.set_device(rank_here() % torch.cuda.device_count())
    if port is None:  # torchrun's variables say where
        dist.init_process_group("nccl", timeout=GROUP_TIMEOUT)
        return
    store = connect(port, WORLD)
    dist.init_process_group(
        "nccl", store=store, rank=rank_here(), world_size=WORLD, timeout=GROUP_TIMEOUT
    )


def rank_here() -> int:
    return int(os.environ["NCCL_HOSTID"].removeprefix("host"))


@contextlib.contextmanager
def joined(place: str, log: Path, **more: str) -> Iterator[Ranks]:
    where, protocol = place.split(", ")
    environment = {
        "NCCL_NET_PLUGIN": str(PLUGIN),
        "NCCL_NET": "HARP",
        "NCCL_SOCKET_IFNAME": "lo" if where == "loopback" else "eth",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_FILE": str(log / "nccl.%p"),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",  # an error is raised, the process goes on
        **({} if protocol == "default" else {"NCCL_PROTO": protocol}),
        **more,
    }
    own = [{"NCCL_HOSTID": f"host{rank}"} for rank in range(WORLD)]
    with contextlib.ExitStack() as held:
        if where == "loopback":
            ranks = held.enter_context(Ranks(WORLD, environment, own))
        else:
            if (reason := why_unavailable()) is not None:
                pytest.skip(f"no fabric here: {reason}")
            fabric = held.enter_context(Fabric(hosts=WORLD, links=2))
            ranks = held.enter_context(host_ranks(fabric, environment, own=own))
        ranks.run(join, ranks.port if where == "loopback" else None)
        yield ranks


@pytest.fixture(params=PLACES, scope="module")
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory, place: str) -> Path:
    return tmp_path_factory.mktemp("nccl")


@pytest.fixture(scope="module")
def ranks(place: str, log: Path) -> Iterator[Ranks]:
    with joined(place, log) as made:
        yield made


def said(log: Path) -> str:
    return "\n".join(file.read_text(errors="replace") for file in sorted(log.iterdir()))


def data_of(rank: int, count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(-(1 << 30), 1 << 30, (count,), dtype=torch.int32, generator=generator)


def exchange(count: int, seed: int) -> list[str]:
    """Every kind of call once; the names of those whose results are not exact."""
    rank = dist.get_rank()
    mine, theirs = (data_of(number, count, seed) for number in (rank, 1 - rank))
    first, second = (mine, theirs) if rank == 0 else (theirs, mine)
    half = slice(rank * count // WORLD, (rank + 1) * count // WORLD)
    sent = mine.cuda()
    found: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    total = sent.clone()
    dist.all_reduce(total)
    found["all_reduce"] = total, mine + theirs
    all_ = torch.empty(WORLD * count, dtype=torch.int32, device="cuda")
    dist.all_gather_into_tensor(all_, sent)
    found["all_gather"] = all_, torch.cat([first, second])
    part = torch.empty(count // WORLD, dtype=torch.int32, device="cuda")
    dist.reduce_scatter_tensor(part, sent)
    found["reduce_scatter"] = part, (mine + theirs)[half]
    swapped = torch.empty_like(sent)
    dist.all_to_all_single(swapped, sent)
    found["all_to_all"] = swapped, torch.cat([first[half], second[half]])
    root = sent.clone()
    dist.broadcast(root, 1)
    found["broadcast"] = root, second
    received = torch.empty_like(sent)
    if rank == 0:
        dist.send(sent, 1)
        dist.recv(received, 1)
    else:
        dist.recv(received, 0)
        dist.send(sent, 0)
    found["send and receive"] = received, theirs
    return [name for name, (got, wanted) in found.items() if not torch.equal(got.cpu(), wanted)]


def exchange_often(count: int, rounds: int) -> list[str]:
    wrong = [f"{name}, round {seed}" for seed in range(rounds) for name in exchange(count, seed)]
    dist.barrier(device_ids=[torch.cuda.current_device()])
    return wrong


@pytest.mark.parametrize("count", COUNTS)
def test_every_call_moves_exactly_the_bytes_of_its_peer(ranks: Ranks, count: int) -> None:
    assert ranks.run(exchange_often, count, 20 if count < 1 << 20 else 3) == [[], []]


def train(steps: int) -> tuple[list[float], list[float]]:
    """Losses of a model that both ranks train, and of one that this rank trains on all data."""
    rank = dist.get_rank()

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1)).cuda()

    alone, together = make(), DistributedDataParallel(make())
    losses: tuple[list[float], list[float]] = ([], [])
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (together, alone)]
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        inputs = torch.randn(32 * WORLD, 64, generator=generator).cuda()
        parts = inputs[rank * 32 : (rank + 1) * 32], inputs
        for model, optimizer, part, kept in zip(
            (together, alone), optimizers, parts, losses, strict=True
        ):
            loss = (model(part) - part.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            kept.append(loss.item())
    for ours, other in zip(together.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.detach(), other.detach(), rtol=1e-3, atol=1e-3)
    return losses


def test_ddp_trains_as_one_process_on_all_data_would(ranks: Ranks) -> None:
    for together, alone in ranks.run(train, 20):
        assert alone[-1] < alone[0]
        assert together[-1] < together[0]


def test_nccl_says_that_it_goes_by_the_plugin_alone(ranks: Ranks, log: Path) -> None:
    ranks.run(exchange, 1000, 0)
    text = said(log)
    assert "Using network HARP" in text
    assert re.search(r"via NET/HARP/\d", text), text[-4000:]
    assert "NET/Socket" not in text


def packets_sent() -> dict[str, int]:
    """TCP segments and UDP datagrams that this process's host has sent so far."""
    text = Path("/proc/self/net/snmp").read_text()
    found = {}
    for protocol, column in (("Tcp", "OutSegs"), ("Udp", "OutDatagrams")):
        names, values = re.findall(rf"^{protocol}: (.*)$", text, re.MULTILINE)
        found[protocol] = int(dict(zip(names.split(), values.split(), strict=True))[column])
    return found


def count_packets(count: int) -> dict[str, int]:
    tensor = torch.ones(count, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    before = packets_sent()
    for _ in range(8):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    return {name: sent - before[name] for name, sent in packets_sent().items()}


def test_harp_carries_the_bytes_between_hosts_not_tcp(ranks: Ranks, place: str) -> None:
    if place.startswith("loopback"):
        pytest.skip("within a host HARP needs no packets")
    for sent in ranks.run(count_packets, 4 << 20):
        assert sent["Udp"] > 8 * 16, sent  # 16 MiB, in super-packets of 64 KB at most
        assert sent["Tcp"] < 1000, sent  # what the store and torch's watchdog say meanwhile


def test_what_nccl_sends_is_encrypted_where_harp_is_told_to(tmp_path: Path) -> None:
    with joined("hosts, Simple", tmp_path, TACO_HARP_SECURITY="encrypt") as ranks:
        assert ranks.run(exchange_often, 100_000, 3) == [[], []]


def sum_until_it_fails(under_way: Path) -> tuple[float, str]:
    tensor = torch.ones(4 << 20, device="cuda")
    try:
        for round_ in itertools.count():
            dist.all_reduce(tensor)
            torch.cuda.synchronize()
            if round_ == 5:
                (under_way / str(dist.get_rank())).touch()
    except Exception as error:
        return time.monotonic(), f"{type(error).__name__}: {error}"
    raise AssertionError("the sums ended")


@pytest.mark.parametrize("where", ["loopback", "hosts"])
def test_a_killed_peer_is_an_error_and_named_in_nccls_log(where: str, tmp_path: Path) -> None:
    log, under_way = tmp_path / "log", tmp_path / "under_way"
    log.mkdir()
    under_way.mkdir()
    with joined(f"{where}, Simple", log) as ranks:
        for rank in range(WORLD):
            ranks.begin(rank, sum_until_it_fails, under_way)
        deadline = time.monotonic() + 60
        while len(list(under_way.iterdir())) < WORLD:
            assert time.monotonic() < deadline, said(log)[-4000:]
            time.sleep(0.01)
        killed = time.monotonic()
        ranks.kill(1)
        ranks.gather([1])
        (outcome,) = ranks.gather([0], 60.0)
        text = said(log)
        assert outcome.value is not None, (outcome, text[-4000:])
        raised, error = outcome.value
        print(f"{where}: {raised - killed:.2f} s after the kill: {error.splitlines()[0]}")
        assert re.search(r"NET/HARP : .*the connection (to|from) .* has failed", text), text[-4000:]
