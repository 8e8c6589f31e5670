"""A job's beginning and end."""

from __future__ import annotations

import json
import os
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from horovod_ranks import enter, joined, raises, still_works
from launching import until
from spawn_ranks import Ranks
from torch.utils.data import DataLoader, Dataset
from torchrun import run_forked
from warm_python import WarmPython

import taco_torch.horovod as hvd
from taco_torch.errors import PeerLostError, VersionMismatchError
from taco_torch.horovod import job
from taco_torch.launch import member


@pytest.fixture(scope="module")
def python() -> Iterator[WarmPython]:
    with WarmPython(
        ["torch._dynamo", "taco_torch.backend", "taco_torch.horovod.optimizer"]
    ) as made:
        yield made


@pytest.fixture
def fresh() -> Iterator[Ranks]:
    """Three processes of its own, which have joined."""
    with Ranks(3, {"TACO_LOG": "error"}) as made:
        yield joined(made)


def tells() -> tuple[int, ...]:
    assert hvd.is_initialized()
    assert hvd.is_homogeneous()
    return (
        hvd.rank(),
        hvd.size(),
        hvd.local_rank(),
        hvd.local_size(),
        hvd.cross_rank(),
        hvd.cross_size(),
    )


def test_ranks_know_their_places(hvd3: Ranks) -> None:
    assert hvd3.run(tells) == [(rank, 3, rank, 3, 0, 1) for rank in range(3)]


def comes_again(times: int) -> None:
    for turn in range(times):
        hvd.shutdown()
        assert not hvd.is_initialized()
        hvd.init()
        hvd.init()  # does nothing
        assert hvd.allreduce(torch.full((2,), float(turn)), op=hvd.Sum).tolist() == [3.0 * turn] * 2


def test_a_hundred_incarnations_of_a_job(hvd3: Ranks) -> None:
    hvd3.run(comes_again, 100)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def leaves_nothing() -> None:
    comes_again(3)
    threads, files = threading.active_count(), descriptors()
    comes_again(20)
    assert threading.active_count() <= threads
    assert descriptors() <= files + 3


def test_incarnations_leave_neither_threads_nor_descriptors(hvd3: Ranks) -> None:
    hvd3.run(leaves_nothing)


def is_used_without_a_job() -> None:
    assert not hvd.is_initialized()
    for call in (hvd.rank, hvd.size, hvd.local_rank, hvd.cross_size, hvd.is_homogeneous):
        raises(ValueError, call, "hvd.init()")
    for call in (
        lambda: hvd.allreduce(torch.ones(2)),
        lambda: hvd.broadcast_(torch.ones(2), 0),
        lambda: hvd.add_process_set([0]),
        lambda: hvd.global_process_set.size(),
        lambda: hvd.start_timeline("x.json"),
        hvd.barrier,
        hvd.join,
    ):
        raises(hvd.HorovodInternalError, call, "hvd.init()")
    hvd.shutdown()  # does nothing
    assert not hvd.mpi_built()
    assert not hvd.gloo_enabled()
    assert hvd.nccl_built() == 0
    rounded, context = hvd.Compression.fp16.compress(torch.ones(2))
    assert hvd.Compression.fp16.decompress(rounded, context).dtype == torch.float32
    whole = torch.ones(2, dtype=torch.int64)
    assert hvd.Compression.fp16.compress(whole)[0] is whole


def leaves_and_uses_it() -> None:
    hvd.shutdown()
    is_used_without_a_job()
    hvd.init()
    still_works()


def test_without_a_job_everything_says_so() -> None:
    is_used_without_a_job()


def test_after_shutdown_everything_says_so(hvd3: Ranks) -> None:
    hvd3.run(leaves_and_uses_it)


def leaves_with_pending() -> None:
    if hvd.rank() == 0:  # nobody else ever submits these
        handles = [hvd.allreduce_async(torch.ones(4), name=f"lonely {n}") for n in range(5)]
        hvd.shutdown()
        for handle in handles:
            raises(hvd.HorovodInternalError, lambda handle=handle: hvd.synchronize(handle))
    else:
        text = raises(hvd.HorovodInternalError, lambda: hvd.allreduce(torch.ones(1), name="mine"))
        assert text
        hvd.shutdown()
    hvd.init()
    still_works()


def test_shutdown_ends_what_is_pending_on_all_ranks(fresh: Ranks) -> None:
    fresh.run(leaves_with_pending, deadline_s=60)


def dies_alone() -> None:
    if hvd.rank() == 2:
        os._exit(3)
    begin = time.monotonic()
    raises(hvd.HorovodInternalError, lambda: hvd.allreduce(torch.ones(1)))
    assert time.monotonic() - begin < 20
    hvd.shutdown()


def test_a_lost_rank_is_an_internal_error_to_the_others(fresh: Ranks) -> None:
    outcomes = fresh.outcomes(dies_alone, deadline_s=60)
    assert [outcome.ok for outcome in outcomes] == [True, True, False], outcomes


def with_torch_groups(port: int) -> None:
    rank, size = hvd.rank(), hvd.size()
    store = dist.TCPStore("127.0.0.1", port, size, False, wait_for_workers=False)
    store = dist.PrefixStore("theirs", store)
    for backend in ("gloo", "taco"):
        own = dist.PrefixStore(backend, store)
        dist.init_process_group(backend, store=own, rank=rank, world_size=size)
        tensor = torch.ones(3)
        handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum)
        dist.all_reduce(tensor)
        assert tensor.tolist() == hvd.synchronize(handle).tolist() == [float(size)] * 3
        dist.destroy_process_group()
        still_works()


def test_the_program_s_own_groups_are_left_alone(hvd3: Ranks) -> None:
    hvd3.run(with_torch_groups, hvd3.port)


def forks() -> None:
    numbers, own = tells(), hvd.add_process_set([hvd.size() - 1])
    places = [(each.size(), each.included()) for each in (hvd.global_process_set, own)]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert tells() == numbers
            assert not hvd.mpi_threads_supported()
            assert hvd.global_process_set.rank() == numbers[0]
            assert [(each.size(), each.included()) for each in (hvd.global_process_set, own)] == (
                places
            )
            assert hvd.process_set_ids() == [0, own.process_set_id]
            raises(hvd.HorovodInternalError, lambda: hvd.allreduce(torch.ones(1)), "hvd.init()")
            for call in (
                hvd.barrier,
                hvd.join,
                hvd.stop_timeline,
                lambda: hvd.add_process_set([0]),
                lambda: hvd.remove_process_set(own),
            ):
                raises(hvd.NotInitializedError, call, "forked")
            hvd.shutdown()
            assert not hvd.is_initialized()
            raises(hvd.NotInitializedError, hvd.rank, "hvd.init()")
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    hvd.remove_process_set(own)
    still_works()


def test_a_forked_child_is_told_of_its_parents_job_and_has_none(hvd3: Ranks) -> None:
    hvd3.run(forks)


class _Places(Dataset[tuple[int, ...]]):
    """In each item, what hvd says where it is read."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, _: int) -> tuple[int, ...]:
        return (os.getpid(), *tells())


def loads_data() -> None:
    rows = list(DataLoader(_Places(), None, num_workers=2, multiprocessing_context="fork"))
    assert os.getpid() not in {row[0] for row in rows}
    assert [tuple(row[1:]) for row in rows] == [tells()] * 8
    still_works()


def test_workers_of_a_data_loader_are_told_their_rank(hvd3: Ranks) -> None:
    hvd3.run(loads_data)


def begins_with_sets(kind: str) -> None:
    hvd.shutdown()
    first, second = hvd.ProcessSet([2, 0]), hvd.ProcessSet([1])
    if kind == "good":
        hvd.init(process_sets=[first, second])
        assert (first.process_set_id, second.process_set_id) == (1, 2)
        assert hvd.process_set_ids() == [0, 1, 2]
    elif kind == "twice":
        again = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([1, 0])]
        raises(ValueError, lambda: hvd.init(process_sets=again), "already")
    elif kind == "beyond":
        raises(ValueError, lambda: hvd.init(process_sets=[hvd.ProcessSet([7])]), "beyond 2")
    elif kind == "all":
        raises(ValueError, lambda: hvd.init(process_sets=[hvd.ProcessSet(range(3))]), "already")
    else:
        raises(ValueError, lambda: hvd.init(comm=[0, 1]), "process sets")
    assert hvd.is_initialized() == (kind == "good")
    hvd.shutdown()
    assert first.process_set_id is None
    hvd.init(process_sets="dynamic")
    still_works()


@pytest.mark.parametrize("kind", ["good", "twice", "beyond", "all", "comm"])
def test_process_sets_of_init(hvd3: Ranks, kind: str) -> None:
    hvd3.run(begins_with_sets, kind)


def writes_a_timeline(path: Path, by_variable: bool) -> None:
    if by_variable:
        hvd.shutdown()
        os.environ["HOROVOD_TIMELINE"] = str(path)
        hvd.init()
        del os.environ["HOROVOD_TIMELINE"]
    else:
        hvd.start_timeline(str(path), mark_cycles=True)
    hvd.allreduce(torch.ones(3), name="seen")
    hvd.barrier()
    if hvd.rank() == 0:
        for text in ("NEGOTIATE_ALLREDUCE", "allreduce.seen"):  # while the timeline goes on
            until(lambda text=text: text in path.read_text(), f"{text} on disk")
    hvd.stop_timeline()
    hvd.allreduce(torch.ones(3), name="unseen")
    if hvd.rank() == 0:
        json.loads(path.read_text())
        assert "unseen" not in path.read_text()
    hvd.barrier()


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_timeline(hvd3: Ranks, tmp_path: Path, by_variable: bool) -> None:
    hvd3.run(writes_a_timeline, tmp_path / "trace.json", by_variable)


def begins_with(name: str, value: str) -> None:
    hvd.shutdown()
    os.environ[name] = value
    raises(ValueError, hvd.init, name, value)
    del os.environ[name]
    hvd.init()
    still_works()


def test_a_malformed_variable_is_an_error_of_init(hvd3: Ranks) -> None:
    hvd3.run(begins_with, "HOROVOD_FUSION_THRESHOLD", "64MB")


def waits_for_one_that_never_comes(port: int) -> None:
    os.environ["HOROVOD_START_TIMEOUT"] = "1"
    raises(hvd.HorovodInternalError, lambda: enter(0, 2, port), "[1] of 2")


def test_ranks_that_do_not_come_are_named() -> None:
    with Ranks(1, {"TACO_LOG": "error"}) as ranks:
        ranks.run(waits_for_one_that_never_comes, ranks.port)


@pytest.mark.parametrize(
    ("error", "lost", "times"),
    [
        (hvd.HorovodInternalError("nobody came"), "rank 2 was lost", 20),
        (hvd.HorovodInternalError("no such address"), "", 3),
        (PeerLostError("silent"), "", 3),
        (VersionMismatchError("0.1 and 0.2"), "rank 2 was lost", 1),
    ],
    ids=str,
)
def test_init_is_tried_again_while_the_launcher_tells_of_losses(
    error: Exception,
    lost: str,
    times: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tried: list[int] = []

    def fails() -> None:
        tried.append(1)
        raise error

    monkeypatch.setattr(job, "start", fails)
    monkeypatch.setattr(member, "present", lambda: True)
    monkeypatch.setattr(member, "lost", lambda: lost)
    with pytest.raises(type(error)) as found:
        hvd.init()
    assert found.value is error
    assert len(tried) == times
    assert capsys.readouterr().err.count(str(error)) == times - 1, "the last one is raised"


ALONE = """
    import torch, taco_torch.horovod as hvd
    hvd.init()
    assert (hvd.rank(), hvd.size(), hvd.local_size(), hvd.cross_size()) == (0, 1, 1, 1)
    assert hvd.allreduce(torch.ones(2)).tolist() == [1.0, 1.0]
    assert hvd.allgather(torch.ones(2)).tolist() == [1.0, 1.0]
    assert hvd.join() == 0
    net = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1))
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    print("alone")
"""
TOGETHER = """
    import torch, torch.distributed as dist, taco_torch.horovod as hvd
    dist.init_process_group("gloo")  # serves its own keys at the same address
    hvd.init()
    assert hvd.size() == dist.get_world_size() == 2
    assert (hvd.rank(), hvd.local_rank()) == (dist.get_rank(),) * 2
    assert hvd.cross_size() == 1
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [2.0, 2.0]
    dist.destroy_process_group()
    print("together")
"""


def test_a_process_alone(python: WarmPython) -> None:
    launchers = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    environment = {name: text for name, text in os.environ.items() if name not in launchers}
    done = python.run(["-c", textwrap.dedent(ALONE)], environment)
    assert (done.returncode, done.stdout) == (0, "alone\n"), done.stderr


def test_under_torchrun_beside_a_default_group(python: WarmPython) -> None:
    """And leaving without shutdown()."""
    done = run_forked(python, ["-c", textwrap.dedent(TOGETHER)], 2)
    assert (done.returncode, done.stdout) == (0, "together\n" * 2), done.stderr
