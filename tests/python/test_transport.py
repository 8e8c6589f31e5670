"""torch's transport over HARP (torch 2.15 on): processes that know of each other only what they
have told each other. docs/transports.md."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
from conftest import BACKEND
from spawn_ranks import Outcome, Ranks

pytestmark = [
    pytest.mark.skipif(BACKEND != "taco", reason="behaviour that only taco promises"),
    pytest.mark.skipif(
        tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15), reason="torch 2.15 brought it"
    ),
]

_kept: dict[str, Any] = {}  # by a process, from one call to the next


def new(**options: Any) -> Any:
    from torch.distributed._transport import new_transport

    return new_transport("harp", "cpu", **options)


# Two processes


def bind() -> bytes:
    _kept["transport"] = new()
    return bytes(_kept["transport"].bind())


def connect(url: bytes) -> None:
    assert _kept["transport"].connect(url) == 0
    assert _kept["transport"].connected()


def expose(count: int, value: float) -> bytes:
    _kept["tensor"] = torch.full((count,), value)
    _kept["memory"] = _kept["transport"].register_memory(_kept["tensor"])
    buffer = _kept["memory"].to_remote_buffer()
    return bytes(buffer.serialize())


def remote(data: bytes) -> Any:
    from taco_torch.transport import HarpRemoteBuffer

    return HarpRemoteBuffer.deserialize(data)


def write(data: bytes, count: int, value: float, first: int = 0) -> None:
    transport = _kept["transport"]
    memory = transport.register_memory(torch.full((count,), value))
    buffer = remote(data).part(4 * first, 4 * count)
    assert transport.write(memory.to_view(), buffer) == 0
    transport.unregister_memory(memory)


def read(data: bytes, count: int, first: int = 0) -> list[float]:
    transport = _kept["transport"]
    tensor = torch.zeros(count)
    memory = transport.register_memory(tensor)
    assert transport.read(memory.to_mutable_view(), remote(data).part(4 * first, 4 * count)) == 0
    return sorted(set(tensor.tolist()))


def values() -> list[float]:
    return list(_kept["tensor"].unique_consecutive().tolist())


def unregister() -> None:
    _kept["transport"].unregister_memory(_kept["memory"])


def close() -> None:
    _kept["transport"].close()


@pytest.fixture(params=["shm", "udp"])
def pair(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Two processes of no job, connected."""
    with Ranks(2, {"TACO_TRANSPORT": request.param, "TACO_LOG": "warning"}) as pair:
        urls = pair.run(bind)
        pair.run_each(connect, [(urls[1],), (urls[0],)])
        yield pair


def one(pair: Ranks, rank: int, function: Any, *arguments: Any) -> Outcome:
    pair.begin(rank, function, *arguments)
    return pair.gather([rank])[0]


def result(pair: Ranks, rank: int, function: Any, *arguments: Any) -> Any:
    outcome = one(pair, rank, function, *arguments)
    assert outcome.ok, outcome
    return outcome.value


def test_each_reads_and_writes_the_others_memory(pair: Ranks) -> None:
    handles = pair.run_each(expose, [(3_000_000, 10.0), (3_000_000, 11.0)])
    for count in (1, 200, 300, 1_000_000):
        pair.run_each(write, [(handles[1], count, 20.0, 5), (handles[0], count, 21.0, 5)])
        assert pair.run(values) == [[10.0, 21.0, 10.0], [11.0, 20.0, 11.0]]
        seen = pair.run_each(read, [(handles[1], count, 5), (handles[0], count, 5)])
        assert seen == [[20.0], [21.0]]


def test_a_peer_that_is_killed_is_named(pair: Ranks) -> None:
    handle = result(pair, 1, expose, 8_000_000, 1.0)
    assert result(pair, 0, read, handle, 10) == [1.0]
    pid = pair.pid(1)
    pair.begin(0, address_of_lost, handle)
    pair.kill(1, signal.SIGKILL)
    outcome = pair.gather([0])[0]
    assert outcome.ok, outcome
    assert f"pid {pid}" in outcome.value


def address_of_lost(data: bytes) -> str:
    """The peer's address, once it has failed writes to it."""
    from taco_torch import PeerLostError

    transport = _kept["transport"]
    memory = transport.register_memory(torch.zeros(8_000_000))
    try:
        while True:
            transport.write(memory.to_view(), remote(data))
    except PeerLostError as error:
        assert not transport.connected()
        return error.address


def test_a_handle_that_was_revoked_is_refused_by_name(pair: Ranks) -> None:
    handle = result(pair, 1, expose, 1000, 1.0)
    write_one = (handle, 1000, 2.0)
    assert one(pair, 0, write, *write_one).ok
    result(pair, 1, unregister)
    for call in ((write, *write_one), (read, handle, 1000)):
        outcome = one(pair, 0, *call)
        assert outcome.error_type == "AbortedError", outcome
        assert "was revoked" in outcome.error
        assert f"pid {pair.pid(1)}" in outcome.error
    assert result(pair, 1, values) == [2.0]
    again = result(pair, 1, expose, 1000, 3.0)  # the endpoint goes on
    assert result(pair, 0, read, again, 10) == [3.0]


def test_a_closed_endpoint_is_named(pair: Ranks) -> None:
    handle = result(pair, 1, expose, 1000, 1.0)
    result(pair, 0, read, handle, 10)
    result(pair, 1, close)
    outcome = one(pair, 0, read, handle, 1000)
    assert outcome.error_type in ("AbortedError", "PeerLostError"), outcome
    assert f"pid {pair.pid(1)}" in outcome.error


def test_a_handle_whose_bounds_were_forged_opens_nothing_more(pair: Ranks) -> None:
    handle = result(pair, 1, expose, 1000, 1.0)
    outcome = one(pair, 0, write_beyond, handle)
    assert outcome.error_type == "ValueError", outcome
    assert "exceed memory 1, which has 4000 bytes" in outcome.error
    assert result(pair, 1, values) == [1.0]


def write_beyond(data: bytes) -> None:
    transport = _kept["transport"]
    memory = transport.register_memory(torch.zeros(2000))
    transport.write(memory.to_view(), remote(forged(data, 0, 1 << 20)))


def forged(data: bytes, offset: int, size: int) -> bytes:
    """As serialize() would write it, with its checksum (CRC32C)."""
    head = data[:48] + offset.to_bytes(8, "little") + size.to_bytes(8, "little") + bytes(4)
    crc = 0xFFFFFFFF
    for byte in head:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return head + (crc ^ 0xFFFFFFFF).to_bytes(4, "little")


@pytest.mark.parametrize(("variable", "value"), [("TACO_HARP_SECURITY", "encrypt")])
def test_ends_whose_settings_differ_are_told_so(variable: str, value: str) -> None:
    with Ranks(2, {"TACO_LOG": "warning"}, own=[{variable: value}, {}]) as pair:
        urls = pair.run(bind)
        outcome = one(pair, 0, connect, urls[1])
    assert outcome.error_type == "VersionMismatchError", outcome
    assert f"{variable}={value}" in outcome.error
    assert "the peer's has" in outcome.error


def test_new_transport_rank_connects_by_a_store() -> None:
    with Ranks(2, {"TACO_LOG": "warning"}) as pair:
        arguments = [(rank, pair.port) for rank in (0, 1)]
        assert pair.run_each(connect_by_store, arguments) == [True, True]


def connect_by_store(rank: int, port: int) -> bool:
    import torch.distributed as dist
    from torch.distributed._transport import new_transport_rank

    store = dist.TCPStore("127.0.0.1", port, 3, False, wait_for_workers=False)
    transport = new_transport_rank("harp", "cpu", store=store, rank=rank, peer_rank=1 - rank)
    tensor = torch.zeros(1000)
    memory = transport.register_memory(tensor)
    store.set(f"handle/{rank}", memory.to_remote_buffer().serialize())
    theirs = remote(store.get(f"handle/{1 - rank}"))
    mine = transport.register_memory(torch.full((1000,), 1.0 + rank))
    transport.write(mine.to_view(), theirs)
    store.add("written", 1)
    while store.add("written", 0) < 2:
        pass
    return bool((tensor == 2.0 - rank).all())


# Two endpoints of one process: what each call promises


@pytest.fixture
def ends() -> Iterator[tuple[Any, Any]]:
    with new() as a, new() as b:
        a.connect(b.bind())
        b.connect(a.bind())
        yield a, b


def test_torch_finds_it_by_its_entry_point() -> None:
    from torch.distributed._transport import Transport, available_transports

    assert "harp" in available_transports()
    with new() as transport:
        assert isinstance(transport, Transport)


def test_the_example_of_torch_runs(ends: tuple[Any, Any]) -> None:
    trainer, replica = ends
    weights = torch.arange(8, dtype=torch.float32)
    received = torch.empty_like(weights)
    source, target = trainer.register_memory(weights), replica.register_memory(received)
    descriptor = target.to_remote_buffer()
    buffer = type(descriptor).deserialize(descriptor.serialize())
    work = trainer.write(source.to_view(), buffer, async_op=True)
    assert work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.get_future().wait() == []
    torch.testing.assert_close(received, weights)


def test_work_futures_and_coroutines_end(ends: tuple[Any, Any]) -> None:
    a, b = ends
    tensor = torch.zeros(1_000_000)
    buffer = b.register_memory(tensor).to_remote_buffer()
    source = a.register_memory(torch.ones(1_000_000))

    async def push() -> None:
        await a.write_async(source.to_view(), buffer, timeout=30.0)
        await a.read_async(source.to_mutable_view(), buffer)
        await a.close_async(timeout=30.0)

    called = threading.Event()
    future = a.write(source.to_view(), buffer, async_op=True).get_future()
    future.add_done_callback(lambda _: called.set())
    assert called.wait(30.0)
    asyncio.run(push())
    assert bool((tensor == 1).all())


def test_a_failure_comes_by_every_way(ends: tuple[Any, Any]) -> None:
    from taco_torch import AbortedError

    a, b = ends
    memory = b.register_memory(torch.zeros(10))
    buffer = memory.to_remote_buffer()
    b.unregister_memory(memory)
    b.unregister_memory(memory)  # nothing is left to be done
    source = a.register_memory(torch.ones(10))
    work = a.write(source.to_view(), buffer, async_op=True)
    with pytest.raises(AbortedError, match="was revoked"):
        work.get_future().wait()
    with pytest.raises(AbortedError, match="was revoked"):
        work.wait()
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), AbortedError)
    with pytest.raises(AbortedError, match="was revoked"):
        asyncio.run(a.write_async(source.to_view(), buffer))


def test_a_timeout_bounds_the_wait_and_not_the_transfer() -> None:
    with new() as a, new() as b:
        a.connect(b.bind())  # and b does not know of it yet
        tensor = torch.zeros(10)
        buffer = b.register_memory(tensor).to_remote_buffer()
        source = a.register_memory(torch.ones(10))
        work = a.write(source.to_view(), buffer, async_op=True)
        with pytest.raises(TimeoutError, match="goes on"):
            work.wait(timedelta(milliseconds=20))
        assert not work.is_completed()
        assert work.exception() is None
        with pytest.raises(TimeoutError, match="close again"):
            a.close(timeout=0.02)
        with pytest.raises(ValueError, match="under way"):
            a.unregister_memory(source)
        b.connect(a.bind())
        assert work.wait()
        assert bool((tensor == 1).all())
        a.close()
        a.close()


BAD_TENSORS = {
    "contiguous": lambda: torch.zeros(4, 4).t(),
    "empty": lambda: torch.zeros(0),
    "CPU": lambda: torch.zeros(4, device="meta"),
    "dense": lambda: torch.zeros(4).to_sparse(),
}


@pytest.mark.parametrize("word", BAD_TENSORS)
def test_a_tensor_that_others_cannot_write_into_is_refused(word: str) -> None:
    with new(), pytest.raises(ValueError, match=word):
        new().register_memory(BAD_TENSORS[word]())


def test_memory_that_is_gone_is_refused_and_registered_memory_stays() -> None:
    with new() as transport:
        tensor = torch.zeros(100)
        memory = transport.register_memory(tensor)
        with pytest.raises(RuntimeError, match="resiz"):
            tensor.untyped_storage().resize_(0)
        transport.unregister_memory(memory)
        tensor.untyped_storage().resize_(0)
        with pytest.raises(ValueError, match="its memory is gone"):
            transport.register_memory(tensor)
        with pytest.raises(RuntimeError, match="was unregistered"):
            memory.to_view()


def test_bounds_are_checked_before_anything_is_sent(ends: tuple[Any, Any]) -> None:
    a, b = ends
    small = b.register_memory(torch.zeros(10)).to_remote_buffer()
    memory = a.register_memory(torch.ones(20))
    with pytest.raises(ValueError, match="80 bytes, and the remote buffer only 40"):
        a.write(memory.to_view(), small)
    with pytest.raises(ValueError, match="8 bytes at offset 36 exceed"):
        small.part(36, 8)
    for offset, length in ((0, 81), (81, 0), (-1, 4), (4, -1), (40, 41)):
        with pytest.raises(ValueError, match="exceed the registered memory"):
            memory.to_view(offset, length)
    assert a.write(memory.to_view(4, 0), small) == 0  # nothing


def test_what_is_of_another_transport_is_refused(ends: tuple[Any, Any]) -> None:
    a, b = ends
    memory, other = a.register_memory(torch.zeros(4)), b.register_memory(torch.zeros(4))
    with pytest.raises(TypeError, match="not a view of memory of this transport"):
        a.write(other.to_view(), other.to_remote_buffer())
    with pytest.raises(TypeError, match="not a mutable view"):
        a.read(memory.to_view(), other.to_remote_buffer())
    with pytest.raises(TypeError, match="remote_buffer is not"):
        a.write(memory.to_view(), b"handle")
    with pytest.raises(ValueError, match="another endpoint"):
        a.write(memory.to_view(), memory.to_remote_buffer())
    with pytest.raises(TypeError, match="not registered by this transport"):
        a.unregister_memory(other)


def test_a_handle_of_another_version_is_refused_by_both_versions() -> None:
    from taco_torch import VersionMismatchError

    with new() as transport:
        data = transport.register_memory(torch.zeros(4)).to_remote_buffer().serialize()
        with pytest.raises(VersionMismatchError, match=r"version 9.*version 1"):
            remote(data[:12] + bytes([9]) + data[13:])
        with pytest.raises(ValueError, match="damaged"):
            remote(data[:20] + bytes([data[20] ^ 1]) + data[21:])
        with pytest.raises(ValueError, match="cut off"):
            remote(data[:-1])
        with pytest.raises(ValueError, match="no handle"):
            remote(b'{"version":1,"backend":"nixl","fields":{}}')
        with pytest.raises(TypeError, match="bytes"):
            remote("text")  # type: ignore[arg-type]
        url = transport.bind()
        with pytest.raises(VersionMismatchError, match="taco-endpoint-7"):
            transport.connect(url.replace(b"taco-endpoint-1", b"taco-endpoint-7"))
        for damaged in (b"", url[:20], url[:-1], url[:-60], b"tcp://127.0.0.1"):
            with pytest.raises(ValueError, match="address"):
                transport.connect(damaged)
        assert not transport.connected()


def test_an_endpoint_has_one_peer() -> None:
    with new() as a, new() as b, new() as c:
        a.connect(b.bind())
        b.connect(a.bind())
        with pytest.raises(ValueError, match="connected already"):
            a.connect(c.bind())
        buffer = b.register_memory(torch.zeros(4)).to_remote_buffer()
        c.connect(b.bind())
        thief = c.register_memory(torch.zeros(4))
        with pytest.raises(RuntimeError, match="one peer"):
            c.read(thief.to_mutable_view(), buffer)
        assert not c.connected()


def test_a_closed_transport_refuses_everything() -> None:
    from taco_torch import AbortedError

    transport = new()
    memory = transport.register_memory(torch.zeros(4))
    transport.close()
    assert not transport.connected()
    with pytest.raises(RuntimeError, match="unregistered, or its transport closed"):
        memory.to_view()
    with pytest.raises(AbortedError, match="closed"):
        transport.register_memory(torch.zeros(4))


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(RuntimeError, match="failed to create") as error:
        new(timeout=-1.0)
    assert "timeout" in str(error.value.__cause__)
    from torch.distributed._transport import new_transport

    with pytest.raises(RuntimeError, match="failed to create") as error:
        new_transport("harp", "cuda")
    assert "CPU" in str(error.value.__cause__)


def test_many_transports_leave_nothing() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    with new() as first:
        first.bind()
        before = descriptors()
        for _ in range(20):
            with new() as a, new() as b:
                a.connect(b.bind())
                b.connect(a.bind())
                buffer = b.register_memory(torch.zeros(1000)).to_remote_buffer()
                a.write(a.register_memory(torch.ones(1000)).to_view(), buffer)
        assert descriptors() == before
