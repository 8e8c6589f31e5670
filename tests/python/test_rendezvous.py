"""The rendezvous of ranks, and what they are told when they do not."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks, connect, initialise

pytestmark = taco_only


def rendezvous(rank: int, world: int, port: int, timeout_s: float, changes: dict[str, str]) -> None:
    import os

    os.environ.update(changes)
    initialise(rank, world, port, timeout_s=timeout_s)
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    assert tensor[0].item() == world


def start(world: int, port: int) -> None:
    """Takes the time that a first call takes, which no timeout of few seconds is to cover."""
    import taco_torch  # noqa: F401

    connect(port, world)


def rendezvous_on_paper(rank: int, world: int, port: int, timeout_s: float, folder: str) -> None:
    """As rendezvous(), with what is printed after the connection to the store in a file."""
    import os

    import taco_torch  # noqa: F401

    store = connect(port, world)
    paper = os.open(f"{folder}/{rank}", os.O_CREAT | os.O_WRONLY)
    os.dup2(paper, 1)
    os.dup2(paper, 2)
    os.close(paper)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("taco", store=store, rank=rank, world_size=world, timeout=timeout)
    dist.destroy_process_group()


def torchs_lines(folder: Path) -> list[str]:
    """Torch's log lines begin with [W1121 11:14:43.330 and the like, ours with the date."""
    lines = [line for paper in folder.iterdir() for line in paper.read_text().splitlines()]
    return [line for line in lines if line.startswith("[")]


def await_greeting(store: dist.Store, rank: int) -> None:
    deadline = time.monotonic() + 30
    while not any(key.endswith(f"taco/hello/{rank}") for key in store.list_keys()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def rendezvous_in_file(rank: int, world: int, path: str) -> None:
    import taco_torch  # noqa: F401

    dist.init_process_group("taco", init_method=f"file://{path}", rank=rank, world_size=world)
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    assert tensor[0].item() == world
    dist.destroy_process_group()


def rendezvous_beside_other_calls(rank: int, world: int, port: int) -> None:
    """Rank 1 waits for rank 0, which comes once another thread of rank 1 has used the store."""
    import taco_torch  # noqa: F401

    store = connect(port, world)

    def join() -> None:
        dist.init_process_group("taco", store=store, rank=rank, world_size=world)

    if rank == 0:
        store.wait(["the other thread is through"])
        join()
    else:
        joining = threading.Thread(target=join)
        joining.start()
        time.sleep(0.5)
        for _ in range(5):
            store.add("count", 1)
        store.set("the other thread is through", "")
        joining.join()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world
    dist.destroy_process_group()


def test_a_missing_rank_is_named(tmp_path) -> None:
    with Ranks(3) as ranks:
        ranks.run(start, 3, ranks.port)
        ranks.begin(0, rendezvous, 0, 3, ranks.port, 5.0, {})
        ranks.begin(2, rendezvous, 2, 3, ranks.port, 20.0, {})
        for outcome in ranks.gather([0, 2], 30):
            assert outcome.error_type == "RendezvousError", outcome
            assert "rank 1 of 3" in outcome.error
            assert f":{ranks.port}" in outcome.error
            assert "MASTER_ADDR" in outcome.error


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("TACO_CHUNK_BYTES", ("65536", "131072")),
        ("TACO_HARP_ENGINES", ("1", "2")),
        ("LIGHT_TOPK_RATIO", ("0.01", "0.02")),
        ("LIGHT_WIRE_DTYPE", ("float16", "bfloat16")),
        ("LIGHT_FUSION_BYTES", ("auto", "4096")),
    ],
)
def test_ranks_with_different_settings_are_told_both(name: str, values: tuple[str, str]) -> None:
    with Ranks(2) as ranks:
        for rank in (0, 1):
            ranks.begin(rank, rendezvous, rank, 2, ranks.port, 20.0, {name: values[rank]})
        for outcome in ranks.gather([0, 1], 30):
            assert outcome.error_type == "VersionMismatchError", outcome
            for rank in (0, 1):
                assert f"{name}={values[rank]}" in outcome.error, outcome


def rendezvous_in_groups(rank: int, world: int, port: int, size: str) -> list[str]:
    """The algorithms of a long all_reduce in the default group and in one of two ranks."""
    import os

    import taco_torch

    os.environ.update({"LIGHT_INTRA_SIZE": size, "LIGHT_2D_ALLREDUCE": "1"})
    dist.init_process_group("taco", store=connect(port, world), rank=rank, world_size=world)
    pair = dist.new_group([0, 1])
    chosen = []
    for group in (None, pair):
        if group is None or rank < 2:
            tensor = torch.full((100_003,), float(rank))
            dist.all_reduce(tensor, group=group)
            ranks = 2 if group is pair else world
            assert tensor.eq(ranks * (ranks - 1) / 2).all()
            chosen.append(taco_torch.flight_recorder()["entries"][-1]["algorithm"])
    dist.destroy_process_group()
    return chosen


def test_ranks_of_one_host_may_be_taken_for_several_hosts() -> None:
    with Ranks(4) as ranks:
        for rank in range(4):
            ranks.begin(rank, rendezvous_in_groups, rank, 4, ranks.port, "2")
        for rank, outcome in enumerate(ranks.gather([0, 1, 2, 3], 60)):
            assert outcome.ok, outcome
            assert outcome.value[0] == "two_dimensional"
            assert rank > 1 or outcome.value[1] != "two_dimensional", "the pair is one group"


def test_groups_that_do_not_divide_the_ranks_are_an_error_that_names_both() -> None:
    with Ranks(3) as ranks:
        for rank in range(3):
            changes = {"LIGHT_INTRA_SIZE": "2"}
            ranks.begin(rank, rendezvous, rank, 3, ranks.port, 20.0, changes)
        for outcome in ranks.gather([0, 1, 2], 30):
            assert outcome.error_type == "ValueError", outcome
            assert "LIGHT_INTRA_SIZE is 2" in outcome.error
            assert "the 3 ranks of hosts with 3 ranks" in outcome.error


def new_group_with(algorithm: str | None) -> None:
    import taco_torch

    options = taco_torch.Options(algorithm=algorithm) if algorithm is not None else None
    group = dist.new_group(backend="taco", pg_options=options)
    dist.all_reduce(torch.ones(4), group=group)


@pytest.mark.parametrize(
    "algorithms",
    [("ring", "ring", "direct"), (None, "ring", "ring"), ("", "", "all_reduce=ring")],
)
def test_ranks_with_different_options_are_told_both(algorithms: tuple[str | None, ...]) -> None:
    with Ranks(3, {"TACO_LOG": "warning"}) as ranks:
        ranks.initialise()
        for rank, algorithm in enumerate(algorithms):
            ranks.begin(rank, new_group_with, algorithm)
        odd = next(rank for rank in range(3) if (algorithms[rank] or "") != (algorithms[0] or ""))
        for outcome in ranks.gather([0, 1, 2], 30):
            assert outcome.error_type == "VersionMismatchError", outcome
            assert f"rank 0 has {said_by(algorithms[0])}" in outcome.error, outcome
            assert f"rank {odd} has {said_by(algorithms[odd])}" in outcome.error, outcome


def said_by(algorithm: str | None) -> str:
    return f"Options.algorithm={algorithm}" if algorithm else "TACO_ALGORITHM=auto"


def test_an_algorithm_that_does_not_exist_is_named_on_every_rank(transport: str) -> None:
    with Ranks(3, {"TACO_TRANSPORT": transport}) as ranks:
        for rank in range(3):
            changes = {"TACO_ALGORITHM": "all_reduce=rnig"}
            ranks.begin(rank, rendezvous, rank, 3, ranks.port, 20.0, changes)
        for outcome in ranks.gather([0, 1, 2], 30):
            assert outcome.error_type == "ValueError", outcome
            assert 'all_reduce has no "rnig"' in outcome.error
            assert "TACO_ALGORITHM" in outcome.error
            assert "did you mean ring?" in outcome.error


def test_a_late_rank_is_waited_for() -> None:
    with Ranks(2) as ranks:
        ranks.begin(1, rendezvous, 1, 2, ranks.port, 30.0, {})
        time.sleep(1.5)
        ranks.begin(0, rendezvous, 0, 2, ranks.port, 30.0, {})
        for outcome in ranks.gather([0, 1], 30):
            assert outcome.ok, outcome


@pytest.mark.parametrize("late", [0, 2])
def test_nothing_of_torchs_is_printed_while_a_late_rank_is_waited_for(
    tmp_path: Path, late: int
) -> None:
    with Ranks(3) as ranks:
        early = [rank for rank in range(3) if rank != late]
        for rank in early:
            ranks.begin(rank, rendezvous_on_paper, rank, 3, ranks.port, 30.0, str(tmp_path))
        time.sleep(1.0)
        ranks.begin(late, rendezvous_on_paper, late, 3, ranks.port, 30.0, str(tmp_path))
        for outcome in ranks.gather([0, 1, 2], 30):
            assert outcome.ok, outcome
    assert len(list(tmp_path.iterdir())) == 3
    assert torchs_lines(tmp_path) == []


@pytest.mark.parametrize("dead", [0, 1])
def test_nothing_of_torchs_is_printed_when_a_rank_dies_at_the_start(
    tmp_path: Path, dead: int
) -> None:
    with Ranks(3) as ranks:
        ranks.run(start, 3, ranks.port)
        for rank in (0, 1):
            ranks.begin(rank, rendezvous_on_paper, rank, 3, ranks.port, 5.0, str(tmp_path))
        await_greeting(ranks.store, 1)
        ranks.kill(dead)
        ranks.begin(2, rendezvous_on_paper, 2, 3, ranks.port, 5.0, str(tmp_path))
        for outcome in ranks.gather([1 - dead, 2], 30):
            assert outcome.error_type == "RendezvousError", outcome
            assert f"rank {dead} of 3" in outcome.error
    assert torchs_lines(tmp_path) == []


def test_a_rank_that_waits_leaves_the_store_to_other_threads() -> None:
    with Ranks(2) as ranks:
        ranks.run_each(rendezvous_beside_other_calls, [(rank, 2, ranks.port) for rank in range(2)])


def test_a_dead_incarnations_greeting_is_replaced() -> None:
    """A rank says hello and dies; its successor, under the same keys, is the one that counts."""
    with Ranks(3) as ranks:
        ranks.begin(1, rendezvous, 1, 3, ranks.port, 60.0, {})
        await_greeting(ranks.store, 1)
        ranks.kill(1)
        ranks.gather([1], 10)
        ranks.begin(0, rendezvous, 0, 3, ranks.port, 60.0, {})
        ranks.begin(2, rendezvous, 2, 3, ranks.port, 60.0, {})
        time.sleep(0.5)
        ranks.restart(1)
        ranks.begin(1, rendezvous, 1, 3, ranks.port, 60.0, {})
        for outcome in ranks.gather([0, 1, 2], 60):
            assert outcome.ok, outcome


def test_a_file_store(tmp_path) -> None:
    with Ranks(3) as ranks:
        for attempt in range(2):
            path = str(tmp_path / f"store{attempt}")
            ranks.run_each(rendezvous_in_file, [(rank, 3, path) for rank in range(3)])


class OwnStore(dist.Store):
    """A store that a program has written itself, with no more than it must."""

    def __init__(self, inner: dist.Store) -> None:
        super().__init__()
        self.inner = inner

    def set(self, key: str, value: bytes | str) -> None:
        self.inner.set(key, value)

    def get(self, key: str) -> bytes:
        return self.inner.get(key)

    def add(self, key: str, value: int) -> int:
        return self.inner.add(key, value)

    def check(self, keys: list[str]) -> bool:
        return self.inner.check(keys)

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=60)) -> None:
        self.inner.wait(keys, timeout)

    def delete_key(self, key: str) -> bool:
        return self.inner.delete_key(key)


def rendezvous_in_own_store(rank: int, world: int, port: int) -> None:
    import taco_torch  # noqa: F401

    store = OwnStore(connect(port, world))
    for _ in range(2):
        dist.init_process_group("taco", store=store, rank=rank, world_size=world)
        dist.destroy_process_group()


def test_a_store_of_the_programs_own() -> None:
    with Ranks(3) as ranks:
        ranks.run_each(rendezvous_in_own_store, [(rank, 3, ranks.port) for rank in range(3)])


THROUGH = "rank 0 is through"


class SlowStore(OwnStore):
    """One that takes its time to deliver what rank 0 says, and looks whether rank 0 goes on."""

    def __init__(self, inner: dist.Store, launcher: dist.Store) -> None:
        super().__init__(inner)
        self.launcher = launcher

    def get(self, key: str) -> bytes:
        if "taco/w/" in key or "taco/go/" in key:
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                assert not self.launcher.check([THROUGH]), f"it went on before {key} was heard"
                time.sleep(0.01)
        return super().get(key)


def rendezvous_through_rank_0(rank: int, world: int, port: int, changes: dict[str, str]) -> None:
    """Rank 0 serves the store no longer than it must."""
    import os

    import taco_torch  # noqa: F401

    os.environ.update(changes)
    launcher = connect(port, world)
    store: dist.Store
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        launcher.set("where it is", str(store.port))
    else:
        at = int(launcher.get("where it is"))
        store = SlowStore(dist.TCPStore("127.0.0.1", at, is_master=False), launcher)
    try:
        dist.init_process_group("taco", store=store, rank=rank, world_size=world)
        dist.destroy_process_group()
    finally:
        del store
        if rank == 0:
            launcher.set(THROUGH, "")


def test_a_first_rank_that_serves_the_store_stays_until_all_have_joined() -> None:
    with Ranks(3) as ranks:
        ranks.run_each(rendezvous_through_rank_0, [(rank, 3, ranks.port, {}) for rank in range(3)])


def test_a_first_rank_that_serves_the_store_stays_until_all_know_why_it_fails() -> None:
    with Ranks(3) as ranks:
        for rank in range(3):
            changes = {"TACO_CHUNK_BYTES": str(65536 * (rank + 1))}
            ranks.begin(rank, rendezvous_through_rank_0, rank, 3, ranks.port, changes)
        for outcome in ranks.gather([0, 1, 2], 30):
            assert outcome.error_type == "VersionMismatchError", outcome


def begin_all(ranks: Ranks, who: list[int], timeout_s: float) -> None:
    for rank in who:
        ranks.begin(rank, rendezvous, rank, ranks.world, ranks.port, timeout_s, {})


def test_a_rank_that_dies_while_the_others_come_is_named() -> None:
    with Ranks(3) as ranks:
        ranks.run(start, 3, ranks.port)
        begin_all(ranks, [1, 2], 20.0)
        await_greeting(ranks.store, 1)
        ranks.kill(1)
        begin_all(ranks, [0], 4.0)
        for outcome in ranks.gather([0, 2], 40):
            assert outcome.error_type == "RendezvousError", outcome
            assert "rank 1 of 3" in outcome.error
            assert "none has failed" in outcome.error


def test_a_first_rank_that_dies_while_it_gathers_the_others_is_named() -> None:
    with Ranks(3) as ranks:
        begin_all(ranks, [0, 1], 4.0)
        time.sleep(0.7)
        ranks.kill(0)  # it has seen rank 1
        begin_all(ranks, [2], 4.0)
        for outcome in ranks.gather([1, 2], 40):
            assert outcome.error_type == "RendezvousError", outcome
            assert "rank 0 of 3" in outcome.error


def test_a_job_started_again_after_a_death_in_the_rendezvous_joins_under_the_same_store() -> None:
    with Ranks(3) as ranks:
        begin_all(ranks, [0, 1], 60.0)
        time.sleep(0.7)
        for rank in (0, 1):
            ranks.kill(rank)
            ranks.gather([rank], 10)
            ranks.restart(rank)
        begin_all(ranks, [0, 1, 2], 60.0)
        for outcome in ranks.gather([0, 1, 2], 60):
            assert outcome.ok, outcome


SERVE_STORE = """
import time, torch.distributed as dist
from datetime import timedelta
store = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
print(store.port, flush=True)
store.wait(["here"], timedelta(seconds=60))
print("here", flush=True)
time.sleep(60)
"""


def rendezvous_for_long(rank: int, port: int) -> None:
    import taco_torch  # noqa: F401

    store = connect(port, 2)
    store.set("here", "1")
    timeout = timedelta(seconds=60)
    dist.init_process_group("taco", store=store, rank=rank, world_size=2, timeout=timeout)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_that_vanishes_is_named(rank: int) -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVE_STORE], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        with Ranks(2) as ranks:
            ranks.begin(rank, rendezvous_for_long, rank, port)
            assert server.stdout.readline() == "here\n"
            time.sleep(1.0)
            server.kill()
            outcome = ranks.gather([rank], 30)[0]
            assert outcome.error_type == "RendezvousError", outcome
            assert f"127.0.0.1:{port}" in outcome.error
            assert "alive" in outcome.error
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("name", ["nosuchif0", "^nosuchif0"])
def test_an_interface_that_does_not_exist(name: str) -> None:
    with Ranks(2) as ranks:
        for rank in range(2):
            environment = {"TACO_IFNAME": name, "TACO_TRANSPORT": "udp"}
            ranks.begin(rank, rendezvous, rank, 2, ranks.port, 5.0, environment)
        for outcome in ranks.gather([0, 1], 30):
            if name.startswith("^"):
                continue  # excluding what is not there harms nobody
            assert outcome.error_type in ("ValueError", "RendezvousError"), outcome
            assert "nosuchif0" in outcome.error
            assert "lo" in outcome.error
