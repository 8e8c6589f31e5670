"""Where the ranks of a job meet: its store, a room in it for each incarnation, and which of them
share a host."""

import _thread
import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
from torch.distributed import DistStoreError

from taco_torch.horovod.environment import World
from taco_torch.horovod.exceptions import HorovodInternalError
from taco_torch.launch import member

_Key = tuple[str, int, str]
# The stores of the last worlds: a rank that is late may still be reading from the one before.
_stores: dict[_Key, Store] = {}
_KEPT_STORES = 2
_LOOK_S = 0.25  # how often a rank that waits asks whether those that it waits for still live
_incarnations: Counter[_Key] = Counter()


@dataclass(frozen=True)
class Place:
    """A rank's place among hosts."""

    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def meet(world: World, timeout_s: float) -> tuple[Store, str]:
    """A store in which this incarnation of the job sees no keys of others, and the incarnation's
    name. All ranks have to call it the same number of times for a world.

    Raises:
        HorovodInternalError: the store cannot be opened or reached.
    """
    key = (world.address, world.port, world.incarnation)
    number = _incarnations[key]
    _incarnations[key] += 1
    own = f"{world.job}/" if world.job else ""
    name = f"taco_torch.horovod/{own}{world.incarnation or '0'}/{number}"
    if world.size == 1:
        return HashStore(), name
    store = _stores.get(key)
    if store is None:
        store = _open(world, timeout_s)
        for old in list(_stores)[: 1 - _KEPT_STORES]:
            del _stores[old]
        _stores[key] = store
    room = PrefixStore(name, store)
    room.set_timeout(timedelta(seconds=timeout_s))
    return room, name


def _open(world: World, timeout_s: float) -> Store:
    """A program that calls init_process_group() itself shares the port: hence multi_tenant."""
    is_host = world.rank == 0 and not world.agent_store
    try:
        return TCPStore(
            world.address,
            world.port,
            None,
            is_host,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        # An elastic job's next world has another port.
        if is_host and "EADDRINUSE" in str(error) and not member.present():
            raise ValueError(
                f"port {world.port}, where the ranks of this job are to meet, is another program's "
                f"on {world.address}, perhaps another job's: set MASTER_PORT to one that is free, "
                "alike on all ranks"
            ) from error
        did = "open" if is_host else "reach"
        raise HorovodInternalError(
            f"rank {world.rank} could not {did} the job's store at {world.address}:{world.port} "
            f"(MASTER_ADDR, MASTER_PORT): {error}"
        ) from error


def _host() -> str:
    """Equal for processes of one host."""
    told = os.environ.get("TACO_HOST_ID", "")
    if told:
        return told
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}"


def _wait_while_all_live(store: Store, names: list[str]) -> None:
    """Waits for the keys, as long as the store does, or until tacorun says that a rank is lost."""
    whole: timedelta = store.timeout  # type: ignore[attr-defined]  # torch's types lack it
    end = time.monotonic() + whole.total_seconds()
    while True:
        left = end - time.monotonic()
        try:
            store.wait(names, timedelta(seconds=max(0.01, min(_LOOK_S, left))))
            return
        except DistStoreError:  # not yet
            check_whole()
            if left <= _LOOK_S:
                raise


def check_whole() -> None:
    """HorovodInternalError if tacorun has told that this world of an elastic job will never come
    together."""
    why = member.lost() if member.present() else ""
    if why:
        raise HorovodInternalError(f"a rank was lost during init(): {why}")


@contextmanager
def ended_by_losses() -> Iterator[None]:
    """Within it a wait of the library's, on the main thread, ends as check_whole() says: a rank
    that dies now would be waited for until the time is up. Python lets no other thread end it, but
    a handler of a signal, which nobody sends."""
    number = signal.SIGRTMAX
    before = signal.getsignal(number)
    is_main = threading.current_thread() is threading.main_thread()
    if not member.present() or not is_main or before is None:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        with suppress(member.LauncherLost):  # then the supervisor ends this rank
            while not over.wait(_LOOK_S):
                if member.lost():
                    _thread.interrupt_main(number)
                    return

    def handle(*_: object) -> None:
        if not over.is_set():
            check_whole()

    signal.signal(number, handle)
    watching = threading.Thread(target=watch, name="hvd.init", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
        signal.signal(number, before)


def _check_first(store: Store, world: World) -> None:
    """Two jobs whose launchers do not name them may meet at one port."""
    if store.add(f"came/{world.rank}", 1) > 1:
        raise ValueError(
            f"two processes are rank {world.rank} of the job at {world.address}:{world.port}: two "
            "jobs meet there; set MASTER_PORT to a port of its own for each"
        )


def find_places(store: Store, world: World, alike: dict[str, int]) -> list[Place]:
    """Every rank's place, as launchers have told it, or else by which ranks share a host.

    Collective: each rank tells the others once, its place and what must be alike on all.

    Args:
        alike: variables by which ranks number and fuse operations: where they differ, ranks would
            take one operation for another.

    Raises:
        ValueError: on all ranks, naming a variable and two ranks that differ in it; or another
            process has this rank.
        HorovodInternalError: ranks do not come in the store's time.
    """
    place = [_host(), world.local_rank, world.local_size, world.cross_rank, world.cross_size]
    names = [f"rank/{rank}" for rank in range(world.size)]
    try:
        if not world.agent_store:  # which may serve several starts of a job, all by one name
            _check_first(store, world)
        store.set(names[world.rank], json.dumps({"place": place, "alike": alike}))
        if member.present():
            _wait_while_all_live(store, names)
        else:
            store.wait(names)
        told = [json.loads(text) for text in store.multi_get(names)]
    except (HorovodInternalError, member.LauncherLost):
        raise
    except RuntimeError as error:
        late = [rank for rank, name in enumerate(names) if not _is_there(store, name)]
        raise HorovodInternalError(
            f"ranks {late} of {world.size} did not come to init() in time "
            f"(HOROVOD_START_TIMEOUT): {error}"
        ) from error
    _check_alike([each["alike"] for each in told])
    return places_of([each["place"] for each in told])


def _check_alike(rows: list[dict[str, int]]) -> None:
    for name, value in rows[0].items():
        for rank, row in enumerate(rows):
            if row[name] != value:
                raise ValueError(
                    f"{name} is {value} on rank 0 and {row[name]} on rank {rank}: set it alike on "
                    "all ranks"
                )


def _is_there(store: Store, name: str) -> bool:
    try:
        return bool(store.check([name]))
    except RuntimeError:
        return False


def places_of(rows: list[list[str | int | None]]) -> list[Place]:
    """Rows: host, local rank and size, cross rank and size, as a launcher has told them or None."""
    hosts = [str(row[0]) for row in rows]
    local = [(row[1], row[2]) for row in rows]
    cross = [(row[3], row[4]) for row in rows]
    if any(None in pair for pair in local):
        local = [(hosts[:rank].count(host), hosts.count(host)) for rank, host in enumerate(hosts)]
    if any(None in pair for pair in cross):
        alike = [pair[0] for pair in local]
        cross = [(alike[:rank].count(own), alike.count(own)) for rank, own in enumerate(alike)]
    return [
        Place(*(int(number or 0) for number in (*ours, *others)))
        for ours, others in zip(local, cross, strict=True)
    ]
