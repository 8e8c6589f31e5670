"""DistributedDataParallel over links that die and return: every loss is that of a run over links
that do not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from conftest import taco_only
from fabric import Fabric
from hosts import host_ranks, join, needs_hosts, sent_by
from launching import until
from torch import nn

pytestmark = [taco_only, needs_hosts]

HOSTS, LINKS, WIDTH = 3, 2, 768
DEATHS = ((1, 0), (2, 1), (1, 1))  # host, link
DEADLINE_S = 60.0
Run = tuple[list[float], str]  # the losses, and a digest of the parameters in the end


def train(folder: str, steps: int | None) -> Run:
    """So many steps, or (None) until a file "stop" is there. After each step a file of the rank's
    own tells by how many paths it reaches its peers."""
    import taco_torch

    torch.set_num_threads(1)
    torch.manual_seed(5)
    rank = dist.get_rank()
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    model = nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    draw = torch.Generator().manual_seed(rank)
    told, losses = Path(folder) / f"paths{rank}", []
    while steps is None or len(losses) < steps:
        x = torch.randn(8, WIDTH, generator=draw)
        loss = (model(x) - x.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        part = told.with_suffix(".part")
        part.write_text(str(taco_torch.stats().paths))
        part.rename(told)
        over = torch.tensor([float(steps is None and (Path(folder) / "stop").exists())])
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
        if over.item() > 0:
            break
    digest = hashlib.sha256()
    for parameter in layers.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return losses, digest.hexdigest()


def wait_for_paths(folder: Path, ranks: Iterable[int], count: int, words: str) -> None:
    def told(rank: int) -> int:
        path = folder / f"paths{rank}"
        return int(path.read_text()) if path.exists() else 0

    try:
        until(lambda: all(told(rank) == count for rank in ranks), words, DEADLINE_S)
    except AssertionError as error:
        counts = [told(rank) for rank in range(HOSTS)]
        raise AssertionError(f"{error}: ranks have {counts} paths") from None


def kill_and_return(fabric: Fabric, folder: Path, host: int, link: int) -> None:
    """The link carries data; it dies, and its host has only the paths over the other; it is
    mended, carries data again, and every host has all paths."""
    name = f"host {host} link {link}"
    peers = HOSTS - 1

    def wait_for_traffic(words: str) -> None:
        enough = sent_by(fabric, host, link) + 4_000_000
        until(lambda: sent_by(fabric, host, link) >= enough, f"{name} {words}", DEADLINE_S)

    wait_for_traffic("is used")
    fabric.cut(host, link)
    # Whichever side notices first closes a path for both.
    wait_for_paths(folder, [host], (LINKS - 1) * peers, f"{name} is left")
    fabric.mend(host, link)
    wait_for_traffic("is used again")
    wait_for_paths(folder, range(HOSTS), LINKS * peers, f"{name} is used by all again")


def test_links_that_die_and_return_change_no_bit_of_a_training(tmp_path: Path) -> None:
    with (
        Fabric(hosts=HOSTS, links=LINKS, rate="400mbit") as fabric,
        host_ranks(fabric) as ranks,
    ):
        ranks.run(join)
        for rank in range(HOSTS):
            ranks.begin(rank, train, str(tmp_path), None)
        for host, link in DEATHS:
            kill_and_return(fabric, tmp_path, host, link)
        (tmp_path / "stop").touch()
        outcomes = ranks.gather(range(HOSTS))
        assert all(outcome.ok for outcome in outcomes), outcomes
        disturbed = [outcome.value for outcome in outcomes]
        steps = len(disturbed[0][0])
        assert steps > len(DEATHS)
        undisturbed = ranks.run(train, str(tmp_path), steps)
        for rank in range(HOSTS):
            assert disturbed[rank] == undisturbed[rank], f"rank {rank}"
        assert len({digest for _, digest in disturbed}) == 1, "ranks have the same parameters"
