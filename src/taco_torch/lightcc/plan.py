r"""``python -m taco_torch.lightcc.plan``: what a training step would take by each way of averaging
its gradients, predicted by the planner's own model, for a job that need not be at hand::

    python -m taco_torch.lightcc.plan --gradients 553MB --compute 518ms --hosts 2 --ranks 8 \
        --gbps 25

Gradients fill DDP's buckets evenly while the backward pass goes on. Buckets under way at the same
time share the network and the processors. What of that is not over when the computation ends, is
exposed. The last row is what ``compress(model, "auto")`` would choose, by the same model of a step.
"""

import argparse
import dataclasses
import json
import math
import re
import signal
import sys
from dataclasses import dataclass

from taco_torch._extension import _C

SIZES = {
    **{"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9},
    **{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30},
}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
FIRST_BUCKET = 1 << 20  # DDP's
MAX_RANKS, MAX_BUCKETS = 8192, 100_000  # of a job: those take seconds to predict
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

    def ready(self) -> list[float]:
        """When each bucket is ready, in seconds after the step's start."""
        times, done = [], 0
        for size in self.buckets():
            done += size
            left = self.backward * self.compute_s * (1 - done / self.gradients)
            times.append(self.compute_s - left)
        return times


@dataclass(frozen=True)
class Prediction:
    """The step of a job by one choice, as predicted.

    Attributes:
        algorithm: of the bucket that takes longest; of ``auto``, how many buckets go by which way.
        host_bytes: leave each host in a step.
        communication_s: of all buckets, if nothing else were to be done.
    """

    choice: str
    algorithm: str
    host_bytes: float
    communication_s: float
    exposed_s: float
    step_s: float
    scaling: float


def predict(job: Job) -> list[Prediction]:
    """A prediction for each choice that fits the job; on one host only the dense ones do.

    Raises:
        ValueError: a number that no job has.
    """
    _check(job)
    topk = f"TopK {job.ratio * 100:g}%, {job.values} values"
    titles = {
        "plain": "dense without 2D",
        "2d": "dense, 2D",
        "float16": "2D, float16",
        "topk": topk,
        "auto": "auto",
    }
    rows = _C.predict_steps(
        job.buckets(),
        job.ready(),
        job.compute_s,
        job.hosts,
        job.ranks,
        job.gbps,
        job.ratio,
        job.values == "float16",
        TOPK_THRESHOLD,
    )
    return [
        Prediction(
            choice=titles[name],
            algorithm=_mixture(ways) if name == "auto" else algorithm,
            host_bytes=host_bytes,
            communication_s=communication_s,
            exposed_s=step_s - job.compute_s,
            step_s=step_s,
            scaling=job.compute_s / step_s,
        )
        for name, algorithm, host_bytes, communication_s, step_s, ways in rows
    ]


def _mixture(ways: list[int]) -> str:
    """How many buckets go by which way: "3 float32, 5 float16"."""
    names = ("float32", "float16", "topk")
    counts = [(ways.count(way), name) for way, name in enumerate(names)]
    return ", ".join(f"{count} {name}" for count, name in counts if count)


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
            job.hosts * job.ranks > MAX_RANKS,
            f"{job.hosts} hosts with {job.ranks} ranks each: a job of more than {MAX_RANKS} ranks "
            "takes too long to predict",
        ),
        (
            job.gradients > MAX_BUCKETS * job.bucket,
            f"buckets of {job.bucket} bytes: more than {MAX_BUCKETS} take too long to predict",
        ),
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
