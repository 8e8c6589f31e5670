"""Ranks of NCCL, as nccl.py starts them: one in this process, or both, each a thread of it with a
libnccl.so.2 and a plugin of its own.

    python nccl_pair.py JSON      prints one line of JSON

Processes that share a GPU take turns on it, so that a kernel that waits for its peer holds it up
for milliseconds; threads of one process do not. NCCL's state belongs to the library, so each thread
loads a copy of it. In either case each rank has the name of another host: otherwise NCCL would
refuse two ranks on a GPU, and not use the network.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
import socket
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy

RANKS = 2
UNIQUE_ID_BYTES = 128
INT32, UINT8, SUM = 2, 1, 0  # as nccl.h numbers them
NON_BLOCKING = 1
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
MS_REC, MS_SLAVE, MNT_DETACH = 0x4000, 0x80000, 2
Moves = Callable[["Rank", int], None]


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * UNIQUE_ID_BYTES)]


def enter_host(namespace: str) -> None:
    """Moves the calling thread, and those that it starts, to a host with a /sys of its own."""
    libc = ctypes.CDLL(None, use_errno=True)

    def checked(name: str, *arguments: Any) -> None:
        if getattr(libc, name)(*arguments) != 0:
            raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")

    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    checked("setns", descriptor, CLONE_NEWNET)
    os.close(descriptor)
    checked("unshare", CLONE_NEWNS)
    checked("mount", b"none", b"/", None, MS_REC | MS_SLAVE, None)
    libc.umount2(b"/sys", MNT_DETACH)
    checked("mount", b"none", b"/sys", b"sysfs", 0, None)


def packets_sent() -> dict[str, int]:
    """TCP segments and UDP datagrams that the calling thread's host has sent so far."""
    with open("/proc/thread-self/net/snmp") as file:
        text = file.read()
    found = {}
    for protocol, column in (("Tcp", "OutSegs"), ("Udp", "OutDatagrams")):
        names, values = re.findall(rf"^{protocol}: (.*)$", text, re.MULTILINE)
        found[protocol.lower()] = dict(zip(names.split(), values.split(), strict=True))[column]
    return {name: int(value) for name, value in found.items()}


class Rank:
    """One rank: a communicator, a stream and two pieces of the GPU's memory."""

    def __init__(self, number: int, cuda: ctypes.CDLL, options: dict[str, Any]) -> None:
        self.number = number
        self.cuda = cuda
        self.options = options
        self.nccl = ctypes.CDLL(options["nccl"][number])
        self.nccl.ncclGetErrorString.restype = ctypes.c_char_p
        self.cuda.cudaGetErrorString.restype = ctypes.c_char_p
        self.communicator = ctypes.c_void_p()
        self.stream = ctypes.c_void_p()
        self.data, self.result = ctypes.c_void_p(), ctypes.c_void_p()
        self.largest = max(options["sizes"] + options["checked_sizes"])

    def call_cuda(self, name: str, *arguments: Any) -> None:
        status = getattr(self.cuda, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name}: {self.cuda.cudaGetErrorString(status).decode()}")

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.nccl, name)(*arguments)
        if status != 0:
            text = self.nccl.ncclGetErrorString(status).decode()
            raise RuntimeError(f"rank {self.number}: {name}: {text}")

    def prepare(self) -> None:
        """A communicator of this rank alone: this copy of NCCL now has its host and its plugin."""
        count = ctypes.c_int()
        self.call_cuda("cudaGetDeviceCount", ctypes.byref(count))
        self.call_cuda("cudaSetDevice", self.number % count.value)
        os.environ["NCCL_HOSTID"] = f"host{self.number}"
        if self.options["plugin"]:
            os.environ["NCCL_NET_PLUGIN"] = self.options["plugin"][self.number]
        alone = ctypes.c_void_p()  # never destroyed: NCCL would let go of the plugin
        unique = UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(unique))
        self.call("ncclCommInitRank", ctypes.byref(alone), 1, unique, 0)
        self.call_cuda("cudaStreamCreateWithFlags", ctypes.byref(self.stream), NON_BLOCKING)
        for piece in (self.data, self.result):
            # all_gather's result is as large as all ranks' data
            self.call_cuda("cudaMalloc", ctypes.byref(piece), ctypes.c_size_t(RANKS * self.largest))

    def connect(self, unique: UniqueId) -> None:
        begun = time.monotonic()
        self.call("ncclCommInitRank", ctypes.byref(self.communicator), RANKS, unique, self.number)
        self.connect_s = time.monotonic() - begun

    def wait(self) -> None:
        self.call_cuda("cudaStreamSynchronize", self.stream)

    def put(self, values: Any) -> None:
        self.call_cuda(
            "cudaMemcpyAsync",
            self.data,
            values.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_size_t(values.nbytes),
            HOST_TO_DEVICE,
            self.stream,
        )
        self.wait()

    def take(self, values: Any) -> Any:
        self.call_cuda(
            "cudaMemcpyAsync",
            values.ctypes.data_as(ctypes.c_void_p),
            self.result,
            ctypes.c_size_t(values.nbytes),
            DEVICE_TO_HOST,
            self.stream,
        )
        self.wait()
        return values


def at(piece: ctypes.c_void_p, offset: int) -> ctypes.c_void_p:
    return ctypes.c_void_p((piece.value or 0) + offset)


def all_reduce(rank: Rank, size: int) -> None:
    count = ctypes.c_size_t(size // 4)
    ends = (rank.data, rank.result, count, INT32, SUM)
    rank.call("ncclAllReduce", *ends, rank.communicator, rank.stream)


def all_gather(rank: Rank, size: int) -> None:
    """`size` is what a rank ends with, as in NCCL's own tests."""
    count = ctypes.c_size_t(size // RANKS)
    ends = (rank.data, rank.result, count, UINT8)
    rank.call("ncclAllGather", *ends, rank.communicator, rank.stream)


def reduce_scatter(rank: Rank, size: int) -> None:
    count = ctypes.c_size_t(size // RANKS // 4)
    ends = (rank.data, rank.result, count, INT32, SUM)
    rank.call("ncclReduceScatter", *ends, rank.communicator, rank.stream)


def pass_one(rank: Rank, name: str, piece: ctypes.c_void_p, size: int, peer: int) -> None:
    count = ctypes.c_size_t(size)
    rank.call(name, piece, count, UINT8, peer, rank.communicator, rank.stream)


def all_to_all(rank: Rank, size: int) -> None:
    part = size // RANKS
    rank.call("ncclGroupStart")
    for peer in range(RANKS):
        pass_one(rank, "ncclSend", at(rank.data, peer * part), part, peer)
        pass_one(rank, "ncclRecv", at(rank.result, peer * part), part, peer)
    rank.call("ncclGroupEnd")


def send(rank: Rank, size: int) -> None:
    """From rank 0 to rank 1."""
    if rank.number == 0:
        pass_one(rank, "ncclSend", rank.data, size, 1)
    else:
        pass_one(rank, "ncclRecv", rank.result, size, 0)


def exchange(rank: Rank, size: int) -> None:
    """Both ways at the same time."""
    rank.call("ncclGroupStart")
    pass_one(rank, "ncclSend", rank.data, size, 1 - rank.number)
    pass_one(rank, "ncclRecv", rank.result, size, 1 - rank.number)
    rank.call("ncclGroupEnd")


KINDS: dict[str, Moves] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "send": send,
    "exchange": exchange,
}


def made(seed: int, size: int, rank: int) -> Any:
    """`size` bytes that differ from rank to rank and from round to round."""
    generator = numpy.random.Generator(numpy.random.PCG64([seed, rank]))
    return numpy.frombuffer(generator.bytes(size), dtype=numpy.uint8)


def expected(kind: str, rank: int, values: list[Any]) -> Any:
    """The bytes of `result` once all have arrived, or None where this rank receives none."""
    size = values[0].nbytes
    half = size // RANKS
    if kind == "send":
        return values[0] if rank == 1 else None
    if kind == "exchange":
        return values[1 - rank]
    if kind == "all_gather":
        return numpy.concatenate([value[:half] for value in values])
    if kind == "all_to_all":
        return numpy.concatenate([value[rank * half : (rank + 1) * half] for value in values])
    total = values[0].view(numpy.int32) + values[1].view(numpy.int32)
    if kind == "reduce_scatter":
        total = total[rank * half // 4 : (rank + 1) * half // 4]
    return total.view(numpy.uint8)


class Threads:
    """The rendezvous of ranks that are threads of one process."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(RANKS)
        self.kept: Any = None

    def wait(self) -> None:
        self.barrier.wait()

    def share(self, rank: Rank, value: Any) -> Any:
        """Rank 0's value."""
        if rank.number == 0:
            self.kept = value
        self.wait()
        kept = self.kept
        self.wait()
        return kept

    def abort(self) -> None:
        self.barrier.abort()


class Processes:
    """The rendezvous of a rank with the one of another process: a socket that leads there."""

    def __init__(self, descriptor: int) -> None:
        self.peer = socket.socket(fileno=descriptor)

    def wait(self) -> None:
        self.peer.sendall(b".")
        self.receive()

    def share(self, rank: Rank, value: Any) -> Any:
        if rank.number == 0:
            self.peer.sendall(json.dumps(value).encode().ljust(1024))
            return value
        return json.loads(self.receive(1024))

    def receive(self, size: int = 1) -> bytes:
        found = self.peer.recv(size, socket.MSG_WAITALL)
        if len(found) != size:
            raise threading.BrokenBarrierError
        return found

    def abort(self) -> None:
        self.peer.close()


class Course:
    """All that the ranks go through, in step."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.order = threading.Lock()
        self.errors: list[str] = []
        self.found: dict[int, dict[str, Any]] = {number: {} for number in options["ranks"]}
        alone = len(self.found) == 1
        self.rendezvous = Processes(options["descriptor"]) if alone else Threads()
        self.cuda = ctypes.CDLL(options["cuda_runtime"])

    def run(self) -> dict[str, Any]:
        threads = [
            threading.Thread(target=self.be, args=(number,), daemon=True) for number in self.found
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and not self.errors:
                thread.join(0.05)
        wrong = [text for found in self.found.values() for text in found.get("wrong", [])]
        first = next(iter(self.found.values()))
        return {**first, "errors": self.errors, "wrong": wrong}

    def be(self, number: int) -> None:
        try:
            self.act(number)
        except threading.BrokenBarrierError:
            pass
        except BaseException:
            self.errors.append(traceback.format_exc())
            self.rendezvous.abort()

    def act(self, number: int) -> None:
        if self.options["namespaces"]:
            enter_host(self.options["namespaces"][number])
        rank = Rank(number, self.cuda, self.options)
        with self.order:
            rank.prepare()
        unique = UniqueId()
        if number == 0:
            rank.call("ncclGetUniqueId", ctypes.byref(unique))
        shared = self.rendezvous.share(rank, bytes(unique).hex())
        rank.connect(UniqueId.from_buffer_copy(bytes.fromhex(shared)))
        found = self.found[number]
        found["connect_s"] = rank.connect_s
        before = packets_sent()
        found["wrong"], found["checks"] = self.check(rank)
        found["rows"] = self.measure(rank)
        found["sent"] = {name: count - before[name] for name, count in packets_sent().items()}
        self.rendezvous.wait()

    def check(self, rank: Rank) -> tuple[list[str], int]:
        wrong, checks = [], 0
        for kind in self.options["kinds"]:
            for size in self.options["checked_sizes"]:
                bad = sum(
                    self.is_wrong(rank, kind, size, seed)
                    for seed in range(self.options["checks"] if size <= 1 << 20 else 2)
                )
                checks += self.options["checks"] if size <= 1 << 20 else 2
                if bad:
                    wrong.append(f"{kind} of {size} B: {bad} results of rank {rank.number}")
        return wrong, checks

    def is_wrong(self, rank: Rank, kind: str, size: int, seed: int) -> bool:
        values = [made(seed, size, number) for number in range(RANKS)]
        rank.put(values[rank.number])
        self.rendezvous.wait()
        KINDS[kind](rank, size)
        rank.wait()
        wanted = expected(kind, rank.number, values)
        if wanted is None:
            return False
        return not numpy.array_equal(rank.take(numpy.zeros_like(wanted)), wanted)

    def measure(self, rank: Rank) -> list[dict[str, Any]]:
        rows = []
        for kind in self.options["kinds"]:
            for size in self.options["sizes"]:
                act = functools.partial(KINDS[kind], rank, size)
                self.time(rank, act, 3)
                rounds = self.rounds(rank, self.time(rank, act, 3))
                times = [self.time(rank, act, rounds) for _ in range(self.options["repeats"])]
                rows.append({"kind": kind, "bytes": size, "s": statistics.median(times)})
        return rows

    def rounds(self, rank: Rank, seconds: float) -> int:
        return int(
            self.rendezvous.share(rank, max(2, min(1000, int(self.options["slice_s"] / seconds))))
        )

    def time(self, rank: Rank, act: Callable[[], None], rounds: int) -> float:
        """Seconds of one, of so many one after the other."""
        self.rendezvous.wait()
        begun = time.perf_counter()
        for _ in range(rounds):
            act()
        rank.wait()
        return (time.perf_counter() - begun) / rounds


def main() -> None:
    found = Course(json.loads(sys.argv[1])).run()
    print(json.dumps(found), flush=True)
    os._exit(1 if found["errors"] else 0)  # a rank whose peer has failed may wait for it still


if __name__ == "__main__":
    main()
