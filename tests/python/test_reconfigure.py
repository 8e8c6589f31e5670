"""Groups whose members change: torch's reconfigure (2.14 on). docs/elastic.md."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import BACKEND
from spawn_ranks import Outcome, Ranks, initialise, wait_for_all

import taco_torch
from taco_torch.groups import taco_backend

pytestmark = [
    pytest.mark.skipif(BACKEND != "taco", reason="behaviour that only taco promises"),
    pytest.mark.skipif(
        tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14), reason="torch 2.14 brought it"
    ),
]

DEADLINE_S = 60.0


def join_apart(rank: int, world: int, port: int, timeout_s: float = 30.0) -> str:
    """This rank before it has a group; its handle."""
    initialise(rank, world, port, timeout_s=timeout_s, enable_reconfigure=True)
    return dist._get_reconfigure_handle()


def reconfigure(uuid: int, handles: Any, timeout_s: float = 30.0) -> tuple[int, int]:
    timeout = timedelta(seconds=timeout_s)
    dist._reconfigure(uuid, handles, timeout=timeout).wait()
    return dist.get_rank(), dist.get_world_size()


def total() -> float:
    """Tells how many ranks take part, and that a rank's number reaches all others."""
    tensor = torch.full((1000,), 2.0 ** dist.get_rank())
    dist.all_reduce(tensor)
    return float(tensor[7])


def all_of(world: int) -> float:
    return 2.0**world - 1


@contextlib.contextmanager
def apart(world: int, transport: str, **environment: str) -> Iterator[tuple[Ranks, list[str]]]:
    with Ranks(world, {"TACO_TRANSPORT": transport, "TACO_LOG": "error", **environment}) as ranks:
        yield ranks, ranks.run_each(join_apart, [(r, world, ranks.port) for r in range(world)])


def on(
    ranks: Ranks, those: Sequence[int], function: Any, *arguments: Any, deadline_s: float = 60.0
) -> list[Outcome]:
    for rank in those:
        ranks.begin(rank, function, *arguments)
    return ranks.gather(those, deadline_s)


def values(outcomes: Sequence[Outcome]) -> list[Any]:
    for outcome in outcomes:
        assert outcome.ok, outcome.trace or outcome
    return [outcome.value for outcome in outcomes]


def together(ranks: Ranks, those: Sequence[int], uuid: int, handles: Any) -> list[tuple[int, int]]:
    return values(on(ranks, those, reconfigure, uuid, handles))


# Before a group has members, and how it gets them


def supports() -> bool:
    return dist._supports_reconfigure()


def test_a_group_that_may_be_reconfigured_begins_without_members(transport: str) -> None:
    with apart(2, transport) as (ranks, _):
        assert ranks.run(supports) == [True, True]
        for outcome in ranks.outcomes(total):
            assert outcome.error_type == "RendezvousError", outcome
            assert "_reconfigure" in outcome.error


def test_any_other_group_keeps_its_members(ranks: Ranks) -> None:
    for outcome in ranks.outcomes(dist._get_reconfigure_handle):
        assert outcome.error_type == "RendezvousError", outcome
        assert "enable_reconfigure" in outcome.error
    assert ranks.run(total) == [all_of(4)] * 4


def ring() -> float:
    rank, world = dist.get_rank(), dist.get_world_size()
    received = torch.zeros(4)
    work = dist.isend(torch.full((4,), rank + 1.0), (rank + 1) % world)
    dist.recv(received, (rank - 1) % world)
    assert work is not None
    work.wait()
    return float(received[0])


def test_the_order_of_the_handles_is_that_of_the_ranks(transport: str) -> None:
    with apart(3, transport) as (ranks, handles):
        assert together(ranks, range(3), 1, handles) == [(0, 3), (1, 3), (2, 3)]
        assert ranks.run(total) == [all_of(3)] * 3
        assert ranks.run(ring) == [3.0, 1.0, 2.0]
        assert together(ranks, range(3), 2, handles[::-1]) == [(2, 3), (1, 3), (0, 3)]
        assert ranks.run(total) == [all_of(3)] * 3
        assert ranks.run(ring) == [2.0, 1.0, 3.0]


def test_a_set_of_handles_gives_each_a_rank(transport: str) -> None:
    with apart(3, transport) as (ranks, handles):
        found = together(ranks, range(3), 7, set(handles))
        assert sorted(found) == [(0, 3), (1, 3), (2, 3)]
        assert ranks.run(total) == [all_of(3)] * 3


def test_ranks_leave_and_come_back(transport: str) -> None:
    with apart(4, transport) as (ranks, handles):
        together(ranks, range(4), 1, handles)
        assert ranks.run(total) == [all_of(4)] * 4
        others = [0, 1, 3]
        fewer = [handles[rank] for rank in others]
        assert together(ranks, others, 2, fewer) == [(0, 3), (1, 3), (2, 3)]
        assert values(on(ranks, others, total)) == [all_of(3)] * 3
        # The one that was left out still has the old group, in which nobody is left.
        (left_out,) = on(ranks, [2], total)
        assert left_out.error_type == "PeerLostError", left_out
        assert "left the group" in left_out.error
        assert together(ranks, range(4), 3, handles) == [(rank, 4) for rank in range(4)]
        assert ranks.run(total) == [all_of(4)] * 4


def test_groups_of_one_become_a_group_and_part_again(transport: str) -> None:
    with apart(3, transport) as (ranks, handles):
        for rank in range(3):
            assert together(ranks, [rank], 10 + rank, [handles[rank]]) == [(0, 1)]
        assert ranks.run(total) == [1.0] * 3
        together(ranks, range(3), 20, handles)
        assert ranks.run(total) == [all_of(3)] * 3
        for rank in range(3):
            assert together(ranks, [rank], 30 + rank, [handles[rank]]) == [(0, 1)]


def abort() -> str:
    backend = taco_backend()
    backend.abort()
    return str(backend.get_error())


def error_of_the_group() -> str:
    return str(taco_backend().get_error())


def test_a_group_that_was_aborted_goes_on(transport: str) -> None:
    with apart(3, transport) as (ranks, handles):
        together(ranks, range(3), 1, handles)
        assert all(error.endswith("COMM_ERROR") for error in ranks.run(abort))
        together(ranks, range(3), 2, handles)
        assert all(error.endswith("SUCCESS") for error in ranks.run(error_of_the_group))
        assert ranks.run(total) == [all_of(3)] * 3


def links() -> int:
    """How many processes this one is connected to."""
    stats = taco_torch.stats()
    return stats.sessions + stats.shm_links


def test_survivors_keep_their_links_and_give_back_those_of_the_dead(transport: str) -> None:
    with apart(4, transport) as (ranks, handles):
        together(ranks, range(4), 1, handles)
        ranks.run(total)
        ranks.run(ring)
        before = ranks.run(links)
        ranks.kill(2)
        others = [0, 1, 3]
        for outcome in on(ranks, others, total):
            assert outcome.error_type == "PeerLostError", outcome
        together(ranks, others, 2, [handles[rank] for rank in others])
        assert values(on(ranks, others, total)) == [all_of(3)] * 3
        # All had links to all, or to their neighbours in the ring, of which the dead was two's. Its
        # link goes once an engine has nothing more to do with it.
        deadline = time.monotonic() + DEADLINE_S
        while True:
            after = values(on(ranks, others, links))
            if after[1] < before[1] and after[2] < before[3]:
                break
            assert time.monotonic() < deadline, f"links before {before}, of 0, 1 and 3 now {after}"
        assert after[0] <= before[0]
        together(ranks, others, 3, [handles[rank] for rank in others])
        assert values(on(ranks, others, links)) == after


LARGE = 2 * 2**20 + 3  # elements of four bytes: 8 MiB, which no number of engines divides


def large_total() -> tuple[float, int]:
    """As total() does, by a large operation; and how many engines have carried it out."""
    tensor = torch.full((LARGE,), 2.0 ** dist.get_rank())
    dist.all_reduce(tensor)
    assert bool((tensor == tensor[0]).all())
    return float(tensor[0]), taco_torch.flight_recorder()["entries"][-1]["engines"]


def test_a_group_over_several_engines_goes_on_over_all_of_them(transport: str) -> None:
    with apart(3, transport, TACO_HARP_ENGINES="2") as (ranks, handles):
        together(ranks, range(3), 1, handles)
        assert ranks.run(large_total) == [(all_of(3), 2)] * 3
        others = [0, 2]
        left = [handles[rank] for rank in others]
        together(ranks, others, 2, left)
        assert values(on(ranks, others, large_total)) == [(all_of(2), 2)] * 2
        together(ranks, range(3), 3, handles)
        assert ranks.run(large_total) == [(all_of(3), 2)] * 3
        ranks.kill(1)
        for outcome in on(ranks, others, large_total):
            assert outcome.error_type == "PeerLostError", outcome
        together(ranks, others, 4, left)
        assert values(on(ranks, others, large_total)) == [(all_of(2), 2)] * 2


# Bad input


def refused(outcomes: Sequence[Outcome], error_type: str, *words: str) -> None:
    for outcome in outcomes:
        assert outcome.error_type == error_type, outcome
        for word in words:
            assert word in outcome.error, outcome.error


def test_bad_handles_are_named_before_anybody_is_asked(transport: str) -> None:
    with apart(2, transport) as (ranks, handles):
        together(ranks, range(2), 1, handles)
        first, second = handles

        def ask(handles: Any) -> list[Outcome]:
            return ranks.outcomes(reconfigure, 2, handles)

        refused(ask([]), "ValueError", "no rank would be left")
        refused(ask([first, second, first]), "ValueError", "handles 0 and 2 are of the same rank")
        refused(ask([first, second, "gloo:0:1"]), "ValueError", "handle 2", '"gloo:0:1"')
        refused(ask([first, second, second[:-9]]), "ValueError", "handle 2", "damaged")
        other_version = "taco-member-9:" + second.split(":")[1]
        refused(ask([first, second, other_version]), "VersionMismatchError", "taco-member-9")
        (outcome,) = on(ranks, [0], reconfigure, 2, [second])
        refused([outcome], "ValueError", "own handle is not among the 1 handle")
        # Nobody has lost anything by it, and the number is still to be had.
        assert ranks.run(total) == [all_of(2)] * 2
        together(ranks, range(2), 2, handles)
        assert ranks.run(total) == [all_of(2)] * 2


def test_a_handle_of_another_job_is_refused(transport: str) -> None:
    with apart(2, transport) as (ranks, handles), apart(1, transport) as (_, foreign):
        refused(
            ranks.outcomes(reconfigure, 1, [*handles, *foreign]),
            "ValueError",
            "handle 2 is of another job",
        )


def test_a_handle_of_a_rank_with_other_settings_is_refused(transport: str) -> None:
    environment = {"TACO_TRANSPORT": transport, "TACO_LOG": "error"}
    own = [{}, {"TACO_CHUNK_BYTES": "65536"}]
    with Ranks(2, environment, own) as ranks:
        handles = ranks.run_each(join_apart, [(rank, 2, ranks.port) for rank in range(2)])
        refused(
            ranks.outcomes(reconfigure, 1, handles),
            "VersionMismatchError",
            "TACO_CHUNK_BYTES=65536",
        )


def test_a_number_is_used_once(transport: str) -> None:
    with apart(2, transport) as (ranks, handles):
        together(ranks, range(2), 5, handles)
        refused(
            ranks.outcomes(reconfigure, 5, handles), "RendezvousError", "uuid 5 was already used"
        )
        together(ranks, range(2), 6, handles)


_running: list[Any] = []


def start_a_receive() -> None:
    _running.append(dist.irecv(torch.zeros(4), 1 - dist.get_rank()))


def finish_the_receive() -> None:
    dist.send(torch.ones(4), 1 - dist.get_rank())
    _running.pop().wait()


def test_a_group_is_not_reconfigured_while_operations_run(transport: str) -> None:
    with apart(2, transport) as (ranks, handles):
        together(ranks, range(2), 1, handles)
        ranks.run(start_a_receive)
        refused(ranks.outcomes(reconfigure, 2, handles), "ValueError", "while 1 operation runs")
        ranks.run(finish_the_receive)
        together(ranks, range(2), 2, handles)


def test_who_reconfigures_with_other_members_is_named_and_the_old_group_stays(
    transport: str,
) -> None:
    with apart(3, transport) as (ranks, handles):
        together(ranks, range(3), 1, handles)
        for rank in range(3):
            ranks.begin(rank, reconfigure, 2, handles[1:] if rank == 2 else handles)
        outcomes = ranks.gather(range(3), DEADLINE_S)
        refused(outcomes, "MismatchError", "disagree about the members", "has 2")
        assert ranks.run(total) == [all_of(3)] * 3
        together(ranks, range(3), 3, handles)
        assert ranks.run(total) == [all_of(3)] * 3


def test_who_does_not_come_is_named(transport: str) -> None:
    with apart(3, transport) as (ranks, handles):
        ranks.begin(0, reconfigure, 1, handles, 3.0)
        ranks.begin(1, reconfigure, 1, handles, 30.0)  # for as long as rank 0 may be late
        refused(ranks.gather([0, 1], DEADLINE_S), "RendezvousError", "did not come: ranks 2")
        together(ranks, range(3), 2, handles)
        assert ranks.run(total) == [all_of(3)] * 3


def destroy_while_waiting(uuid: int, handles: list[str]) -> str:
    raised: list[str] = []

    def wait() -> None:
        try:
            reconfigure(uuid, handles, 600.0)
        except taco_torch.AbortedError as error:
            raised.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    end = time.monotonic() + DEADLINE_S
    while "group '0'" not in taco_torch.dump():  # until it has begun
        assert time.monotonic() < end
        time.sleep(0.002)
    dist.destroy_process_group()
    waiting.join(DEADLINE_S)
    return "".join(raised)


def test_destroying_the_group_ends_the_wait_for_its_members(transport: str) -> None:
    with apart(2, transport) as (ranks, handles):
        (outcome,) = on(ranks, [0], destroy_while_waiting, 1, handles)
        assert "was destroyed" in outcome.value, outcome


def test_who_is_dead_is_named(transport: str) -> None:
    with apart(3, transport) as (ranks, handles):
        together(ranks, range(3), 1, handles)
        ranks.run(total)
        ranks.kill(1)
        others = [0, 2]
        refused(on(ranks, others, reconfigure, 2, handles), "PeerLostError", "rank 1")
        together(ranks, others, 3, [handles[0], handles[2]])
        assert values(on(ranks, others, total)) == [all_of(2)] * 2


# Training through deaths


@dataclass(frozen=True)
class Death:
    """A rank, by its handle, that dies in the backward pass of a step and notes the time."""

    handle: str
    step: int
    note: Path


class Trainer:
    """A rank of a data-parallel job that goes on with fewer ranks, or with more."""

    def __init__(self, handle: str) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(12, 64), torch.nn.Tanh(), torch.nn.Linear(64, 5)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.handle, self.handles, self.uuid, self.step = handle, [handle], 0, 0
        self.ddp: Any = None
        self.recovered_at = 0.0

    def enter(self, uuid: int, handles: list[str]) -> None:
        """The group of these, which goes on from where the first of those is that have come
        furthest."""
        self.ddp = None
        reconfigure(uuid, handles)
        self.uuid, self.handles = uuid, handles
        world = len(handles)
        furthest = torch.tensor(self.step * world + world - 1 - dist.get_rank())
        dist.all_reduce(furthest, op=dist.ReduceOp.MAX)
        self.recovered_at = time.time()
        self.step = int(furthest) // world
        for parameter in self.model.parameters():
            dist.broadcast(parameter.data, world - 1 - int(furthest) % world)
        self.ddp = torch.nn.parallel.DistributedDataParallel(self.model, bucket_cap_mb=0.001)

    def train_step(self, death_note: Path | None) -> float:
        generator = torch.Generator().manual_seed(self.step)
        rows = torch.randn(24, 12, generator=generator).chunk(dist.get_world_size())
        if death_note:
            self.model[0].weight.register_hook(lambda _: self.die(death_note))
        self.optimizer.zero_grad()
        inputs = rows[dist.get_rank()]
        loss = (self.ddp(inputs) - inputs[:, :5]).square().mean()
        loss.backward()
        self.optimizer.step()
        assert not death_note
        return float(loss.detach())

    def die(self, death_note: Path) -> None:
        death_note.write_text(repr(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)

    def lost_in(self, death_note: Path | None, losses: list[float]) -> int | None:
        """Trains a step; the rank that was lost in it."""
        try:
            losses.append(self.train_step(death_note))
        except taco_torch.PeerLostError as error:
            return error.rank
        self.step += 1
        return None

    def train(self, until: int, death: Death | None) -> list[float]:
        losses: list[float] = []
        while self.step < until:
            if death is not None and death.step == self.step:
                wait_for_all(f"death {self.uuid}")  # nobody fails in the step before
            dies = death is not None and (death.handle, death.step) == (self.handle, self.step)
            lost = self.lost_in(death.note if death and dies else None, losses)
            if lost is not None:
                left = [handle for rank, handle in enumerate(self.handles) if rank != lost]
                self.enter(self.uuid + 1, left)
        return losses


_trainer: list[Trainer] = []


def begin_to_train(rank: int, world: int, port: int) -> str:
    handle = join_apart(rank, world, port)
    _trainer[:] = [Trainer(handle)]
    return handle


def enter(uuid: int, handles: list[str]) -> None:
    _trainer[0].enter(uuid, handles)


def train(until: int, death: Death | None = None) -> tuple[list[float], float]:
    """The losses of its steps; one rank dies in the middle of one."""
    losses = _trainer[0].train(until, death)
    return losses, _trainer[0].recovered_at


def begun(world: int, transport: str) -> tuple[Ranks, list[str]]:
    ranks = Ranks(world, {"TACO_TRANSPORT": transport, "TACO_LOG": "error"})
    handles = ranks.run_each(begin_to_train, [(r, world, ranks.port) for r in range(world)])
    values(on(ranks, range(world), enter, 1, handles))
    return ranks, handles


def compressed_steps(kind: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(256, 128)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    taco_torch.lightcc.compress(ddp, kind, threshold=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        inputs = torch.randn(8, 256, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (ddp(inputs + dist.get_rank())).square().mean().backward()
        optimizer.step()
    largest = model.weight.detach().clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    assert torch.equal(largest, model.weight), "replicas are identical"


@pytest.mark.parametrize("kind", ["topk", "float16"])
def test_gradients_are_compressed_anew_between_the_hosts_that_are_left(kind: str) -> None:
    environment = {"TACO_LOG": "error"}
    own = [{"TACO_HOST_ID": f"host-{rank // 2}"} for rank in range(4)]
    with Ranks(4, environment, own) as ranks:
        handles = ranks.run_each(join_apart, [(rank, 4, ranks.port) for rank in range(4)])
        together(ranks, range(4), 1, handles)
        ranks.run(compressed_steps, kind)
        others = [0, 2, 3]
        together(ranks, others, 2, [handles[rank] for rank in others])
        values(on(ranks, others, compressed_steps, kind))


@dataclass
class Story:
    """Losses and delays that the survivors saw, change by change."""

    losses: list[list[float]]  # of all survivors
    delays: list[float]  # from a death to the end of the first all_reduce of those that go on


def shrinks_and_grows(changes: int, transport: str, deaths: Path | None) -> Story:
    """One of four ranks goes in the middle of training, the others go on, one comes in its place:
    again and again. It dies in mid step where there is a folder for `deaths`, and leaves in good
    order before that step otherwise."""
    story = Story([], [])
    ranks, handles = begun(4, transport)
    with ranks:
        for change in range(changes):
            goes, steps = change % 4, 3 * (change + 1)
            others = [rank for rank in range(4) if rank != goes]
            if deaths:
                death = Death(handles[goes], steps - 2, deaths / f"{transport}-{change}")
                outcomes = on(ranks, range(4), train, steps, death)
                assert outcomes[goes].exit_code == -signal.SIGKILL
                found = values([outcomes[rank] for rank in others])
                died_at = float(death.note.read_text())
                story.delays.append(max(recovered for _, recovered in found) - died_at)
                story.losses += [losses for losses, _ in found]
                ranks.restart(goes)
                ranks.begin(goes, begin_to_train, goes, 4, ranks.port)
                (handles[goes],) = values(ranks.gather([goes]))
                ranks.broken = False
            else:
                whole = values(on(ranks, range(4), train, steps - 2))
                left = [handles[rank] for rank in others]
                values(on(ranks, others, enter, 101 + 2 * change, left))
                rest = values(on(ranks, others, train, steps))
                for rank, (losses, _) in zip(others, rest, strict=True):
                    story.losses.append(whole[rank][0] + losses)
            values(on(ranks, range(4), enter, 102 + 2 * change, handles))
        last = values(on(ranks, range(4), train, 3 * changes + 2))
        story.losses += [losses for losses, _ in last]
    return story


def test_a_job_that_loses_ranks_and_takes_new_ones_trains_as_if_they_had_left_in_order(
    transport: str, tmp_path: Path
) -> None:
    compare(4, transport, tmp_path)


def compare(changes: int, transport: str, folder: Path) -> None:
    killed = shrinks_and_grows(changes, transport, folder)
    planned = shrinks_and_grows(changes, transport, None)
    assert len(killed.losses) == 3 * changes + 4
    assert killed.losses == planned.losses, "bit by bit"
    print(
        f"{changes} deaths over {transport}, from death to the next all_reduce: "
        f"median {statistics.median(killed.delays):.3f} s, worst {max(killed.delays):.3f} s"
    )


@pytest.mark.whole(
    instead="test_a_job_that_loses_ranks_and_takes_new_ones_trains_as_if_they_had_left_in_order"
)
def test_a_job_shrinks_and_grows_many_times(transport: str, tmp_path: Path) -> None:
    """TACO_TEST_DEATHS says how many times; `pytest -rP` shows how long it took."""
    compare(int(os.environ.get("TACO_TEST_DEATHS", "12")), transport, tmp_path)
