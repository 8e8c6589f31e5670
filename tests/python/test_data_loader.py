"""A rank dies while its DataLoader workers, forked from it with all its descriptors, live on."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks, initialise
from torch.utils.data import DataLoader, Dataset

pytestmark = taco_only

WORLD = 3
VICTIM = 1
WORKERS = 2


class Rows(Dataset):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2000,), float(index))


def train(rank: int, port: int, workers_first: bool, folder: str) -> None:
    """Epoch after epoch; the workers' pids go into a file of this rank, once all is running.

    Orphaned workers would end by themselves after 5 s: here they look for their parent never.
    """
    torch.utils.data._utils.worker.MP_STATUS_CHECK_INTERVAL = 1e6
    loader = DataLoader(
        Rows(),
        batch_size=4,
        num_workers=WORKERS,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    if not workers_first:
        initialise(rank, WORLD, port)
        dist.all_reduce(torch.ones(1))
    batches = iter(loader)
    pids = [worker.pid for worker in batches._workers]
    if workers_first:
        initialise(rank, WORLD, port)
    for step in range(1_000_000):
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        dist.all_reduce(batch)
        if step == 5:
            path = Path(folder, f"rank{rank}")
            path.with_suffix(".new").write_text(" ".join(map(str, pids)))
            path.with_suffix(".new").rename(path)


def pids_of(folder: Path, rank: int) -> list[int]:
    path = folder / f"rank{rank}"
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"rank {rank} does not train"
        time.sleep(0.02)
    return [int(pid) for pid in path.read_text().split()]


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    return False


def check_death(transport: str, workers_first: bool, folder: Path) -> None:
    environment = {"TACO_TRANSPORT": transport, "TACO_LOG": "off"}
    survivors = [rank for rank in range(WORLD) if rank != VICTIM]
    pids: list[int] = []
    with Ranks(WORLD, environment) as ranks:
        for rank in range(WORLD):
            ranks.begin(rank, train, rank, ranks.port, workers_first, str(folder))
        try:
            for rank in range(WORLD):
                pids += pids_of(folder, rank)
            orphans = pids_of(folder, VICTIM)
            assert len(orphans) == WORKERS
            ranks.kill(VICTIM)
            outcomes = ranks.gather(survivors)
            assert all(is_running(pid) for pid in orphans), "the workers did not outlive the rank"
            for outcome in outcomes:
                assert outcome.error_type == "PeerLostError", outcome
                assert outcome.fields is not None
                assert outcome.fields["rank"] == VICTIM
                assert outcome.fields["address"]
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_workers_forked_during_training_do_not_hide_their_ranks_death(
    transport: str, tmp_path: Path
) -> None:
    check_death(transport, False, tmp_path)


def test_workers_forked_before_the_group_was_made_do_not_either(
    transport: str, tmp_path: Path
) -> None:
    check_death(transport, True, tmp_path)
