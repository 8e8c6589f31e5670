"""torch's one-sided transport (torch 2.15 on) over HARP.

Two processes, of one job or of two, register CPU tensors, tell each other bytes over whatever
channel they trust, and read and write each other's registered memory::

    from torch.distributed._transport import new_transport

    transport = new_transport("harp", "cpu")
    transport.connect(peer_url)  # what bind() of the peer returned; it connects to this one, too
    memory = transport.register_memory(tensor)
    transport.write(memory.to_view(), remote)  # a RemoteBuffer of the peer's

The interface is torch's own and private as yet (``torch.distributed._transport``): its contract is
in that package's ``Transport``; docs/transports.md says what is particular here.
"""

from __future__ import annotations

import asyncio
import atexit
import math
import operator
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import torch
from torch.distributed import Work

from taco_torch._extension import _C
from taco_torch.errors import CollectiveTimeoutError

try:
    from torch.distributed._transport import Transport  # type: ignore[import-not-found]
except ImportError as error:
    raise ImportError(
        f'the transport "harp" needs torch 2.15, which has torch.distributed._transport; '
        f"torch {torch.__version__} is running"
    ) from error

__all__ = ["HarpMemory", "HarpMemoryView", "HarpRemoteBuffer", "HarpTransport"]

DEFAULT_TIMEOUT = 30.0


def _seconds(timeout: float | None, default: float) -> float:
    if timeout is None:
        return default
    if not math.isfinite(timeout) or timeout < 0:
        raise ValueError(f"timeout must be finite and nonnegative, got {timeout}")
    return timeout


def _in_slices(wait: Callable[[float], None], seconds: float) -> None:
    """Waits again and again, so that a handler of a signal, that of Ctrl-C say, gets its turn."""
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        try:
            return wait(max(0.0, min(0.1, left)))
        except CollectiveTimeoutError as error:
            if left <= 0.1:
                raise TimeoutError(str(error)) from error


class HarpRemoteBuffer:
    """A piece of memory that the peer has registered: what its ``serialize()`` returns may be
    carried to the other process, which makes the buffer of it again. It opens that memory to the
    process that the owner is connected to, and nobody else, until it is unregistered."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def size(self) -> int:
        """In bytes."""
        return int(self._handle.bytes)

    def part(self, offset: int, length: int) -> HarpRemoteBuffer:
        """``length`` bytes from ``offset`` on.

        Raises:
            ValueError: they exceed this buffer.
        """
        offset, length = operator.index(offset), operator.index(length)
        if offset < 0 or length < 0:
            raise ValueError(f"offset and length must be nonnegative, got {offset} and {length}")
        return HarpRemoteBuffer(self._handle.part(offset, length))

    def serialize(self) -> bytes:
        return bytes(self._handle.encode())

    @classmethod
    def deserialize(cls, data: bytes) -> HarpRemoteBuffer:
        """
        Raises:
            ValueError: these bytes are no remote buffer of HARP's, or damaged.
            VersionMismatchError: they are another version's.
        """
        if type(data) is not bytes:
            raise TypeError(f"a serialized remote buffer is bytes, got {type(data).__name__}")
        return cls(_C.remote.Handle.decode(data))


class HarpMemoryView:
    """Bytes of registered memory, to be written from."""

    def __init__(self, memory: HarpMemory, offset: int, length: int) -> None:
        self._memory = memory
        self._offset = offset
        self._length = length

    def size(self) -> int:
        return self._length


class HarpMutableMemoryView(HarpMemoryView):
    """Bytes of registered memory, to be written from and read into."""

    writable: Literal[True] = True


class HarpMemory:
    """A tensor that is registered with a transport. Each registration is one of its own, also of
    the same tensor."""

    def __init__(self, transport: HarpTransport, memory: Any) -> None:
        self._transport = transport
        self._memory = memory

    def _range(self, offset: int | None, length: int | None) -> tuple[int, int]:
        self._check_registered()
        bytes_ = self._memory.bytes
        offset = 0 if offset is None else operator.index(offset)
        length = bytes_ - offset if length is None else operator.index(length)
        if offset < 0 or length < 0 or offset > bytes_ or length > bytes_ - offset:
            raise ValueError(
                f"{length} bytes at offset {offset} exceed the registered memory, "
                f"which has {bytes_} bytes"
            )
        return offset, length

    def _check_registered(self) -> None:
        if not self._memory.registered:
            raise RuntimeError("this memory was unregistered, or its transport closed")

    def to_view(self, offset: int | None = None, length: int | None = None) -> HarpMemoryView:
        """Offset and length are in bytes; all that is left, without a length."""
        return HarpMemoryView(self, *self._range(offset, length))

    def to_mutable_view(
        self, offset: int | None = None, length: int | None = None
    ) -> HarpMutableMemoryView:
        return HarpMutableMemoryView(self, *self._range(offset, length))

    def to_remote_buffer(self, *, timeout: float | None = None) -> HarpRemoteBuffer:
        self._check_registered()
        return HarpRemoteBuffer(self._memory.handle)


class _HarpWork(Work):
    def __init__(self, transfer: Any, timeout: float) -> None:
        super().__init__()
        self._transfer = transfer
        self._timeout = timeout
        self._lock = threading.Lock()
        self._future: torch.futures.Future[Any] | None = None
        self._future_is_set = False

    def _complete_future(self) -> None:
        """Once the transfer is done: completes the future, if anybody has one, exactly once."""
        with self._lock:
            if self._future is None or self._future_is_set:
                return
            self._future_is_set = True
        error = self.exception()
        if error is None:
            self._future.set_result([])
        else:
            self._future.set_exception(error)

    def is_completed(self) -> bool:
        if not self._transfer.done():
            return False
        self._complete_future()
        return True

    def exception(self) -> Exception | None:
        """None while the transfer is under way."""
        if not self._transfer.done():
            return None
        try:
            self._transfer.wait(0.0)
        except Exception as error:
            return error
        return None

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        seconds = _seconds(timeout.total_seconds(), 0.0) or self._timeout
        try:
            is_done = self._transfer.wait(seconds)
        except BaseException:
            self.is_completed()
            raise
        if not is_done:
            raise TimeoutError(
                f"the transfer was not done within {seconds:g} s, and goes on: keep its memory, "
                "wait again, or close the transport"
            )
        self._complete_future()
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        with self._lock:
            is_first = self._future is None
            if self._future is None:
                self._future = torch.futures.Future()
        if self._transfer.done():
            self._complete_future()
        elif is_first:
            try:
                self._transfer.on_done(self._complete_future)
            except BaseException:  # in a forked child, where nobody would complete it
                self._future = None
                raise
        return self._future

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return []

    def synchronize(self) -> None:
        self.wait()


_live: weakref.WeakSet[HarpTransport] = weakref.WeakSet()


def _drop_all() -> None:
    for transport in list(_live):
        transport._endpoint.drop()


# No callback of a transfer may run while the interpreter shuts down.
atexit.register(_drop_all)


class HarpTransport(Transport):  # type: ignore[misc]
    """The transport ``harp``: one endpoint with one peer.

    Args:
        device: "cpu", or nothing: there are no others here.
        timeout: how long a call waits, in seconds, where it says nothing else.

    Both ends connect to each other, in any order; until the peer has, transfers wait, as long as
    ``TACO_PEER_TIMEOUT_MS``. A peer that dies fails what is under way with
    :class:`taco_torch.PeerLostError`, which names it.
    """

    def __init__(
        self, device: torch.device | str | None = None, *, timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        super().__init__(device)
        if self.device is not None and self.device.type != "cpu":
            raise ValueError(f"the transport harp is for CPU tensors, got device {self.device}")
        self._timeout = _seconds(timeout, DEFAULT_TIMEOUT)
        self._default_timeout = self._timeout
        self._endpoint = _C.remote.Endpoint()
        _live.add(self)

    @staticmethod
    def supported() -> bool:
        return True

    def bind(self, *, timeout: float | None = None) -> bytes:
        """The address that the peer connects to. It holds a secret of this process: carry it as you
        would a password."""
        return bytes(self._endpoint.address())

    def connect(self, peer_url: bytes, *, timeout: float | None = None) -> int:
        """Returns at once; whether the peer can be reached, the first transfer finds out.

        Raises:
            ValueError: this endpoint has a peer, or ``peer_url`` is nothing that ``bind()`` made.
            VersionMismatchError: the peer has another version, or settings of TACO_HARP_*.
            RendezvousError: no interface of this host leads to one of the peer's.
        """
        if not isinstance(peer_url, bytes):
            raise TypeError(f"peer_url is bytes, got {type(peer_url).__name__}")
        self._endpoint.connect(peer_url)
        return 0

    def connected(self) -> bool:
        return bool(self._endpoint.connected())

    def register_memory(self, tensor: torch.Tensor, *, timeout: float | None = None) -> HarpMemory:
        """The tensor's storage is kept, and cannot be resized, until it is unregistered.

        Raises:
            ValueError: it is not on the CPU, not contiguous, empty, or its memory is gone.
        """
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"tensor is a torch.Tensor, got {type(tensor).__name__}")
        if tensor.device.type != "cpu":
            raise ValueError(f"the transport harp is for CPU tensors, got one on {tensor.device}")
        if tensor.layout != torch.strided:
            raise ValueError(f"a transport needs a dense tensor, got one of layout {tensor.layout}")
        if tensor.numel() == 0:
            raise ValueError(f"an empty tensor cannot be registered; its shape is {tensor.shape}")
        return HarpMemory(self, self._endpoint.add(tensor))

    def unregister_memory(self, memory: Any, *, timeout: float | None = None) -> None:
        """Revokes its remote buffers: what the peer has under way with them fails at the peer, and
        once this returns, nothing touches the memory any more.

        Raises:
            ValueError: transfers that were started here use it.
            TimeoutError: the memory may be touched yet; try again.
        """
        if not isinstance(memory, HarpMemory) or memory._transport is not self:
            raise TypeError("this memory was not registered by this transport")
        _in_slices(partial(self._endpoint.remove, memory._memory), _seconds(timeout, self._timeout))

    def _check_transfer(self, local_buffer: Any, remote_buffer: Any, *, mutable: bool) -> None:
        wanted = HarpMutableMemoryView if mutable else HarpMemoryView
        if not isinstance(local_buffer, wanted) or local_buffer._memory._transport is not self:
            kind = "a mutable view" if mutable else "a view"
            raise TypeError(f"local_buffer is not {kind} of memory of this transport")
        if not isinstance(remote_buffer, HarpRemoteBuffer):
            raise TypeError(
                f"remote_buffer is not of a transport of HARP's, but {type(remote_buffer).__name__}"
            )
        local_buffer._memory._check_registered()

    def _start(
        self, local: Any, remote: Any, *, writes: bool, async_op: bool, timeout: float | None
    ) -> int | Work:
        seconds = _seconds(timeout, self._timeout)
        self._check_transfer(local, remote, mutable=not writes)
        transfer = self._endpoint.start(
            writes, local._memory._memory, local._offset, local._length, remote._handle
        )
        work = _HarpWork(transfer, seconds)
        if async_op:
            return work
        work.wait()
        return 0

    def write(
        self,
        local_buffer: Any,
        remote_buffer: Any,
        *,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> int | Work:
        """Writes all of the local view to the beginning of the remote buffer. Once it is done, the
        bytes are in place there, and the view may be changed.

        Raises, here or where the Work is waited for:
            ValueError: there is no peer, the buffer is another endpoint's, or too small.
            AbortedError: the peer has unregistered that memory, or closed its endpoint.
            PeerLostError: the peer died or fell silent.
            TimeoutError: it goes on.
        """
        return self._start(
            local_buffer, remote_buffer, writes=True, async_op=async_op, timeout=timeout
        )

    def read(
        self,
        local_buffer: Any,
        remote_buffer: Any,
        *,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> int | Work:
        """Fills the local view from the beginning of the remote buffer; as ``write`` otherwise."""
        return self._start(
            local_buffer, remote_buffer, writes=False, async_op=async_op, timeout=timeout
        )

    def _cuda_stream(self, stream: Any) -> Any:
        raise NotImplementedError("the transport harp is for CPU tensors and orders no stream")

    def close(self, *, timeout: float | None = None) -> None:
        """Waits for the transfers that were started here, then revokes all memory and tells the
        peer.

        Raises:
            TimeoutError: transfers are under way still; nothing more can be started. Close again.
        """
        _in_slices(self._endpoint.close, _seconds(timeout, self._timeout))

    async def close_async(self, *, timeout: float | None = None) -> None:
        close = partial(self.close, timeout=timeout)
        await asyncio.get_running_loop().run_in_executor(None, close)
