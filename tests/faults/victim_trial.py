"""One trial of the random-death campaign: a few ranks work, one dies, the others must say who.

``run_trial()`` forks the ranks from the calling process, which has imported torch already and runs
no thread of its own; so a trial takes a fraction of a second. Every rank reports through a pipe.
After the death the survivors leave the group and make a new one under the same store: alone, or
with a fresh process in the victim's place, in another order of ranks.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import random
import resource
import select
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

HANG_S = 20.0  # a rank that has not reported by then hangs
SLOWEST_S = 1.0  # from the death to an error
GROUP_TIMEOUT_S = 15.0
PR_SET_PDEATHSIG = 1

TRANSPORTS = ("shm", "udp", "mixed")
DEATHS = ("SIGKILL", "os._exit", "SIGSEGV")


@dataclass
class Plan:
    """Everything that chance decides about a trial."""

    seed: int
    transport: str  # shm, udp, or mixed: two hosts, shared memory inside each
    operation: str
    count: int  # elements of each tensor
    world: int
    victim: int
    death: str
    delay_s: float  # from the barrier after the start to the death
    forked_child: bool  # the victim leaves a child behind that has inherited its descriptors
    replace: bool  # the second group has a new process in the victim's place
    order: list[int]  # the second group's ranks: old rank -> new rank, -1 for "not in it"

    @staticmethod
    def of(seed: int) -> Plan:
        chance = random.Random(seed)
        world = chance.choice((3, 4))
        victim = chance.randrange(world)
        replace = chance.random() < 0.5
        members = [rank for rank in range(world) if replace or rank != victim]
        new_ranks = list(range(len(members)))
        chance.shuffle(new_ranks)
        order = [-1] * world
        for member, new_rank in zip(members, new_ranks, strict=True):
            order[member] = new_rank
        return Plan(
            seed=seed,
            transport=chance.choice(TRANSPORTS),
            operation=chance.choice(sorted(OPERATIONS)),
            count=chance.choice((1, 100, 5_000, 100_000, 1_000_000)),
            world=world,
            victim=victim,
            death=chance.choice(DEATHS),
            delay_s=chance.uniform(0.0, 0.05),
            forked_child=chance.random() < 0.25,
            replace=replace,
            order=order,
        )

    def environment(self, rank: int, interface: str) -> dict[str, str]:
        if self.transport != "mixed":
            return {"TACO_TRANSPORT": self.transport}
        # The victim's host holds another rank too, which tells the other host.
        host = "a" if rank in (self.victim, (self.victim + 1) % self.world) else "b"
        return {"TACO_TRANSPORT": "auto", "TACO_HOST_ID": host, "TACO_IFNAME": interface}


@dataclass
class Verdict:
    """The outcome of a trial."""

    plan: Plan
    latencies_s: list[float] = field(default_factory=list)  # death to error, one a survivor
    again_s: float = 0.0  # the slowest survivor's way into the second group
    faults: list[str] = field(default_factory=list)  # none when all is as promised

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


# -- what the ranks do until the death -------------------------------------------------------------


def _ring(mine: torch.Tensor, out: torch.Tensor, rank: int, world: int) -> None:
    sent = dist.isend(mine, (rank + 1) % world)
    dist.recv(out[0], (rank - 1) % world)
    sent.wait()


def _pipeline(mine: torch.Tensor, out: torch.Tensor, rank: int, world: int) -> None:
    # Blocking: whoever stands further down waits for a rank that itself waits for the victim.
    if rank > 0:
        dist.recv(out[0], rank - 1)
    if rank < world - 1:
        dist.send(mine, rank + 1)
    if rank == world - 1:
        dist.send(mine, 0)
    if rank == 0:
        dist.recv(out[0], world - 1)


def _gather(mine: torch.Tensor, out: torch.Tensor, rank: int, world: int) -> None:
    dist.gather(mine, list(out) if rank == 0 else None, dst=0)


def _scatter(mine: torch.Tensor, out: torch.Tensor, rank: int, world: int) -> None:
    dist.scatter(mine, list(out) if rank == 0 else None, src=0)


OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor, int, int], Any]] = {
    "all_reduce": lambda mine, out, rank, world: dist.all_reduce(mine),
    "broadcast": lambda mine, out, rank, world: dist.broadcast(mine, src=0),
    "all_gather": lambda mine, out, rank, world: dist.all_gather(list(out), mine),
    "reduce_scatter": lambda mine, out, rank, world: dist.reduce_scatter(mine, list(out)),
    "reduce": lambda mine, out, rank, world: dist.reduce(mine, dst=world - 1),
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": lambda mine, out, rank, world: dist.all_to_all_single(torch.empty_like(out), out),
    "barrier": lambda mine, out, rank, world: dist.barrier(),
    "ring": _ring,
    "pipeline": _pipeline,
}


# -- inside a rank ---------------------------------------------------------------------------------


def _join(port: int, rank: int, world: int) -> None:
    store = dist.TCPStore(
        "127.0.0.1", port, world, False, timeout=timedelta(seconds=20), wait_for_workers=False
    )
    dist.init_process_group(
        "taco",
        store=store,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=GROUP_TIMEOUT_S),
    )


def _prove_and_leave(world: int) -> None:
    total = torch.ones(1000)
    dist.all_reduce(total)
    if not bool((total == world).all()):
        raise AssertionError(f"all_reduce in the new group gave {total[0]} and not {world}")
    dist.destroy_process_group()


class _Shared:
    """Two numbers that outlive the victim: when it died, and the child it left."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 16)

    def died(self) -> None:
        self._memory[0:8] = struct.pack("d", time.monotonic())

    @property
    def death(self) -> float:
        return float(struct.unpack("d", self._memory[0:8])[0])

    @property
    def child(self) -> int:
        return int(struct.unpack("q", self._memory[8:16])[0])

    @child.setter
    def child(self, pid: int) -> None:
        self._memory[8:16] = struct.pack("q", pid)


def _die_later(plan: Plan, shared: _Shared) -> None:
    def die() -> None:
        time.sleep(plan.delay_s)
        shared.died()
        if plan.death == "os._exit":
            os._exit(7)
        os.kill(os.getpid(), getattr(signal, plan.death))

    threading.Thread(target=die, daemon=True).start()


def _leave_child(shared: _Shared, campaign: int) -> None:
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # should the campaign itself be killed
        with contextlib.suppress(BaseException):
            while os.path.exists(f"/proc/{campaign}"):
                time.sleep(0.5)
        os._exit(0)
    shared.child = pid


def _survive(plan: Plan, rank: int, port: int, shared: _Shared) -> dict[str, Any]:
    mine = torch.ones(plan.count)
    out = torch.ones(plan.world, plan.count)
    operation = OPERATIONS[plan.operation]
    error: BaseException | None = None
    try:
        dist.barrier()
        if rank == plan.victim:
            _die_later(plan, shared)
        while True:
            operation(mine, out, rank, plan.world)
            mine.fill_(1)
    except Exception as caught:
        error = caught
    report = {
        "type": type(error).__name__,
        "text": str(error),
        "rank": getattr(error, "rank", None),
        "raised": time.monotonic(),
    }
    dist.destroy_process_group()
    if plan.order[rank] >= 0:
        begin = time.monotonic()
        world = plan.world if plan.replace else plan.world - 1
        _join(port, plan.order[rank], world)
        _prove_and_leave(world)
        report["again_s"] = time.monotonic() - begin
    return report


def _act(plan: Plan, rank: int, port: int, shared: _Shared, campaign: int) -> dict[str, Any]:
    import taco_torch  # noqa: F401

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _join(port, rank, plan.world)
    if rank == plan.victim and plan.forked_child:
        _leave_child(shared, campaign)
    return _survive(plan, rank, port, shared)


def _replace(plan: Plan, port: int) -> dict[str, Any]:
    import taco_torch  # noqa: F401

    torch.set_num_threads(1)
    begin = time.monotonic()
    _join(port, plan.order[plan.victim], plan.world)
    _prove_and_leave(plan.world)
    return {"again_s": time.monotonic() - begin}


def _fork(what: Callable[[], dict[str, Any]], environment: dict[str, str]) -> tuple[int, int]:
    """Runs ``what`` in a child; its pid and the descriptor its report comes from."""
    ours, theirs = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid != 0:
        os.close(theirs)
        return pid, ours
    try:
        os.close(ours)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.environ.update(environment)
        try:
            report = what()
        except BaseException:
            report = {"crash": traceback.format_exc()}
        os.write(theirs, json.dumps(report)[:60_000].encode())
        sys.stderr.flush()
    finally:
        os._exit(0)


# -- the trial -------------------------------------------------------------------------------------


def _collect(pipes: dict[str, int], deadline: float) -> dict[str, dict[str, Any] | None]:
    """Reports by name; None for whoever closed its pipe, or did not answer, without one."""
    texts = dict.fromkeys(pipes, b"")
    found: dict[str, dict[str, Any] | None] = {}
    names = {descriptor: name for name, descriptor in pipes.items()}
    poll = select.poll()
    for descriptor in names:
        poll.register(descriptor, select.POLLIN)
    while len(found) < len(pipes) and time.monotonic() < deadline:
        for descriptor, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            data = os.read(descriptor, 65536)
            if data:
                texts[names[descriptor]] += data
                continue
            poll.unregister(descriptor)
            text = texts[names[descriptor]]
            found[names[descriptor]] = json.loads(text) if text else None
    return found


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _judge(
    verdict: Verdict,
    reports: dict[str, dict[str, Any] | None],
    death: float,
    names: list[str],
    slowest_s: float,
) -> None:
    for name in names:
        if name not in reports:
            verdict.faults.append(f"{name} hangs")
            continue
        report = reports[name]
        if report is None:
            verdict.faults.append(f"{name} died as well")
        elif "crash" in report:
            verdict.faults.append(f"{name}: {report['crash']}")
        elif "type" in report:
            if report["type"] != "PeerLostError" or report["rank"] != verdict.plan.victim:
                verdict.faults.append(
                    f"{name} raised {report['type']} of rank {report['rank']}: {report['text']}"
                )
            verdict.latencies_s.append(report["raised"] - death)
        if report is not None:
            verdict.again_s = max(verdict.again_s, report.get("again_s", 0.0))
    if any(latency > slowest_s for latency in verdict.latencies_s):
        verdict.faults.append(f"an error took {max(verdict.latencies_s):.3f} s")


def run_trial(plan: Plan, port: int, interface: str, slowest_s: float = SLOWEST_S) -> Verdict:
    """One group, one death, one new group. Ends every process it starts."""
    shared = _Shared()
    verdict = Verdict(plan)
    campaign = os.getpid()
    pids: list[int] = []
    pipes: dict[str, int] = {}
    try:
        for rank in range(plan.world):
            environment = plan.environment(rank, interface)
            pid, pipe = _fork(
                lambda rank=rank: _act(plan, rank, port, shared, campaign), environment
            )
            pids.append(pid)
            pipes[f"rank {rank}"] = pipe
        if plan.replace:
            os.waitid(os.P_PID, pids[plan.victim], os.WEXITED | os.WNOWAIT)
            environment = plan.environment(plan.victim, interface)
            pid, pipe = _fork(lambda: _replace(plan, port), environment)
            pids.append(pid)
            pipes["the replacement"] = pipe
        os.close(pipes.pop(f"rank {plan.victim}"))
        reports = _collect(pipes, time.monotonic() + HANG_S)
        _judge(verdict, reports, shared.death, list(pipes), slowest_s)
    finally:
        for pid in pids:
            _end(pid)
        if shared.child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(shared.child, signal.SIGKILL)
        for pipe in pipes.values():
            os.close(pipe)
    return verdict
