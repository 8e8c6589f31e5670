"""Python's handlers of signals run while a rank waits, whatever it waits in."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks, connect, initialise
from zerocache_models import TinyGPT, make_cache
from zerocache_ranks import CAPS, adamw, own_batches, values_of
from zerocache_steps import check_same

import taco_torch

pytestmark = taco_only
since_214 = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14), reason="torch 2.14 brought it"
)

PATIENCE = timedelta(seconds=30)


def all_reduce() -> None:
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == dist.get_world_size()


def receive() -> None:
    if dist.get_rank() == 0:
        received = torch.zeros(4)
        dist.recv(received, 1)
        assert received.tolist() == [7.0] * 4
    elif dist.get_rank() == 1:
        dist.send(torch.full((4,), 7.0), 0)


def batch() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    received = torch.zeros(4)
    sent, others = torch.full((4,), float(rank)), ((rank + 1) % world, (rank - 1) % world)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, sent, others[0]), dist.P2POp(dist.irecv, received, others[1])]
    ):
        work.wait()
    assert received.tolist() == [float(others[1])] * 4


def block() -> None:
    tensors = [torch.ones(3), torch.ones(5)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert tensors[1][4].item() == dist.get_world_size()


def pending() -> None:
    work = dist.all_reduce(torch.ones(3), async_op=True)
    assert dist.group.WORLD is not None
    dist.group.WORLD._wait_for_pending_works()
    assert work is not None
    assert work.is_completed()


def new_group() -> None:
    group = dist.new_group(list(range(dist.get_world_size())))
    dist.all_reduce(torch.ones(3), group=group)


def monitored_barrier() -> None:
    taco_torch.monitored_barrier(timeout=PATIENCE)


WAITS: dict[str, Callable[[], object]] = {
    "all_reduce": all_reduce,
    "recv": receive,
    "barrier": dist.barrier,
    "monitored_barrier": monitored_barrier,
    "batch": batch,
    "block": block,
    "pending": pending,
    "new_group": new_group,
}


def send_signal() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def signal_the_main_thread(over: threading.Event) -> None:
    """Once it waits: it sleeps, look for look, in one and the same call. What waits for the
    interpreter goes on meanwhile, and what waits for a processor does not sleep."""
    main, stat = threading.main_thread().ident or 0, Path(f"/proc/self/task/{os.getpid()}/stat")
    last: Any = None
    looks = 0
    while looks < 5:
        if over.wait(0.04):
            return
        frame = sys._current_frames()[main]
        place, state = (frame, frame.f_lasti), stat.read_text().rpartition(") ")[2][0]
        if place != last:
            looks, last = 0, place
        looks += state == "S"
    send_signal()


@contextmanager
def signalled(
    handler: Callable[[], object],
    store: dist.TCPStore,
    others: str,
    waits: Callable[[], bool] = lambda: True,
) -> Iterator[None]:
    """SIGUSR1 comes to this process once it waits, where `waits` says so, and all others are
    ready."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        if waits():
            handler()
        else:  # it is on its way there
            threading.Timer(0.05, send_signal).start()

    before = signal.signal(signal.SIGUSR1, handle)
    store.wait([f"{others}/{rank}" for rank in range(1, dist.get_world_size())], PATIENCE)
    over = threading.Event()
    threading.Thread(target=signal_the_main_thread, args=(over,)).start()
    try:
        yield
    finally:
        over.set()
        signal.signal(signal.SIGUSR1, before)


def stop() -> None:
    raise KeyboardInterrupt


def heard_while_waiting(what: str, port: int) -> None:
    """The others come only once the handler has run on rank 0, which waits for them."""
    store = connect(port, dist.get_world_size())
    if dist.get_rank() == 0:
        with signalled(lambda: store.set(f"heard in {what}", ""), store, f"ready for {what}"):
            WAITS[what]()
    else:
        store.set(f"ready for {what}/{dist.get_rank()}", "")
        store.wait([f"heard in {what}"], PATIENCE)
        WAITS[what]()
    dist.barrier()
    if dist.get_rank() == 0:
        store.delete_key(f"heard in {what}")


def interrupted(what: str, port: int) -> None:
    """An exception of the handler ends the wait, and nothing else: what is begun goes on."""
    store = connect(port, dist.get_world_size())
    if dist.get_rank() == 0:
        with signalled(stop, store, f"ready to stop {what}"), pytest.raises(KeyboardInterrupt):
            WAITS[what]()
        store.set(f"stopped {what}", "")
    else:
        store.set(f"ready to stop {what}/{dist.get_rank()}", "")
        store.wait([f"stopped {what}"], PATIENCE)
        WAITS[what]()
    dist.barrier()
    if dist.get_rank() == 0:
        store.delete_key(f"stopped {what}")


def given_up(port: int) -> None:
    """Rank 0 is interrupted while it waits for rank 2, as rank 1 does, which hears of it."""
    store = connect(port, dist.get_world_size())
    if dist.get_rank() == 0:
        with signalled(stop, store, "ready for a group"), pytest.raises(KeyboardInterrupt):
            new_group()
        store.set("given up", "")
        return
    store.set(f"ready for a group/{dist.get_rank()}", "")
    if dist.get_rank() == 1:
        with pytest.raises(taco_torch.RendezvousError, match=r"rank 0 gave up: .* signal"):
            new_group()
    else:
        store.wait(["given up"], PATIENCE)


def waited_on(port: int) -> None:
    """The Work of an interrupted wait can be waited for again."""
    store = connect(port, dist.get_world_size())
    tensor = torch.ones(1)
    if dist.get_rank() == 0:
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        with signalled(stop, store, "ready for more"), pytest.raises(KeyboardInterrupt):
            work.wait()
        store.set("stopped one", "")
        work.wait()
    else:
        store.set(f"ready for more/{dist.get_rank()}", "")
        store.wait(["stopped one"], PATIENCE)
        dist.all_reduce(tensor)
    assert tensor.item() == dist.get_world_size()
    dist.barrier()
    if dist.get_rank() == 0:
        store.delete_key("stopped one")


def in_a_transfer(raises: bool, port: int) -> None:
    """Rank 0 reads memory of rank 1, which connects to it only once the handler has run."""
    remote = taco_torch._C.remote
    store = connect(port, dist.get_world_size())
    rank, told = dist.get_rank(), f"a transfer that is {'ended' if raises else 'gone on with'}"
    if rank < 2:
        tensor = torch.full((1000,), float(rank))
        endpoint = remote.Endpoint()
        memory = endpoint.add(tensor)
        store.set(f"{told}: address {rank}", endpoint.address())
        store.set(f"{told}: handle {rank}", memory.handle.encode())
        peer = store.get(f"{told}: address {1 - rank}")
    if rank == 0:
        endpoint.connect(peer)
        handle = remote.Handle.decode(store.get(f"{told}: handle 1"))
        transfer = endpoint.start(False, memory, 0, tensor.nbytes, handle)
        if raises:
            with signalled(stop, store, f"ready for {told}"), pytest.raises(KeyboardInterrupt):
                transfer.wait(PATIENCE.total_seconds())
            store.set(told, "")
        else:
            with signalled(lambda: store.set(told, ""), store, f"ready for {told}"):
                assert transfer.wait(PATIENCE.total_seconds())
        assert transfer.wait(PATIENCE.total_seconds())
        assert tensor.tolist() == [1.0] * 1000
    else:
        store.set(f"ready for {told}/{rank}", "")
        store.wait([told], PATIENCE)
        if rank == 1:
            endpoint.connect(peer)
    dist.barrier()
    if rank < 2:
        endpoint.close(PATIENCE.total_seconds())


def in_a_window(raises: bool, port: int) -> None:
    """Rank 0 waits for a signal of rank 1, which comes only once the handler has run."""
    store = connect(port, dist.get_world_size())
    rank, told = dist.get_rank(), f"a window whose wait is {'ended' if raises else 'gone on with'}"
    window = dist._new_window(torch.zeros(4))
    if rank == 0 and raises:
        work = window.wait_signal(1, True)
        with signalled(stop, store, f"ready for {told}"), pytest.raises(KeyboardInterrupt):
            work.wait()
        store.set(told, "")
        work.wait()
    elif rank == 0:
        with signalled(lambda: store.set(told, ""), store, f"ready for {told}"):
            window.wait_signal(1, False)
    else:
        store.set(f"ready for {told}/{rank}", "")
        store.wait([told], PATIENCE)
        if rank == 1:
            window.signal(0, False)
    window.tensor_deregister()


def at_the_end_of_a_window(port: int) -> None:
    """Rank 0 waits for the others, which end their windows once the handler has run."""
    store = connect(port, dist.get_world_size())
    window, told = dist._new_window(torch.zeros(4)), "the end of a window"
    if dist.get_rank() == 0:
        with signalled(lambda: store.set(told, ""), store, f"ready for {told}"):
            window.tensor_deregister()
    else:
        store.set(f"ready for {told}/{dist.get_rank()}", "")
        store.wait([told], PATIENCE)
        window.tensor_deregister()


def make_members(rank: int, port: int) -> str:
    """A rank of two that has no group yet; its handle."""
    initialise(rank, 2, port, enable_reconfigure=True)
    return dist._get_reconfigure_handle()


def reconfigure(uuid: int, handles: list[str]) -> None:
    dist._reconfigure(uuid, handles, timeout=PATIENCE).wait()


def in_a_reconfiguration(raises: bool, rank: int, port: int, handles: list[str]) -> float:
    """Rank 1 comes only once the handler has run on rank 0, and once more where that raised."""
    store = connect(port, 2)
    if rank == 0 and raises:
        with signalled(stop, store, "ready"), pytest.raises(KeyboardInterrupt):
            reconfigure(1, handles)
        store.set("heard", "")
    elif rank == 0:
        with signalled(lambda: store.set("heard", ""), store, "ready"):
            reconfigure(1, handles)
    else:
        store.set("ready/1", "")
        store.wait(["heard"], PATIENCE)
    if rank == 1 and not raises:
        reconfigure(1, handles)
    if raises:
        reconfigure(2, handles)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return tensor.item()


def step(model: Any, optimizer: Any, data: Any) -> None:
    optimizer.zero_grad()
    model(next(data)).backward()
    optimizer.step()


def interrupted_in_a_step(folder: str, port: int) -> dict[str, torch.Tensor]:
    """Rank 0 is interrupted while it waits for the others, whose step begins after that."""
    store = connect(port, dist.get_world_size())
    rank = dist.get_rank()
    own = Path(folder, f"rank-{rank}")
    own.mkdir()
    cache = make_cache(own, *CAPS)
    model = TinyGPT(2)
    model, optimizer = cache.wrap(model, adamw(model), process_group=dist.group.WORLD)
    data = own_batches()
    step(model, optimizer, data)
    if rank == 0:
        told: list[float] = []

        def stop_and_tell() -> None:
            told.append(time.monotonic())
            store.set("the step may go on", "")
            stop()

        waits = taco_torch._C.zerocache.waits_here
        heard = signalled(stop_and_tell, store, "ready to step", waits)
        with heard, pytest.raises(KeyboardInterrupt):
            step(model, optimizer, data)
        assert told
    else:
        store.set(f"ready to step/{rank}", "")
        store.wait(["the step may go on"], PATIENCE)
        step(model, optimizer, data)
    dist.barrier()
    if rank == 0:
        store.delete_key("the step may go on")
    step(model, optimizer, data)
    found = values_of(cache)
    cache.close()
    return found


def refused_in_a_step(folder: str, port: int) -> tuple[list[str], dict[str, torch.Tensor]]:
    """Rank 0's handler uses the cache whose step waits for the others."""
    store = connect(port, dist.get_world_size())
    rank = dist.get_rank()
    own = Path(folder, f"rank-{rank}")
    own.mkdir()
    cache = make_cache(own, *CAPS)
    plain = TinyGPT(2)
    model, optimizer = cache.wrap(plain, adamw(plain), process_group=dist.group.WORLD)
    data = own_batches()
    step(model, optimizer, data)
    calls: list[Callable[[], object]] = [
        lambda: cache.full(next(iter(model.parameters()))),
        lambda: cache.save(f"{folder}/checkpoint"),
        lambda: model(next(data)),
        optimizer.step,
        cache.close,
    ]
    told: list[str] = []

    def use() -> None:
        for call in calls:
            try:
                call()
            except RuntimeError as error:
                told.append(str(error))
        store.set("used in a step", "")

    if rank == 0:
        with signalled(use, store, "ready to use", taco_torch._C.zerocache.waits_here):
            step(model, optimizer, data)
    else:
        store.set(f"ready to use/{rank}", "")
        store.wait(["used in a step"], PATIENCE)
        step(model, optimizer, data)
    found = values_of(cache)
    cache.close()
    return told, found


@pytest.mark.parametrize("what", WAITS)
def test_a_handler_runs_while_its_rank_waits(three: Ranks, what: str) -> None:
    three.run(heard_while_waiting, what, three.port)


@pytest.mark.parametrize("what", [what for what in WAITS if what != "new_group"])
def test_a_handler_that_raises_ends_the_wait(three: Ranks, what: str) -> None:
    three.run(interrupted, what, three.port)


def test_a_group_whose_making_is_interrupted_is_not_made(transport: str) -> None:
    with Ranks(3, {"TACO_TRANSPORT": transport, "TACO_LOG": "error"}) as ranks:
        ranks.initialise()
        ranks.run(given_up, ranks.port)


def test_an_interrupted_wait_can_go_on(three: Ranks) -> None:
    three.run(waited_on, three.port)


def test_a_handler_that_raises_in_a_step_of_a_cache_ends_it_afterwards(
    three: Ranks, tmp_path: Path
) -> None:
    of_rank = three.run(interrupted_in_a_step, str(tmp_path), three.port)
    for one in of_rank[1:]:
        check_same(of_rank[0], one)


@pytest.mark.parametrize("raises", [False, True])
def test_a_wait_for_a_transfer_hears_signals(three: Ranks, raises: bool) -> None:
    three.run(in_a_transfer, raises, three.port)


@since_214
@pytest.mark.parametrize("raises", [False, True])
def test_a_wait_for_a_signal_of_a_window_hears_signals(three: Ranks, raises: bool) -> None:
    three.run(in_a_window, raises, three.port)


@since_214
def test_the_end_of_a_window_hears_signals(three: Ranks) -> None:
    three.run(at_the_end_of_a_window, three.port)


@since_214
@pytest.mark.parametrize("raises", [False, True])
def test_a_reconfiguration_hears_signals(transport: str, raises: bool) -> None:
    with Ranks(2, {"TACO_TRANSPORT": transport, "TACO_LOG": "error"}) as ranks:
        handles = ranks.run_each(make_members, [(rank, ranks.port) for rank in range(2)])
        arguments = [(raises, rank, ranks.port, handles) for rank in range(2)]
        assert ranks.run_each(in_a_reconfiguration, arguments) == [2.0, 2.0]


def test_a_handler_cannot_use_a_cache_in_the_middle_of_a_step(
    transport: str, tmp_path: Path
) -> None:
    with Ranks(2, {"TACO_TRANSPORT": transport, "TACO_LOG": "error"}) as ranks:
        ranks.initialise()
        (told, first), (_, second) = ranks.run(refused_in_a_step, str(tmp_path), ranks.port)
    assert len(told) == 5
    for text in told:
        assert "a handler of a signal cannot use a cache" in text
    check_same(first, second)
