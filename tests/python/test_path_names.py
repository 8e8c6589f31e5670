"""Single paths are shown by name: in stats(), in dump() and on SIGUSR2, and by taco_torch.info."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from fabric import Fabric
from hosts import host_ranks, join, needs_hosts
from stderr_file import stderr_into

pytestmark = [taco_only, needs_hosts]

DEADLINE_S = 30


def exchange_until(agreed: Callable[[], bool]) -> None:
    """All ranks go on until each of them has seen what it waits for."""
    end = time.monotonic() + DEADLINE_S
    while True:
        dist.all_reduce(torch.ones(1 << 16))
        seen = torch.tensor([float(agreed())])
        dist.all_reduce(seen, op=dist.ReduceOp.MIN)
        if seen.item() > 0:
            return
        assert time.monotonic() < end, paths_to_the_peer()


def paths_to_the_peer() -> list[dict[str, Any]]:
    import taco_torch

    ((peer, paths),) = taco_torch.stats().paths_by_peer.items()
    assert "pid" in peer
    return [dataclasses.asdict(path) for path in paths]


def path_from(address: str) -> dict[str, Any]:
    (path,) = [path for path in paths_to_the_peer() if path["local"].startswith(address + ":")]
    return path


def states() -> list[str]:
    return sorted(path["state"] for path in paths_to_the_peer())


def facts_with_all_live(count: int) -> tuple[list[dict[str, Any]], str]:
    import taco_torch

    exchange_until(
        lambda: (
            states() == ["live"] * count
            and all(path["bytes_sent"] * path["round_trip_s"] > 0 for path in paths_to_the_peer())
        )
    )
    return paths_to_the_peer(), taco_torch.dump()


def test_each_path_shows_its_addresses_state_and_figures() -> None:
    with Fabric(hosts=2, links=2, rate="200mbit") as fabric, host_ranks(fabric) as ranks:
        ranks.run(join)
        for host, (paths, dump) in enumerate(ranks.run(facts_with_all_live, 2)):
            for link in (0, 1):
                own, other = fabric.address(host, link), fabric.address(1 - host, link)
                (path,) = [path for path in paths if path["local"].startswith(own + ":")]
                assert path["remote"].startswith(other + ":")
                assert 0 < path["round_trip_s"] < DEADLINE_S
                assert path["window"] > 0
                assert path["datagram"] >= 1200
                assert path["text"].startswith(f"{path['local']} to {path['remote']}: live, ")
                assert f"datagrams of {path['datagram']} bytes" in path["text"]
                assert f"  {path['local']} to {path['remote']}: live" in dump


def see_it_left(address: str, log: str) -> str:
    """The other path, too, may be left where a processor is busy, and comes back."""
    with stderr_into(log):
        exchange_until(lambda: path_from(address)["state"] != "live")
        os.kill(os.getpid(), signal.SIGUSR2)
        end = time.monotonic() + DEADLINE_S
        while "paths to" not in Path(log).read_text():
            assert time.monotonic() < end, "the signal shows no paths"
    return str(path_from(address)["local"])


def test_a_path_that_is_left_is_named_by_a_warning_and_by_the_signal(tmp_path: Path) -> None:
    logs = [str(tmp_path / f"rank{rank}") for rank in (0, 1)]
    with (
        Fabric(hosts=2, links=2, rate="200mbit") as fabric,
        host_ranks(fabric, {"TACO_LOG": "warning"}) as ranks,
    ):
        ranks.run(join)
        ranks.run(facts_with_all_live, 2)
        for rank in (0, 1):
            ranks.begin(rank, see_it_left, fabric.address(rank, 1), logs[rank])
        fabric.cut(1, link=1)
        outcomes = ranks.gather([0, 1])
        assert all(outcome.ok for outcome in outcomes), outcomes
        for rank, outcome in enumerate(outcomes):
            local = outcome.value
            text = Path(logs[rank]).read_text()
            left = f"the path from {local} to "
            warnings = [line for line in text.splitlines() if "is silent" in line and left in line]
            assert len(warnings) == 1, text
            shown = [line for line in text.splitlines() if f"  {local} to" in line]
            assert any(": left" in line or ": resting" in line for line in shown), text


def collect_here() -> dict[str, Any]:
    from taco_torch.info import collect

    exchange_until(lambda: states() == ["live", "live"])
    return collect()


def test_info_shows_the_paths_of_a_group_in_its_process() -> None:
    with Fabric(hosts=2, links=2) as fabric, host_ranks(fabric) as ranks:
        ranks.run(join)
        for facts in ranks.run(collect_here):
            ((peer, paths),) = facts["paths"].items()
            assert "pid" in peer
            assert [path["state"] for path in paths] == ["live", "live"]


def info(fabric: Fabric, *variables: str, option: str = "--json") -> str:
    """From host 1, which reaches the store's host by eth0."""
    variables = (f"MASTER_ADDR={fabric.address(0)}", *variables)
    command = [sys.executable, "-m", "taco_torch.info", option]
    return fabric.output(1, ["env", *variables, *command])


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ((), [("eth0", 1), ("eth1", 1)]),
        (("TACO_PATHS=2",), [("eth0", 1), ("eth1", 1), ("eth0", 2), ("eth1", 2)]),
        (("TACO_IFNAME=eth1",), [("eth1", 1)]),
    ],
)
def test_info_shows_which_paths_there_would_be(
    variables: tuple[str, ...], expected: list[tuple[str, int]]
) -> None:
    with Fabric(hosts=2, links=2) as fabric:
        planned = json.loads(info(fabric, *variables))["planned_paths"]
        assert planned["error"] == ""
        from_v4 = [
            (entry["interface"], entry["port"])
            for entry in planned["from"]
            if ":" not in entry["address"]
        ]
        assert from_v4 == expected
        unused = [(entry["interface"], entry["why"]) for entry in planned["unused"]]
        assert "lo" in [name for name, _ in unused]
        named = [why for name, why in unused if name == "eth0" and "TACO_IFNAME" in why]
        assert bool(named) == ("TACO_IFNAME=eth1" in variables)


def test_info_names_an_interface_that_does_not_exist(tmp_path: Path) -> None:
    with Fabric(hosts=2, links=2) as fabric:
        command = [sys.executable, "-m", "taco_torch.info"]
        with (tmp_path / "out").open("w") as out:
            status = fabric.run(0, ["env", "TACO_IFNAME=eth7", *command], stdout=out)
        text = (tmp_path / "out").read_text()
        assert status == 1
        assert "eth7" in text
        assert "eth0, eth1, lo" in text
