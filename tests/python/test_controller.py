"""The controller as Python calls it: tensors in, tensors out, and an exception of the right type
for each mistake. Its own work is tested in tests/pg/controller/."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks

from taco_torch import _C, AbortedError, MismatchError


@contextmanager
def controller(**options: float) -> Iterator[_C.Controller]:
    assert dist.group.WORLD is not None
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    made = _C.Controller(backend, **options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.shutdown()


def operations_bring_what_they_say() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    with controller() as to:
        mine = torch.full((2, 3), float(rank))
        summed = to.submit(0, "allreduce", "a", [mine])
        averaged = to.submit(0, "allreduce", "b", [mine], op="average", postscale=2.0)
        rows = to.submit(0, "allgather", "c", [torch.full((rank, 2), rank, dtype=torch.int16)])
        for each in (summed, averaged, rows):
            each.wait()
            assert each.done()
        total = float(world * (world - 1) // 2)
        assert bool((mine == rank).all()), "an input that is not in place stays as it is"
        assert summed.outputs[0].shape == (2, 3)
        assert bool((summed.outputs[0] == total).all())
        assert bool((averaged.outputs[0] == 2 * total / world).all())
        expected = [float(r) for r in range(world) for _ in range(r)]
        assert rows.outputs[0].shape == (len(expected), 2)
        assert rows.outputs[0][:, 0].tolist() == expected
        assert rows.outputs[0].dtype == torch.int16

        in_place = to.submit(0, "broadcast", "a", [mine], [mine], root=1)
        in_place.wait()
        assert in_place.outputs[0] is not None
        assert bool((mine == 1).all())
        sent = torch.arange(world, dtype=torch.int64)
        swapped = to.submit(0, "alltoall", "d", [sent])
        swapped.wait()
        assert swapped.outputs[0].tolist() == [rank] * world
        assert swapped.received_splits == [1] * world
        part = to.submit(0, "reducescatter", "e", [torch.ones(world + 1, 2)])
        part.wait()
        assert part.outputs[0].shape == (2 if rank == 0 else 1, 2)
        assert bool((part.outputs[0] == world).all())
        joined = to.submit(0, "join", "f", [])
        joined.wait()
        assert 0 <= joined.last_joined < world


def mistakes_are_value_errors() -> None:
    with controller() as to:
        one = torch.ones(3)
        for kind, tensors, more, words in (
            ("allredduce", [one], {}, "allredduce"),
            ("allreduce", [one], {"op": "mean"}, "mean"),
            ("allreduce", [torch.ones(2, 3).t()], {}, "contiguous"),
            ("allreduce", [one, one.double()], {}, "dtypes"),
            ("allreduce", [one.to_sparse()], {}, "dense CPU"),
            ("allreduce", [], {}, "no tensor"),
            ("allreduce", [one], {"outputs": [torch.ones(4)]}, "shape"),
            ("allgather", [one], {"outputs": [one]}, "outputs itself"),
            ("allgather", [torch.tensor(1.0)], {}, "dimension"),
            ("alltoall", [one], {"splits": [9, 9, 9]}, "splits"),
            ("broadcast", [one], {"root": 7}, "root"),
            ("adasum", [torch.ones(3, dtype=torch.int32)], {}, "floating"),
            ("add_process_set", [], {"ranks": [0, 9]}, "9"),
            ("remove_process_set", [], {"root": 5}, "5"),
        ):
            with pytest.raises(ValueError, match=words):
                to.submit(0, kind, "x", tensors, **more)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="process set 3"):
            to.submit(3, "allreduce", "x", [one])
        first = to.submit(0, "allreduce", "x", [one])
        if not first.done():
            with pytest.raises(ValueError, match="pending"):
                to.submit(0, "allreduce", "x", [one])
        with pytest.raises(ValueError, match="not ended"):
            _ = to.submit(0, "allreduce", f"only {dist.get_rank()}", [one]).outputs
        first.wait()
        for name, value in (("cycle_seconds", -1.0), ("stall_warning_seconds", float("nan"))):
            with pytest.raises(ValueError, match=name), controller(**{name: value}):
                pass


def disagreements_leave_it_usable() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    with controller() as to:
        with pytest.raises(MismatchError, match="float64"):
            to.submit(
                0, "allreduce", "x", [torch.ones(2, dtype=torch.float64 if rank else torch.float32)]
            ).wait()
        again = to.submit(0, "allreduce", "x", [torch.ones(2)])
        again.wait()
        assert again.outputs[0].tolist() == [world, world]


def sets_have_roots_of_all_ranks() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    with controller() as to:
        made = to.submit(0, "add_process_set", "s", [], ranks=[world - 1, 1])
        made.wait()
        number = made.process_set
        assert to.process_sets() == {0: list(range(world)), number: [1, world - 1]}
        one = torch.full((2,), float(rank))
        if rank in (1, world - 1):
            sent = to.submit(number, "broadcast", "x", [one], root=world - 1)
            sent.wait()
            assert sent.outputs[0].tolist() == [world - 1.0] * 2
            with pytest.raises(ValueError, match="root"):
                to.submit(number, "broadcast", "x", [one], root=0)
        else:
            with pytest.raises(ValueError, match="not of process set"):
                to.submit(number, "broadcast", "x", [one], root=1)
        to.submit(0, "remove_process_set", "s", [], root=number).wait()
        assert to.process_sets() == {0: list(range(world))}


def a_shutdown_ends_what_is_pending() -> None:
    with controller() as to:
        pending = to.submit(0, "allreduce", f"only {dist.get_rank()}", [torch.ones(2)])
        if dist.get_rank() == 1:
            to.shutdown()
        with pytest.raises(AbortedError, match="rank 1"):
            pending.wait()
        with pytest.raises(AbortedError, match="rank 1"):
            to.submit(0, "allreduce", "late", [torch.ones(2)])


class _Alarm(Exception):
    pass


def a_wait_hears_signals() -> None:
    def ring(*_: object) -> None:
        raise _Alarm

    with controller() as to:
        pending = to.submit(0, "allreduce", f"only {dist.get_rank()}", [torch.ones(2)])
        before = signal.signal(signal.SIGALRM, ring)
        begin = time.monotonic()
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(_Alarm):
                pending.wait()
        finally:
            signal.signal(signal.SIGALRM, before)
        assert time.monotonic() - begin < 20
        assert not pending.done()
        to.submit(0, "barrier", "b", []).wait()


def a_timeline_tells_of_operations(path: str) -> None:
    with controller() as to:
        if dist.get_rank() == 0:
            to.start_timeline(path, True)
            with pytest.raises(ValueError, match="timeline"):
                to.start_timeline(path, True)
        to.submit(0, "allreduce", "grad.1", [torch.ones(2)]).wait()
        to.submit(0, "barrier", "b", []).wait()
        to.stop_timeline()


def a_forked_child_is_told_so() -> None:
    with controller() as to:
        pending = to.submit(0, "allreduce", f"only {dist.get_rank()}", [torch.ones(2)])
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(20)
                for call in (
                    lambda: to.submit(0, "allreduce", "x", [torch.ones(2)]),
                    to.process_sets,
                    lambda: to.start_timeline("/dev/null", False),
                    to.stop_timeline,
                    pending.wait,
                ):
                    with pytest.raises(AbortedError, match="forked"):
                        call()
                assert pending.done()
                to.shutdown()  # does nothing
                del pending, to
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        to.submit(0, "barrier", "b", []).wait()


def memory_stays_while_it_is_needed() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    with controller() as to:
        mine, other = torch.full((4,), float(rank)), torch.full((4,), 10.0 * rank)
        shared = torch.full((4,), float(rank))

        def submit() -> list[_C.Submission]:
            in_place = [
                to.submit(0, "allreduce", "x", [mine], [mine]),
                to.submit(0, "allreduce", "z", [shared], [shared]),
            ]
            return [*in_place, to.submit(0, "allgather", "y", [other])]

        if rank == 0:
            begun = submit()
            for resize in (
                lambda: mine.detach().resize_(1000),
                lambda: mine.untyped_storage().resize_(0),
            ):
                with pytest.raises(RuntimeError, match="not resizable"):
                    resize()
            with pytest.raises(ValueError, match="pending"):
                to.submit(0, "allreduce", "x", [mine], [mine])
            other.data = torch.zeros(1000)  # the tensor lets go of the memory that is sent
            shared.share_memory_()  # as a queue does that takes it: it is found where it is now
        to.submit(0, "barrier", "b", []).wait()
        if rank != 0:
            begun = submit()
        for each in begun:
            each.wait()
        assert mine.tolist() == shared.tolist() == [world * (world - 1) / 2] * 4
        assert begun[-1].outputs[0].tolist() == [10.0 * r for r in range(world) for _ in range(4)]
        mine.resize_(1000)
        mine.untyped_storage().resize_(0)
        with pytest.raises(ValueError, match="memory is gone"):
            to.submit(0, "allreduce", "x", [mine])


def handles_may_be_dropped() -> None:
    with controller() as to:
        for i in range(100):
            to.submit(0, "allreduce", str(i), [torch.ones(1000)])
        to.submit(0, "barrier", "b", []).wait()


@taco_only
@pytest.mark.parametrize(
    "call",
    [
        operations_bring_what_they_say,
        mistakes_are_value_errors,
        disagreements_leave_it_usable,
        sets_have_roots_of_all_ranks,
        a_shutdown_ends_what_is_pending,
        a_wait_hears_signals,
        a_forked_child_is_told_so,
        memory_stays_while_it_is_needed,
        handles_may_be_dropped,
    ],
    ids=lambda call: str(call.__name__),
)
def test_named(three: Ranks, call: object) -> None:
    three.run(call)  # type: ignore[arg-type]


@taco_only
def test_a_timeline_names_requests(three: Ranks, tmp_path: Path) -> None:
    three.run(a_timeline_tells_of_operations, str(tmp_path / "timeline.json"))
    text = (tmp_path / "timeline.json").read_text()
    for word in ("grad.1", "NEGOTIATE_ALLREDUCE", "TACO_ALLREDUCE", "CYCLE_START"):
        assert word in text
