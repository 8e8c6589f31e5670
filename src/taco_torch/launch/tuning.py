"""horovodrun's flags that do nothing but set a variable ``HOROVOD_*`` for all ranks."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from taco_torch.launch.output import say


@dataclass(frozen=True)
class Flag:
    """``kind`` reads and checks the value that the user gives, None for a flag without one;
    ``written`` says how the variable has it."""

    name: str
    variable: str
    help: str
    kind: Callable[[str], object] | None = None
    written: Callable[[object], str] = str
    value: str = "1"  # of a flag without a value of its own
    effect: bool = True  # whether anything in taco_torch reads the variable

    @property
    def field(self) -> str:
        return self.name.lstrip("-").replace("-", "_")


def at_least(least: float, kind: Callable[[str], float]) -> Callable[[str], object]:
    def read(text: str) -> float:
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"{text} is below {least:g}")
        return value

    read.__name__ = "number"
    return read


def _bytes_of_megabytes(value: object) -> str:
    assert isinstance(value, int)
    return str(value << 20)


_COUNT, _TIME = at_least(0, int), at_least(0, float)

# Flags of horovodrun's whose variables nothing reads; without a kind there is a --no- beside it.
_UNREAD: tuple[tuple[str, str, Callable[[str], object] | None], ...] = (
    ("hierarchical-allreduce", "HOROVOD_HIERARCHICAL_ALLREDUCE", None),
    ("hierarchical-allgather", "HOROVOD_HIERARCHICAL_ALLGATHER", None),
    ("autotune", "HOROVOD_AUTOTUNE", None),
    ("autotune-log-file", "HOROVOD_AUTOTUNE_LOG", str),
    ("autotune-warmup-samples", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", _COUNT),
    ("autotune-steps-per-sample", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", _COUNT),
    ("autotune-bayes-opt-max-samples", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", _COUNT),
    ("autotune-gaussian-process-noise", "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", _TIME),
    ("mpi-threads-disable", "HOROVOD_MPI_THREADS_DISABLE", None),
    ("num-nccl-streams", "HOROVOD_NUM_NCCL_STREAMS", _COUNT),
    ("thread-affinity", "HOROVOD_THREAD_AFFINITY", _COUNT),
    ("gloo-timeout-seconds", "HOROVOD_GLOO_TIMEOUT_SECONDS", _COUNT),
    ("log-level", "HOROVOD_LOG_LEVEL", str),
)

FLAGS = [
    Flag(
        "--fusion-threshold-mb",
        "HOROVOD_FUSION_THRESHOLD",
        "the most MiB of small tensors that travel as one; 0 fuses none",
        _COUNT,
        _bytes_of_megabytes,
    ),
    Flag(
        "--cycle-time-ms",
        "HOROVOD_CYCLE_TIME",
        "milliseconds between two rounds of negotiation that bring nothing",
        _TIME,
    ),
    Flag(
        "--cache-capacity",
        "HOROVOD_CACHE_CAPACITY",
        "how many tensors' answers are remembered, so that one bit asks for them again",
        _COUNT,
    ),
    Flag("--timeline-filename", "HOROVOD_TIMELINE", "writes a timeline in Horovod's format", str),
    Flag(
        "--timeline-mark-cycles", "HOROVOD_TIMELINE_MARK_CYCLES", "marks the rounds on the timeline"
    ),
    Flag(
        "--no-timeline-mark-cycles",
        "HOROVOD_TIMELINE_MARK_CYCLES",
        argparse.SUPPRESS,
        value="0",
    ),
    Flag(
        "--no-stall-check",
        "HOROVOD_STALL_CHECK_DISABLE",
        "no warning about tensors that some ranks never submit",
    ),
    Flag("--stall-check", "HOROVOD_STALL_CHECK_DISABLE", argparse.SUPPRESS, value="0"),
    Flag(
        "--stall-check-warning-time-seconds",
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        "seconds until that warning (60 unless said)",
        _COUNT,
    ),
    Flag(
        "--stall-check-shutdown-time-seconds",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        "seconds until such an operation fails; 0, the default, is never",
        _COUNT,
    ),
    *(
        Flag(
            f"--{name}",
            variable,
            "accepted as horovodrun does; without effect here",
            kind,
            effect=False,
        )
        for name, variable, kind in _UNREAD
    ),
    *(
        Flag(f"--no-{name}", variable, argparse.SUPPRESS, value="0", effect=False)
        for name, variable, kind in _UNREAD
        if kind is None
    ),
    Flag(
        "--log-with-timestamp",
        "HOROVOD_LOG_HIDE_TIME",
        argparse.SUPPRESS,
        value="0",
        effect=False,
    ),
    Flag(
        "--log-without-timestamp",
        "HOROVOD_LOG_HIDE_TIME",
        argparse.SUPPRESS,
        value="1",
        effect=False,
    ),
]


def add_to(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("variables", "each sets a HOROVOD_* variable for all ranks")
    for flag in FLAGS:
        if flag.kind is None:
            group.add_argument(flag.name, dest=flag.field, action="store_true", help=flag.help)
        else:
            group.add_argument(flag.name, dest=flag.field, type=flag.kind, help=flag.help)


def chosen(arguments: argparse.Namespace) -> dict[str, str]:
    """The variables of the flags that were given. Says of which nothing comes."""
    found = {}
    for flag in FLAGS:
        value = getattr(arguments, flag.field)
        if value is None or value is False:
            continue
        found[flag.variable] = flag.value if flag.kind is None else flag.written(value)
        if not flag.effect:
            say(f"{flag.name} has no effect: taco_torch does not read {flag.variable}")
    return found
