"""Deaths, and what may look like one: stops, silences, goodbyes, lost last words."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import BACKEND
from spawn_ranks import Ranks, initialise, wait_for_all
from stderr_file import stderr_into
from torch._C._distributed_c10d import ErrorType

import taco_torch
from taco_torch.groups import taco_backend

pytestmark = pytest.mark.skipif(BACKEND != "taco", reason="behaviour that only taco promises")

_groups: dict[str, dist.ProcessGroup] = {}


def total(count: int = 1000, group: str = "") -> float:
    tensor = torch.ones(count)
    dist.all_reduce(tensor, group=_groups.get(group))
    return float(tensor[0])


def total_then_leave() -> float:
    result = total()
    dist.destroy_process_group()
    return result


def leave() -> None:
    dist.destroy_process_group()


def leave_and_keep_the_group() -> None:
    """As programs do that hold on to a group they have destroyed, in a model's wrapper say."""
    _groups["left"] = dist.group.WORLD
    dist.destroy_process_group()


def make_pair() -> None:
    """A group of ranks 0 and 1 beside the one of all."""
    _groups["pair"] = dist.new_group([0, 1])


def sums_for(seconds: float) -> int:
    """All ranks stop after the same number: rank 0 decides."""
    end = time.monotonic() + seconds
    rounds = 0
    go_on = torch.ones(1)
    while go_on.item() == 1:
        rounds += 1
        assert total() == dist.get_world_size()
        go_on.fill_(1 if time.monotonic() < end else 0)
        dist.broadcast(go_on, 0)
    return rounds


def receive_from(rank: int) -> None:
    dist.recv(torch.zeros(4), rank)


@contextlib.contextmanager
def fresh(world: int, transport: str, **environment: str) -> Iterator[Ranks]:
    with Ranks(world, {"TACO_TRANSPORT": transport, "TACO_LOG": "error", **environment}) as ranks:
        yield ranks.initialise(timeout_s=30)


def test_a_rank_stopped_for_two_seconds_is_not_dead(transport: str) -> None:
    with fresh(3, transport) as ranks:
        for rank in range(3):
            ranks.begin(rank, sums_for, 3.0)
        time.sleep(0.3)
        ranks.kill(1, signal.SIGSTOP)
        time.sleep(2.0)
        ranks.kill(1, signal.SIGCONT)
        outcomes = ranks.gather(range(3), 60)
        assert [outcome.error for outcome in outcomes] == [""] * 3
        assert ranks.run(total) == [3.0] * 3


def error_travels() -> None:
    """As an exception of a pool of processes does: type, text and fields come back."""
    error = None
    try:
        total()
    except RuntimeError as raised:
        error = raised
    assert type(error) is taco_torch.PeerLostError
    for back in (
        *(pickle.loads(pickle.dumps(error, version)) for version in range(2, 6)),
        copy.copy(error),
        copy.deepcopy(error),
    ):
        assert type(back) is taco_torch.PeerLostError
        assert str(back) == str(error)
        assert (back.rank, back.address) == (error.rank, error.address)
        assert back.last_heard_s == error.last_heard_s
    assert error.rank == 1
    assert error.address


def test_a_lost_peer_can_be_pickled(transport: str) -> None:
    with fresh(2, transport) as ranks:
        ranks.run(total)
        ranks.kill(1)
        ranks.begin(0, error_travels)
        assert ranks.gather([0], 30)[0].error == ""


def test_a_silent_peer_is_lost_when_its_time_is_up() -> None:
    with fresh(3, "udp", TACO_PEER_TIMEOUT_MS="1500") as ranks:
        ranks.run(total)
        begin = time.monotonic()  # what is not acknowledged yet may be missed from here on
        ranks.kill(2, signal.SIGSTOP)
        for rank in (0, 1):
            ranks.begin(rank, total)
        outcomes = ranks.gather([0, 1], 30)
        assert time.monotonic() - begin >= 1.0
        ranks.kill(2, signal.SIGCONT)
        for outcome in outcomes:
            assert outcome.error_type == "PeerLostError", outcome
            assert outcome.fields is not None
            assert outcome.fields["rank"] == 2
            assert outcome.seconds < 9.5  # 10 s are the default


def test_a_rank_that_died_between_operations_is_named_by_the_next(transport: str) -> None:
    # By its socket: silence would take longer than anybody waits here.
    with fresh(3, transport, TACO_PEER_TIMEOUT_MS="100000") as ranks:
        ranks.run(total)
        ranks.kill(1)
        time.sleep(0.3)
        for rank in (0, 2):
            ranks.begin(rank, total)
        for outcome in ranks.gather([0, 2], 30):
            assert outcome.error_type == "PeerLostError", outcome
            assert outcome.fields is not None
            assert outcome.fields["rank"] == 1
            assert outcome.fields["address"]


def test_leaving_is_no_failure_for_those_who_need_the_rank_no_more(transport: str) -> None:
    with fresh(3, transport) as ranks:
        ranks.run(make_pair)
        ranks.run(total)
        ranks.begin(2, leave)
        assert ranks.gather([2])[0].ok
        for _ in range(20):
            for rank in (0, 1):
                ranks.begin(rank, total, 1000, "pair")
            for outcome in ranks.gather([0, 1], 30):
                assert outcome.ok, outcome.trace
                assert outcome.value == 2.0


def test_who_left_is_named_to_those_who_still_need_it(transport: str) -> None:
    with fresh(3, transport) as ranks:
        ranks.run(total)
        ranks.begin(0, receive_from, 2)
        ranks.begin(1, receive_from, 2)
        time.sleep(0.2)
        ranks.begin(2, leave)
        for outcome in ranks.gather([0, 1], 30):
            assert outcome.error_type == "PeerLostError", outcome
            assert outcome.fields is not None
            assert outcome.fields["rank"] == 2
            assert "left" in outcome.error or "goodbye" in outcome.error, outcome.error


@pytest.mark.parametrize("when", ["before", "while"])
def test_who_left_before_anybody_had_contact_is_named(transport: str, when: str) -> None:
    with fresh(3, transport) as ranks:
        if when == "while":
            for rank in (0, 2):
                ranks.begin(rank, total)
        ranks.begin(1, leave_and_keep_the_group)
        assert ranks.gather([1])[0].ok
        if when == "before":
            for rank in (0, 2):
                ranks.begin(rank, total)
        for outcome in ranks.gather([0, 2], 40):
            assert outcome.error_type == "PeerLostError", outcome
            assert outcome.fields is not None
            assert outcome.fields["rank"] == 1
            assert outcome.fields["address"]
            assert "left" in outcome.error
            assert outcome.seconds < 10  # the operation's own limit is 30


def test_all_leave_right_after_their_last_operation(transport: str) -> None:
    with Ranks(3, {"TACO_TRANSPORT": transport, "TACO_LOG": "error"}) as ranks:
        for _ in range(10):
            ranks.initialise(timeout_s=30)
            assert ranks.run(total_then_leave) == [3.0] * 3


LIVES = 30
LOSSY_PROGRAM = f"""
import os
import torch.distributed as dist, taco_torch
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
import torch
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, rank == 0,
                      timedelta(seconds=60), wait_for_workers=False)
for life in range({LIVES}):
    dist.init_process_group("taco", store=store, rank=rank, world_size=world,
                            timeout=timedelta(seconds=20))
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor[0] == world
    dist.destroy_process_group()
store.add("done", 1)
while rank == 0 and store.add("done", 0) < world:
    pass
print("rank", rank, "lived {LIVES} times")
"""


@pytest.mark.whole(instead="ManyPaths.WhoHasReceivedAllAndLeavesTellsSoByWhicheverLinkIsLeft")
def test_a_lost_last_acknowledgement_is_no_death() -> None:
    fabric = pytest.importorskip("fabric")
    if why := fabric.why_unavailable():
        pytest.skip(why)
    with fabric.Fabric(hosts=3, loss=0.05) as hosts:
        ranks = hosts.launch([sys.executable, "-c", LOSSY_PROGRAM])
        results = [(process.communicate(timeout=120), process.returncode) for process in ranks]
    assert all(code == 0 for _, code in results), results


def dies_before_it_comes(rank: int, world: int, port: int) -> None:
    if rank == 1:
        os._exit(3)
    initialise(rank, world, port, timeout_s=10)


def has_loaded_this() -> None:
    """A rank that returns from here has started, and imports nothing more."""


def test_a_rank_that_never_comes_is_named(transport: str) -> None:
    with Ranks(3, {"TACO_TRANSPORT": transport, "TACO_LOG": "error"}) as ranks:
        ranks.run(has_loaded_this)
        for rank in range(3):
            ranks.begin(rank, dies_before_it_comes, rank, 3, ranks.port)
        gone, others = ranks.gather([1])[0], ranks.gather([0, 2], 40)
        assert gone.exit_code == 3
        for outcome in others:
            assert outcome.error_type == "RendezvousError", outcome
            assert "rank 1 of 3" in outcome.error
            assert outcome.seconds < 30


def wait_in_time(seconds: float) -> float:
    group = dist.new_group(list(range(dist.get_world_size())))
    taco_backend(group).set_timeout(timedelta(seconds=seconds))
    wait_for_all("the group is made")
    if dist.get_rank() == 1:
        return 0.0
    begin = time.monotonic()
    try:
        dist.all_reduce(torch.ones(250), group=group)
    except dist.DistBackendError as error:
        raise type(error)(f"{time.monotonic() - begin:.3f}|{error}") from None
    return -1.0


def test_a_timeout_says_what_who_and_how_large(transport: str) -> None:
    with fresh(3, transport) as ranks:
        outcomes = ranks.outcomes(wait_in_time, 3.0)
        waits = []
        for rank in (0, 2):
            assert outcomes[rank].error_type == "CollectiveTimeoutError", outcomes[rank]
            waited, text = outcomes[rank].error.split("|", 1)
            waits.append(float(waited))
            assert "all_reduce SUM float32 x 250" in text
            assert "1000 bytes" in text
            assert "not arrived: ranks 1" in text
            assert "sequence" in text
        # Who begins later hears of it from the other one, before its own time is up.
        assert 2.9 < max(waits) < 20


def dump_while_waiting(path: str) -> None:
    with stderr_into(path):
        work = dist.all_reduce(torch.ones(10), async_op=True)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGUSR2)
        time.sleep(1.0)
        work.wait()


def hear_of_a_loss() -> None:
    """By asking, which does not count as having been told."""
    end = time.monotonic() + 20
    while taco_backend().get_error() != ErrorType.REMOTE_ERROR:
        assert time.monotonic() < end
        time.sleep(0.01)


def leave_a_failed_group(path: str, use: bool) -> None:
    with stderr_into(path):
        if use:
            with contextlib.suppress(dist.DistBackendError):
                total()
        dist.destroy_process_group()


@pytest.mark.parametrize("used", [True, False])
def test_a_failure_nobody_heard_of_is_logged_when_the_group_is_destroyed(
    transport: str, used: bool, tmp_path: Path
) -> None:
    with fresh(3, transport) as ranks:
        log = tmp_path / "rank0"
        ranks.run(total)
        ranks.kill(1)
        ranks.begin(2, total)  # hears of the death, and tells rank 0, which runs nothing
        assert ranks.gather([2], 30)[0].error_type == "PeerLostError"
        ranks.begin(0, hear_of_a_loss)
        assert ranks.gather([0], 30)[0].error == ""
        ranks.begin(0, leave_a_failed_group, str(log), used)
        assert ranks.gather([0], 30)[0].ok
        assert ("known only when it was destroyed" in log.read_text()) == (not used)


def test_a_signal_shows_what_every_group_waits_for(transport: str, tmp_path: Path) -> None:
    with fresh(3, transport) as ranks:
        log = tmp_path / "rank0"
        ranks.begin(0, dump_while_waiting, str(log))
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not (
            log.exists() and "all_reduce" in log.read_text()
        ):
            time.sleep(0.05)
        for rank in (1, 2):
            ranks.begin(rank, total, 10)
        assert all(outcome.ok for outcome in ranks.gather([0, 1, 2], 30))
        text = log.read_text()
        assert "all_reduce SUM float32 x 10" in text
        assert "rank" in text
