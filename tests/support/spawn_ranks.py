"""Real processes that act as the ranks of a job, for tests.

``Ranks`` starts them once; ``run()`` has all call one function and gathers what they return,
``outcomes()`` also takes it that some fail or die. Everything has a deadline, and the processes are
ended by their own pid, also when a test fails. A ``Pool`` keeps them for further tests.

The processes are forked from a server that has imported torch already, so that starting one takes
milliseconds. Functions and arguments travel by pickle: functions must stand at module level.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_context = multiprocessing.get_context("forkserver")
# torch._dynamo is loaded with the first optimizer of a process: as long again as torch itself. The
# module of a test, where its functions stand, imports pytest: most of what a process starts with.
_context.set_forkserver_preload(
    [
        "torch",
        "torch._dynamo",
        "torch.distributed.fsdp",
        "torch.distributed.checkpoint",
        "taco_torch",
        "pytest",
        "frozen_heap",
    ]
)

START_DEADLINE_S = 90.0
# Direct writes to a file may end on a worker of the kernel, and where programs keep all cores busy
# Linux 6.18 has been seen to let none of those run for a whole minute.
GROUP_TIMEOUT_S = 120.0
DEADLINE_S = 180.0


@dataclass
class Outcome:
    """The outcome of a call on one rank."""

    value: Any = None
    error: str = ""  # "" when it returned; else the exception's text
    error_type: str = ""
    fields: dict[str, Any] | None = None  # attributes of a PeerLostError
    trace: str = ""
    exit_code: int | None = None  # set when the process is gone
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.error_type and self.exit_code is None


class RankFailure(AssertionError):
    """Some rank failed where none should."""


def connect(port: int, world: int) -> dist.TCPStore:
    """The store that the test process serves; it outlives every group, as torchrun's does."""
    return dist.TCPStore(
        "127.0.0.1", port, world, False, timeout=timedelta(seconds=60), wait_for_workers=False
    )


def initialise(
    rank: int,
    world: int,
    port: int,
    backend: str = "taco",
    timeout_s: float = GROUP_TIMEOUT_S,
    **more: Any,
) -> None:
    """Joins the default group; ``more`` goes to init_process_group as it is."""
    import taco_torch  # noqa: F401

    dist.init_process_group(
        backend,
        store=connect(port, world),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=timeout_s),
        **more,
    )


def wait_for_all(name: str) -> None:
    """Returns once every rank of the default group has called it, by the store alone: before a rank
    ends itself, since what it had received but not acknowledged would be a send that failed."""
    store = dist.distributed_c10d._get_default_store()
    if store.add(name, 1) == dist.get_world_size():
        store.set(f"{name}: all", "")
    store.wait([f"{name}: all"], timedelta(seconds=60))


def _serve(
    environment: dict[str, str],
    enter: Callable[[], None] | None,
    pipe: multiprocessing.connection.Connection,
) -> None:
    if enter is not None:
        enter()
    os.environ.update(environment)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            break
        begin = time.monotonic()
        outcome = Outcome()
        try:
            outcome.value = function(*arguments)
        except BaseException as error:
            outcome.error_type = type(error).__name__
            outcome.error = str(error)
            outcome.trace = traceback.format_exc()
            names = ("rank", "address", "last_heard_s")
            if all(hasattr(error, name) for name in names):
                outcome.fields = {name: getattr(error, name) for name in names}
        outcome.seconds = time.monotonic() - begin
        pipe.send(outcome)


class Ranks:
    """``world`` processes. Use as a context manager, or call ``close()``.

    ``own`` holds variables by rank; each rank first calls its function of ``enter``, if given.
    """

    def __init__(
        self,
        world: int,
        environment: Mapping[str, str] | None = None,
        own: Sequence[Mapping[str, str]] | None = None,
        enter: Sequence[Callable[[], None]] | None = None,
    ) -> None:
        self.world = world
        self.store = dist.TCPStore("127.0.0.1", 0, world, True, wait_for_workers=False)
        self._environments = [
            {**(environment or {}), **(own[rank] if own else {})} for rank in range(world)
        ]
        self._enter = list(enter) if enter else [None] * world
        self._pipes: list[multiprocessing.connection.Connection] = []
        self._processes: list[Any] = []
        self.broken = False
        multiprocessing.forkserver.ensure_running()
        for rank in range(world):
            self._start(rank)

    def _start(self, rank: int) -> None:
        ours, theirs = _context.Pipe()
        process = _context.Process(
            target=_serve,
            args=(self._environments[rank], self._enter[rank], theirs),
            name=f"rank-{rank}",
            daemon=False,
        )
        process.start()
        theirs.close()
        self._pipes.insert(rank, ours)
        self._processes.insert(rank, process)

    @property
    def port(self) -> int:
        return int(self.store.port)

    def pid(self, rank: int) -> int:
        return int(self._processes[rank].pid)

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid(rank), number)

    def restart(self, rank: int) -> None:
        """A fresh process in place of a dead one."""
        self._processes.pop(rank).join(10)
        self._pipes.pop(rank).close()
        self._start(rank)

    def initialise(self, backend: str = "taco", timeout_s: float = GROUP_TIMEOUT_S) -> Ranks:
        self.run_each(
            initialise,
            [(rank, self.world, self.port, backend, timeout_s) for rank in range(self.world)],
            START_DEADLINE_S,
        )
        return self

    def begin(self, rank: int, function: Callable[..., Any], *arguments: Any) -> None:
        """Starts a call on one rank; ``gather()`` waits for it."""
        self._pipes[rank].send((function, arguments))

    def gather(self, ranks: Sequence[int], deadline_s: float = DEADLINE_S) -> list[Outcome]:
        """Outcomes of begun calls, by ``ranks``. A rank that does not answer in time is
        a failure and is killed."""
        end = time.monotonic() + deadline_s
        found: dict[int, Outcome] = {}
        while len(found) < len(ranks):
            left = end - time.monotonic()
            open_ranks = [rank for rank in ranks if rank not in found]
            waiting = {self._pipes[rank]: rank for rank in open_ranks}
            ready = multiprocessing.connection.wait(list(waiting), timeout=max(0.0, left))
            if not ready:
                self.broken = True
                for rank in open_ranks:
                    with contextlib.suppress(ProcessLookupError):
                        self.kill(rank)
                raise RankFailure(f"ranks {open_ranks} did not answer within {deadline_s} s")
            for pipe in ready:
                rank = waiting[pipe]  # type: ignore[index]
                try:
                    found[rank] = self._pipes[rank].recv()
                except (EOFError, ConnectionResetError):
                    self._processes[rank].join(10)
                    self.broken = True
                    found[rank] = Outcome(exit_code=self._processes[rank].exitcode)
        return [found[rank] for rank in ranks]

    def outcomes(
        self, function: Callable[..., Any], *arguments: Any, deadline_s: float = DEADLINE_S
    ) -> list[Outcome]:
        """Calls ``function(*arguments)`` on every rank; failures are part of the answer."""
        for rank in range(self.world):
            self.begin(rank, function, *arguments)
        return self.gather(range(self.world), deadline_s)

    def run(
        self, function: Callable[..., Any], *arguments: Any, deadline_s: float = DEADLINE_S
    ) -> list[Any]:
        """Calls ``function(*arguments)`` on every rank; what they return, by rank."""
        return self._values(self.outcomes(function, *arguments, deadline_s=deadline_s))

    def run_each(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Sequence[Any]],
        deadline_s: float = DEADLINE_S,
    ) -> list[Any]:
        """As run(), with arguments of its own for each rank."""
        for rank in range(self.world):
            self.begin(rank, function, *arguments[rank])
        return self._values(self.gather(range(self.world), deadline_s))

    def _values(self, outcomes: list[Outcome]) -> list[Any]:
        failed = [(rank, outcome) for rank, outcome in enumerate(outcomes) if not outcome.ok]
        if failed:
            self.broken = True
            text = "\n".join(
                f"rank {rank}: {outcome.trace or f'died with {outcome.exit_code}'}"
                for rank, outcome in failed
            )
            raise RankFailure(text)
        return [outcome.value for outcome in outcomes]

    def close(self, deadline_s: float = 10.0) -> list[int | None]:
        """Lets every process end, kills those that do not; their exit codes."""
        for pipe in self._pipes:
            pipe.close()
        end = time.monotonic() + deadline_s
        for process in self._processes:
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                    os.kill(process.pid, signal.SIGKILL)
                process.join(10)
        return [process.exitcode for process in self._processes]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Pool:
    """Ranks that several tests use one after the other, by a key: made when they are first asked
    for, and again where a test has broken them. ``make(*key)`` returns them, ``begin(ranks, *key)``
    has them join each other."""

    def __init__(self, make: Callable[..., Ranks], begin: Callable[..., object]) -> None:
        self._make, self._begin = make, begin
        self._made: dict[tuple[Any, ...], Ranks] = {}

    def get(self, *key: Any) -> Ranks:
        found = self._made.get(key)
        if found is not None and found.broken:
            found.close(1)
            found = None
        if found is None:
            found = self._made[key] = self._make(*key)
            self._begin(found, *key)
        return found

    def close(self) -> None:
        for ranks in self._made.values():
            ranks.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
