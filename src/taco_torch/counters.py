"""Counters of this process, as plain values."""

from dataclasses import dataclass, fields

from taco_torch._extension import _C


@dataclass(frozen=True)
class AlgorithmStats:
    """Totals of one algorithm; ``seconds`` is the sum of the durations of its operations."""

    calls: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Stats:
    """Counters since the first group was made.

    Attributes:
        bytes_sent, bytes_received: payload over the network.
        packets_sent, packets_received: datagrams, before the kernel merges or splits them.
        retransmits: packets sent again.
        spurious_retransmits: those of them whose first copy had arrived after all.
        checksum_failures, duplicates: packets dropped on arrival.
        bytes_copied: payload of small messages that arrived before their receive was posted, and
            so was copied once more.
        socket_overflows: packets the kernel dropped because a socket buffer was full.
        shm_bytes, shm_messages: sent through shared memory.
        doorbells: wake-ups sent to peers on this host.
        sleeps: how often an engine went to sleep.
        sessions, shm_links: peers in contact now, over the network and through shared memory.
        unmatched: messages that peers have sent, offered or asked for, and that no operation here
            has reached yet.
        path_bytes: the largest packet (UDP payload) that is known to reach every peer in contact
            over the network; 0 while there is none.
        algorithms: totals by "collective/algorithm".
        planner_costs: the costs from which groups are planned, the same on all ranks: "table" or
            "measured" (TACO_TUNE), and their hash.
    """

    bytes_sent: int
    bytes_received: int
    packets_sent: int
    packets_received: int
    retransmits: int
    spurious_retransmits: int
    checksum_failures: int
    duplicates: int
    bytes_copied: int
    socket_overflows: int
    shm_bytes: int
    shm_messages: int
    doorbells: int
    sleeps: int
    sessions: int
    shm_links: int
    unmatched: int
    path_bytes: int
    algorithms: dict[str, AlgorithmStats]
    planner_costs: str

    def __sub__(self, earlier: "Stats") -> "Stats":
        """What happened since ``earlier``; ``sessions`` and ``shm_links`` are differences too,
        ``path_bytes`` is what it is now."""
        counters = {
            field.name: getattr(self, field.name) - getattr(earlier, field.name)
            for field in fields(self)
            if field.name not in ("path_bytes", "algorithms", "planner_costs")
        }
        none = AlgorithmStats(0, 0, 0.0)
        algorithms = {}
        for name, now in self.algorithms.items():
            before = earlier.algorithms.get(name, none)
            if now.calls > before.calls:
                algorithms[name] = AlgorithmStats(
                    now.calls - before.calls,
                    now.bytes - before.bytes,
                    now.seconds - before.seconds,
                )
        return Stats(
            **counters,
            path_bytes=self.path_bytes,
            algorithms=algorithms,
            planner_costs=self.planner_costs,
        )


def stats() -> Stats:
    """A snapshot of all counters. Cheap; may be called from any thread."""
    algorithms = {
        name: AlgorithmStats(calls, size, seconds)
        for name, calls, size, seconds in _C.algorithm_stats()
    }
    return Stats(
        **_C.transport_stats(),
        algorithms=algorithms,
        planner_costs=_C.planner_costs()["block"],
    )
