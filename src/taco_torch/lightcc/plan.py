r"""``python -m taco_torch.lightcc.plan``: what a training step would take by each way of averaging
its gradients, predicted by the planner's own model, for a job that need not be at hand::

    python -m taco_torch.lightcc.plan --gradients 553MB --compute 518ms --hosts 2 --ranks 8 \
        --gbps 25

Gradients fill DDP's buckets evenly while the backward pass goes on, and the buckets travel one
after the other. What of that is not over when the computation ends, is exposed.
"""

import argparse
import dataclasses
import json
import math
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from taco_torch._extension import _C

SIZES = {
    **{"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9},
    **{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30},
}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
FIRST_BUCKET = 1 << 20  # DDP's
TOPK_THRESHOLD = 1 << 20  # bytes from which TopK is used: LIGHT_TOPK_THRESHOLD's default


@dataclass(frozen=True)
class Job:
    """One training job.

    Attributes:
        gradients: bytes of float32 gradients.
        compute_s: seconds of a step without communication.
        backward: share of them in which gradients become ready, at the end of the step; 0: all are
            ready when the computation ends, and nothing is hidden.
        hosts, ranks: hosts, and ranks on each.
        gbps: speed of a host's network interface, in Gbit/s.
        ratio, values: of TopK, as in ``lightcc.compress``.
        bucket: bytes of a bucket.
    """

    gradients: int
    compute_s: float
    hosts: int
    ranks: int
    gbps: float
    ratio: float = 0.01
    values: str = "float32"
    backward: float = 2 / 3
    bucket: int = 25 << 20

    def buckets(self) -> list[int]:
        """Bytes of each, the one that is ready first at the front."""
        sizes = [min(FIRST_BUCKET, self.bucket, self.gradients)]
        left = self.gradients - sizes[0]
        sizes += [self.bucket] * (left // self.bucket)
        return [*sizes, left % self.bucket] if left % self.bucket else sizes


@dataclass(frozen=True)
class Prediction:
    """What one choice would make of a job's step; ``host_bytes`` leave each host in a step."""

    choice: str
    algorithm: str
    host_bytes: float
    communication_s: float
    exposed_s: float
    step_s: float
    scaling: float


class _Cost(NamedTuple):
    algorithm: str
    seconds: float
    host_bytes: float


def _cheapest(job: Job, size: int, compression: str, accept: Callable[[str], bool]) -> _Cost | None:
    for found in _C.predict_all_reduce(
        size, job.hosts, job.ranks, job.gbps, compression, job.ratio, job.values == "float16"
    ):
        if accept(found[0]):
            return _Cost(*found)
    return None


def _is_two_dimensional(algorithm: str) -> bool:
    return algorithm == "two_dimensional"


def _is_plain(algorithm: str) -> bool:
    return not algorithm.startswith("two_dimensional")


def _is_coded(algorithm: str) -> bool:
    return algorithm.startswith("two_dimensional_")


def _choices(job: Job) -> list[tuple[str, str, Callable[[str], bool]]]:
    """(name, compression, which algorithms count)"""
    topk = f"TopK {job.ratio * 100:g}%, {job.values} values"
    return [
        ("dense without 2D", "none", _is_plain),
        ("dense, 2D", "none", _is_two_dimensional),
        ("2D, float16", "float16", _is_coded),
        (topk, "topk", _is_coded),
    ]


def _cost(job: Job, size: int, compression: str, accept: Callable[[str], bool]) -> _Cost | None:
    if compression == "topk" and size < TOPK_THRESHOLD:
        return _cheapest(job, size, "none", lambda _: True)
    return _cheapest(job, size, compression, accept)


def predict(job: Job) -> list[Prediction]:
    """A prediction for each choice that fits the job; on one host only the dense ones do.

    Raises:
        ValueError: a number that no job has.
    """
    _check(job)
    found = []
    for name, compression, accept in _choices(job):
        costs = [_cost(job, size, compression, accept) for size in job.buckets()]
        known = [cost for cost in costs if cost is not None]
        if len(known) == len(costs):
            found.append(_assemble(job, name, known))
    return found


def _assemble(job: Job, name: str, costs: list[_Cost]) -> Prediction:
    """The step whose buckets cost this."""
    backward_s = job.backward * job.compute_s
    done, end = 0, 0.0
    for size, cost in zip(job.buckets(), costs, strict=True):
        done += size
        ready = job.compute_s - backward_s * (1 - done / job.gradients)
        end = max(end, ready) + cost.seconds
    largest = max(costs, key=lambda cost: cost.seconds)
    return Prediction(
        choice=name,
        algorithm=largest.algorithm,
        host_bytes=sum(cost.host_bytes for cost in costs),
        communication_s=sum(cost.seconds for cost in costs),
        exposed_s=end - job.compute_s,
        step_s=end,
        scaling=job.compute_s / end,
    )


def _check(job: Job) -> None:
    problems = [
        (job.gradients < 4, f"gradients of {job.gradients} bytes: less than one float32"),
        (not job.compute_s > 0, f"a computation of {job.compute_s:g} s: it must take some time"),
        (job.hosts < 1, f"{job.hosts} hosts: there must be one at least"),
        (job.ranks < 1, f"{job.ranks} ranks on a host: there must be one at least"),
        (not 0 < job.gbps < math.inf, f"{job.gbps:g} Gbit/s: it must be above 0"),
        (not 0 < job.ratio <= 1, f"ratio {job.ratio:g}: it must be above 0 and at most 1"),
        (not 0 <= job.backward <= 1, f"backward {job.backward:g}: it is a share, from 0 to 1"),
        (job.bucket < 4, f"buckets of {job.bucket} bytes: less than one float32"),
        (
            job.values not in ("float32", "float16"),
            f"values {job.values!r}: they are float32 or float16",
        ),
    ]
    for wrong, text in problems:
        if wrong:
            raise ValueError(text)


def _quantity(text: str, units: dict[str, float], example: str) -> float:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*", text)
    if not match or match[2] not in units:
        names = ", ".join(units)
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number with a unit: write it like {example}; units: {names}"
        )
    return float(match[1]) * units[match[2]]


def parse_size(text: str) -> int:
    """Bytes of "553MB" (10**6) or "25MiB" (2**20)."""
    return round(_quantity(text, dict(SIZES), "553MB or 25MiB"))


def parse_time(text: str) -> float:
    """Seconds of "518ms", "1.2s" or "900us"."""
    return _quantity(text, TIMES, "518ms or 1.2s")


def _show_size(count: float) -> str:
    for unit in ("GB", "MB", "kB"):
        if count >= SIZES[unit]:
            return f"{count / SIZES[unit]:.1f} {unit}"
    return f"{count:.0f} B"


def _show_time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _table(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _print(job: Job, found: list[Prediction]) -> None:
    hosts = "1 host" if job.hosts == 1 else f"{job.hosts} hosts"
    ranks = "1 rank" if job.ranks == 1 else f"{job.ranks} ranks"
    count = len(job.buckets())
    print(
        f"{hosts} with {ranks} each at {job.gbps:g} Gbit/s: {_show_size(job.gradients)} of float32 "
        f"gradients in {count} bucket{'' if count == 1 else 's'},\n"
        f"{_show_time(job.compute_s)} of computation, gradients become ready during the last "
        f"{_show_time(job.backward * job.compute_s)}\n"
    )
    heads = ["choice", "a host sends", "communication", "exposed", "step", "linear scaling"]
    rows = [[*heads, "algorithm"]]
    for one in found:
        times = [_show_time(one.communication_s), _show_time(one.exposed_s)]
        row = [one.choice, _show_size(one.host_bytes), *times, _show_time(one.step_s)]
        rows.append([*row, f"{one.scaling:.1%}", one.algorithm])
    print(_table(rows))
    if job.hosts == 1:
        print("\nOn one host nothing crosses a network: there is nothing to compress.")
    print(
        f"\nPredicted from costs: {_C.planner_costs()['block']}. --backward 0: nothing is hidden."
    )


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m taco_torch.lightcc.plan",
        description="Predicts a training step by each way of averaging its gradients.",
    )
    parser.add_argument("--gradients", type=parse_size, required=True, help="float32, like 553MB")
    parser.add_argument(
        "--compute", type=parse_time, required=True, help="of a step on one rank, like 518ms"
    )
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True, help="on each host")
    parser.add_argument("--gbps", type=float, required=True, help="of each host's interface")
    parser.add_argument("--ratio", type=float, default=0.01, help="of elements that TopK sends")
    parser.add_argument("--values", choices=["float32", "float16"], default="float32")
    parser.add_argument("--bucket", type=parse_size, default=25 << 20, help="default 25MiB, DDP's")
    parser.add_argument(
        "--backward",
        type=float,
        default=2 / 3,
        help="share of the computation in which gradients become ready; default 2/3",
    )
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    options = parser.parse_args(arguments)
    job = Job(
        gradients=options.gradients,
        compute_s=options.compute,
        hosts=options.hosts,
        ranks=options.ranks,
        gbps=options.gbps,
        ratio=options.ratio,
        values=options.values,
        backward=options.backward,
        bucket=options.bucket,
    )
    try:
        found = predict(job)
    except ValueError as error:
        parser.error(str(error))
    if options.json:
        print(json.dumps([dataclasses.asdict(one) for one in found], indent=2))
    else:
        _print(job, found)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a traceback
    sys.exit(main())
