"""The commands of the package: what they show of ranks that run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks

pytestmark = taco_only


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name(name)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def reduce_and_tell() -> int:
    tensor = torch.ones(100_000)
    dist.all_reduce(tensor)
    return os.getpid()


def peers_shown_of(pid: int, awaited: int) -> list[int]:
    """The peers that harp-stat shows of that process once it shows the one that is awaited: an
    engine writes its page a while after something has happened."""
    deadline = time.monotonic() + 30
    while True:
        engines = json.loads(run("harp-stat", "--json").stdout)["engines"]
        found = [each for each in engines if each["pid"] == pid]
        shown = [path["peer_pid"] for each in found for path in each["paths"]]
        if awaited in shown or time.monotonic() > deadline:
            return shown


@pytest.mark.parametrize("transport", ["shm", "udp"])
def test_harp_stat_shows_every_rank_of_this_user(transport: str) -> None:
    ranks = Ranks(2, {"TACO_TRANSPORT": transport, "TACO_LOG": "warning"})
    try:
        ranks.initialise("taco")
        pids = ranks.run(reduce_and_tell)
        for pid, peer in zip(pids, reversed(pids), strict=True):
            assert peers_shown_of(pid, peer) == [peer]
        table = run("harp-stat", "--interval", "0.2", str(pids[0]))
        assert table.returncode == 0, table.stderr
        assert f"process {pids[0]}, engine 0: driver udp" in table.stdout
        prometheus = run("harp-stat", "--prometheus", *map(str, pids)).stdout
        assert prometheus.count("# TYPE harp_sent_bytes_total counter") == 1
    finally:
        ranks.close(30)
    gone = run("harp-stat", str(pids[0]))
    assert gone.returncode == 1
    assert f"there is no process {pids[0]}" in gone.stderr


def test_harp_perf_measures_two_processes_of_this_host_with_tcp_beside() -> None:
    done = run("harp-perf", "--json", "--tcp", "--sizes", "64", "--seconds", "0.05", "--rounds=50")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    measured = [(row["measure"], row["by"]) for row in found["rows"]]
    assert measured == [
        ("latency", "harp"),
        ("latency", "tcp"),
        ("latency", "tcp-polling"),
        ("bandwidth", "harp"),
        ("bandwidth", "tcp"),
        ("rate", "harp"),
        ("rate", "tcp"),
    ]


@pytest.mark.parametrize("name", ["harp-perf", "harp-stat"])
def test_commands_name_an_option_that_they_do_not_have(name: str) -> None:
    done = run(name, "--jsn")
    assert done.returncode == 2
    assert f"{name}: --jsn is unknown; did you mean --json?" in done.stderr
