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
class LightccStats:
    """Counters of compressed gradients (``taco_torch.lightcc``).

    Attributes:
        bytes_before, bytes_after: of the elements that were encoded here, and of what was sent for
            them.
        encode_seconds, decode_seconds: of a processor; decoding includes adding up.
        residual_norm: Euclidean, of what this rank has not sent yet, in units of the averaged,
            unscaled gradient. 0 while gradients are being reduced.
        chosen: what each bucket is sent as now, in the order in which they become ready, of models
            that choose by themselves (``compress(model, "auto")``): "float32", "float16",
            "bfloat16" or "topk". Several models one after the other; empty before the first step
            is over.
    """

    bytes_before: int = 0
    bytes_after: int = 0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    residual_norm: float = 0.0
    chosen: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """``bytes_after`` to ``bytes_before``; 1 while nothing was encoded."""
        return self.bytes_after / self.bytes_before if self.bytes_before else 1.0

    def __sub__(self, earlier: "LightccStats") -> "LightccStats":
        return LightccStats(
            self.bytes_before - earlier.bytes_before,
            self.bytes_after - earlier.bytes_after,
            self.encode_seconds - earlier.encode_seconds,
            self.decode_seconds - earlier.decode_seconds,
            self.residual_norm,
            self.chosen,
        )


@dataclass(frozen=True)
class PathStats:
    """One way to a peer over the network.

    Attributes:
        local, remote: the addresses between which it leads, with their UDP ports.
        state: "live"; "proving" while it has never been seen to lead anywhere; "left" while it is
            tried again after it had fallen silent; "resting" while even that is not done, since it
            has come and gone.
        round_trip_s: smoothed, seconds; 0 while it is not known.
        window: packets that may be under way on it.
        bytes_sent: payload that has left by it.
        lost: packets that were lost on it.
        datagram: the largest packet (UDP payload) that it is known to carry.
        text: all of this in a line, as ``dump()`` and ``taco_torch.info`` show it.
    """

    local: str
    remote: str
    state: str
    round_trip_s: float
    window: int
    bytes_sent: int
    lost: int
    datagram: int
    text: str


def paths_by_peer() -> dict[str, tuple[PathStats, ...]]:
    """The single paths by the peer they lead to, "10.0.0.2:41234 (pid 77 on nodeb)"."""
    found: dict[str, tuple[PathStats, ...]] = {}
    for facts in _C.network_paths():
        peer = facts.pop("peer")
        found[peer] = (*found.get(peer, ()), PathStats(**facts))
    return found


@dataclass(frozen=True)
class Stats:
    """Counters since the first group was made.

    Attributes:
        bytes_sent, bytes_received: payload over the network.
        packets_sent, packets_received: datagrams, before the kernel merges or splits them.
        retransmits: packets sent again.
        spurious_retransmits: those of them whose first copy had arrived after all.
        checksum_failures: packets dropped on arrival because their checksum or tag was wrong, for
            damage or forgery.
        refused_packets: packets dropped because they were malformed, proved nothing, were not
            protected as `TACO_HARP_SECURITY` wants, or came before their session had keys (a few
            do when hellos are lost).
        duplicates: packets dropped because they had come before.
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
        paths: ways by which these peers are reached now, one or more each.
        paths_left: how often one was given up because it had fallen silent while others answered.
        paths_moved: how often one of several between the same addresses (TACO_PATHS) went to other
            ports, in the hope of a link that is less crowded.
        paths_by_peer: each of these ways by itself, by peer, "10.0.0.2:41234 (pid 77 on nodeb)".
        algorithms: totals by "collective/algorithm".
        planner_costs: the costs from which groups are planned, the same on all ranks: "table" or
            "measured" (TACO_TUNE), and their hash.
        lightcc: what compressing gradients has done.
    """

    bytes_sent: int
    bytes_received: int
    packets_sent: int
    packets_received: int
    retransmits: int
    spurious_retransmits: int
    checksum_failures: int
    refused_packets: int
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
    paths: int
    paths_left: int
    paths_moved: int
    paths_by_peer: dict[str, tuple[PathStats, ...]]
    algorithms: dict[str, AlgorithmStats]
    planner_costs: str
    lightcc: LightccStats

    def __sub__(self, earlier: "Stats") -> "Stats":
        """Counts since ``earlier``; ``sessions``, ``paths`` and ``shm_links`` are
        differences too, ``path_bytes``, ``paths_by_peer``, ``residual_norm`` and ``chosen`` are
        what they are now."""
        counters = {
            field.name: getattr(self, field.name) - getattr(earlier, field.name)
            for field in fields(self)
            if field.name not in _NO_COUNTERS
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
            paths_by_peer=self.paths_by_peer,
            algorithms=algorithms,
            planner_costs=self.planner_costs,
            lightcc=self.lightcc - earlier.lightcc,
        )


_NO_COUNTERS = ("path_bytes", "paths_by_peer", "algorithms", "planner_costs", "lightcc")


def stats() -> Stats:
    """A snapshot of all counters. Cheap, but for compressed gradients, whose residuals it reads
    through; may be called from any thread."""
    algorithms = {
        name: AlgorithmStats(calls, size, seconds)
        for name, calls, size, seconds in _C.algorithm_stats()
    }
    return Stats(
        **_C.transport_stats(),
        paths_by_peer=paths_by_peer(),
        algorithms=algorithms,
        planner_costs=_C.planner_costs()["block"],
        lightcc=LightccStats(**_C.lightcc_stats()),
    )
