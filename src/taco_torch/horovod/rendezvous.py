"""Where the ranks of a job meet: its store, a room in it for each incarnation, and which of them
share a host."""

import json
import os
import socket
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

from taco_torch.horovod.environment import World
from taco_torch.horovod.exceptions import HorovodInternalError

_Key = tuple[str, int, str]
# The stores of the last worlds: a rank that is late may still be reading from the one before.
_stores: dict[_Key, Store] = {}
_KEPT_STORES = 2
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
    name = f"taco_torch.horovod/{world.incarnation or '0'}/{number}"
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


def _names(world: World, topic: str) -> list[str]:
    return [f"{topic}/{rank}" for rank in range(world.size)]


def find_places(store: Store, world: World, alike: dict[str, int]) -> list[Place]:
    """Every rank's place, as launchers have told it, or else by which ranks share a host.

    Collective: each rank tells the others once, its place and what must be alike on all.

    Args:
        alike: variables by which ranks number and fuse operations: where they differ, ranks would
            take one operation for another.

    Raises:
        ValueError: on all ranks, naming a variable and two ranks that differ in it.
        HorovodInternalError: ranks do not come in the store's time.
    """
    place = [_host(), world.local_rank, world.local_size, world.cross_rank, world.cross_size]
    names = [f"rank/{rank}" for rank in range(world.size)]
    try:
        store.set(names[world.rank], json.dumps({"place": place, "alike": alike}))
        store.wait(names)
        told = [json.loads(text) for text in store.multi_get(names)]
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
