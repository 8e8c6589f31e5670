"""Elastic training under tacorun: ranks are killed, and others come, while it goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import taco_only
from launching import discovery, end, run, set_hosts, start, until

pytestmark = taco_only

PYTHON = sys.executable

# Every rank notes each step that it has finished; the sum over the ranks of a step is part of the
# model, so that a rank which was not synchronised would differ.
TRAIN = textwrap.dedent("""
    import json, os, sys, time
    import torch
    import horovod.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    notes = open(f"notes-{os.getpid()}", "w", buffering=1)

    @hvd.elastic.run
    def train(state):
        while not state.last:
            batch = torch.randn(16, 8, generator=torch.Generator().manual_seed(state.step))
            mine = batch.chunk(hvd.size())[hvd.rank() % 16]
            state.optimizer.zero_grad()
            (state.model(mine) - mine[:, :4]).square().mean().backward()
            state.optimizer.step()
            state.step += 1
            ends = torch.tensor([float(os.path.exists("stop"))])
            state.last = bool(hvd.allreduce(ends, op=hvd.Max, name="ends")[0])
            note = [time.time(), state.step, hvd.rank(), hvd.size()]
            notes.write(json.dumps(note) + "\\n")
            state.commit()

    state = hvd.elastic.TorchState(model, optimizer, step=0, last=False)
    train(state)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    least = hvd.allreduce(weights, op=hvd.Min, name="least")
    most = hvd.allreduce(weights, op=hvd.Max, name="most")
    assert torch.equal(least, most), "the replicas are identical"
    print("trained", state.step, "steps", flush=True)
    hvd.shutdown()
""")


class Note:
    """A step that a rank has finished."""

    def __init__(self, pid: int, row: list[float]) -> None:
        self.pid = pid
        self.time = row[0]
        self.step, self.rank, self.size = map(int, row[1:])


class Training:
    """A job in a folder."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        (folder / "train.py").write_text(TRAIN)
        command = [PYTHON, "-m", "taco_torch.horovod", "train.py"]
        variables = {"TACO_LOG": "error", "OMP_NUM_THREADS": "1"}
        self.process = start([*words, *command], folder, variables)

    def notes(self) -> list[Note]:
        found = []
        for path in self.folder.glob("notes-*"):
            pid = int(path.name.partition("-")[2])
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    found.append(Note(pid, json.loads(line)))
        return found

    def members(self, size: int, after: float, seconds: float = 120.0) -> list[Note]:
        """The first step that a world of so many ranks has finished after a time, by rank."""
        found: dict[int, Note] = {}

        def is_there() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            found.clear()
            for note in self.notes():
                if note.size == size and note.time > after:
                    first = found.get(note.rank)
                    if first is None or note.time < first.time:
                        found[note.rank] = note
            return len(found) == size

        until(is_there, f"{size} ranks that train", seconds)
        return [found[rank] for rank in range(size)]

    def stop(self) -> str:
        (self.folder / "stop").touch()
        stdout, stderr = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, stderr
        return str(stdout)


@contextlib.contextmanager
def training(folder: Path, *words: str) -> Iterator[Training]:
    made = Training(folder, *words)
    try:
        yield made
    finally:
        end(made.process)


def test_training_goes_on_when_one_of_four_ranks_is_killed(tmp_path: Path) -> None:
    with training(tmp_path, "-np", "4", "--min-np", "2") as made:
        first = made.members(4, 0.0)
        killed = time.time()
        os.kill(first[2].pid, signal.SIGKILL)
        second = made.members(3, killed)
        took = max(note.time for note in second) - killed
        print(f"training goes on after {took:.2f} s")
        assert {note.pid for note in second} == {first[rank].pid for rank in (0, 1, 3)}
        assert min(note.step for note in second) > first[0].step, "from the last commit"
        assert made.stop().count("trained") == 3


def test_rank_0_may_be_the_one_that_is_killed(tmp_path: Path) -> None:
    with training(tmp_path, "-np", "3", "--min-np", "2") as made:
        first = made.members(3, 0.0)
        killed = time.time()
        os.kill(first[0].pid, signal.SIGKILL)
        second = made.members(2, killed)
        assert [note.pid for note in second] == [note.pid for note in first[1:]]
        assert min(note.step for note in second) > 1
        made.stop()


def test_a_rank_that_comes_later_has_what_was_trained(tmp_path: Path) -> None:
    words = ["-np", "2", "--min-np", "1", *discovery(tmp_path, "localhost:2")]
    with training(tmp_path, *words) as made:
        first = made.members(2, 0.0)
        set_hosts(tmp_path, "localhost:2 127.0.0.1:1")
        second = made.members(3, 0.0)
        assert [note.pid for note in second[:2]] == [note.pid for note in first]
        assert second[2].step > first[0].step
        assert made.stop().count("trained") == 3


# The second rank of the first world dies within hvd.init(), where the others wait for it.
DIES_IN_INIT = textwrap.dedent("""
    import os, sys, time
    import taco_torch.horovod as hvd
    from taco_torch.horovod import job

    def dies(*_, **__):
        with open("died.new", "w") as file:
            file.write(str(time.time()))
        os.rename("died.new", "died")
        os._exit(7)

    usual = job.world

    def world():
        place = usual()
        if place.rank == 1 and place.incarnation == "1":
            setattr(*{"store": (job, "find_places"), "group": (job.taco, "ProcessGroupTaco")}
                [sys.argv[1]], dies)
        return place

    job.world = world
    hvd.init()
    print("met", time.time(), hvd.size(), flush=True)
    hvd.barrier()
    hvd.shutdown()
""")


@pytest.mark.parametrize("part", ["store", "group"])
def test_a_death_during_init_is_seen_at_once(tmp_path: Path, part: str) -> None:
    (tmp_path / "dies.py").write_text(DIES_IN_INIT)
    words = ["-np", "3", "--min-np", "2", "-H", "localhost:3", "--start-timeout", "60"]
    done = run([*words, PYTHON, "dies.py", part], tmp_path, {"TACO_LOG": "error"}, timeout=120)
    assert done.returncode == 0, done.stderr
    died = float((tmp_path / "died").read_text())
    met = [line.split() for line in done.stdout.splitlines() if "met " in line]
    assert [words[-1] for words in met] == ["2", "2"]
    assert max(float(words[-2]) for words in met) - died < 5.0
    assert "rank 1 on localhost" in done.stderr
    assert "ended with exit status 7" in done.stderr


def test_a_rank_that_ends_well_in_init_leaves_the_others_with_an_error(tmp_path: Path) -> None:
    """They have run nothing, and must not count as if they had."""
    (tmp_path / "dies.py").write_text(DIES_IN_INIT.replace("os._exit(7)", "os._exit(0)"))
    words = ["-np", "3", "--min-np", "2", "-H", "localhost:3", "--start-timeout", "60"]
    done = run([*words, PYTHON, "dies.py", "store"], tmp_path, {"TACO_LOG": "error"}, timeout=120)
    assert done.returncode == 1, done.stderr
    assert "met " not in done.stdout
    assert "JobEndedError: " in done.stderr
    assert "rank 1 on localhost has ended" in done.stderr


@pytest.mark.whole(instead="test_training_goes_on_when_one_of_four_ranks_is_killed")
def test_a_death_is_survived_many_times(tmp_path: Path) -> None:
    """TACO_TEST_DEATHS says how many times; `pytest -rP` shows how long it took."""
    deaths = int(os.environ.get("TACO_TEST_DEATHS", "5"))
    words = ["-np", "4", "--min-np", "3", "--blacklist-cooldown-range", "1", "1"]
    delays = []
    with training(tmp_path, *words) as made:
        after = 0.0
        for death in range(deaths):
            members = made.members(4, after)
            killed = time.time()
            os.kill(members[death % 4].pid, signal.SIGKILL)
            delays.append(max(note.time for note in made.members(3, killed)) - killed)
            after = time.time()
        made.members(4, after)
        made.stop()
    print(f"{deaths} deaths: median {statistics.median(delays):.2f} s, worst {max(delays):.2f} s")
