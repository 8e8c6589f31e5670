"""The random-death campaign: ``python tests/faults/campaign.py --kills 500 --seed 1``.

In each trial a few ranks run one collective, or a ring of sends, again and again over one
transport, and one of them dies at a random moment: by SIGKILL, by os._exit, by a segmentation
fault; in a quarter of the trials it leaves a forked child with its descriptors behind. Every other
rank must raise PeerLostError with the victim's rank within a second, and the survivors must then
make a new group, under the one store that serves the whole campaign.

Prints the distribution of the time from death to error; exit status 1 when anything was amiss.
``--replay SEED`` repeats one trial.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

# `python tests/faults/campaign.py` must find the installed package, not the repository's sources.
_REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _REPOSITORY]
sys.path.insert(0, str(Path(__file__).resolve().parent))

from victim_trial import (  # noqa: E402
    OPERATIONS,
    SLOWEST_S,
    TRANSPORTS,
    Plan,
    Verdict,
    run_trial,
)


def usable_interface() -> str:
    """An interface with a routable address, for ranks that pretend to be on two hosts; or ""."""
    from taco_torch import _C

    for entry in _C.interfaces():
        if entry["up"] and not entry["loopback"]:
            return str(entry["name"])
    return ""


@contextmanager
def store_process() -> Iterator[int]:
    """The port of a store in a process of its own, which outlives every group, as torchrun's."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ours)
            import torch.distributed as dist

            store = dist.TCPStore(
                "127.0.0.1", 0, None, True, timedelta(seconds=60), wait_for_workers=False
            )
            os.write(theirs, str(store.port).encode())
            parent = os.getppid()
            while os.getppid() == parent:
                time.sleep(0.2)
        finally:
            os._exit(0)
    os.close(theirs)
    try:
        yield int(os.read(ours, 100))
    finally:
        os.close(ours)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def campaign(seeds: list[int], slowest_s: float, show: bool) -> list[Verdict]:
    """Runs the trials of these seeds; their verdicts."""
    import taco_torch  # noqa: F401  # once, before the forks

    interface = usable_interface()
    verdicts = []
    with store_process() as port:
        for number, seed in enumerate(seeds):
            plan = Plan.of(seed)
            if plan.transport == "mixed" and not interface:
                plan.transport = "udp"
            verdict = run_trial(plan, port, interface, slowest_s)
            verdicts.append(verdict)
            for fault in verdict.faults:
                print(f"\nseed {seed}: {fault}\n  {plan}", file=sys.stderr, flush=True)
            if show:
                bad = sum(1 for v in verdicts if v.faults)
                print(f"\r{number + 1}/{len(seeds)} deaths, {bad} amiss ", end="", flush=True)
    if show:
        print()
    return verdicts


def _row(name: str, verdicts: list[Verdict]) -> str:
    times = sorted(1000 * latency for v in verdicts for latency in v.latencies_s)
    if not times:
        return f"| {name} | 0 | | | | | |"
    at = lambda share: times[min(len(times) - 1, int(share * len(times)))]  # noqa: E731
    again = statistics.median(1000 * v.again_s for v in verdicts)
    bad = sum(1 for v in verdicts if v.faults)
    return (
        f"| {name} | {len(verdicts)} | {at(0.5):.1f} | {at(0.9):.1f} | {at(0.99):.1f} "
        f"| {times[-1]:.1f} | {again:.0f} | {bad} |"
    )


def table(verdicts: list[Verdict]) -> str:
    """Milliseconds from death to error, as Markdown."""
    lines = [
        "| | deaths | median ms | p90 | p99 | most | new group, median ms | amiss |",
        "|---|---|---|---|---|---|---|---|",
        _row("all", verdicts),
    ]
    for transport in TRANSPORTS:
        lines.append(_row(transport, [v for v in verdicts if v.plan.transport == transport]))
    lines.append(_row("forked child alive", [v for v in verdicts if v.plan.forked_child]))
    for death in sorted({v.plan.death for v in verdicts}):
        lines.append(_row(death, [v for v in verdicts if v.plan.death == death]))
    for operation in sorted(OPERATIONS):
        lines.append(_row(operation, [v for v in verdicts if v.plan.operation == operation]))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1, help="the first trial's; then counted up")
    parser.add_argument("--replay", type=int, help="run the trial of this seed only")
    parser.add_argument(
        "--slowest", type=float, default=SLOWEST_S, help="seconds; a later error is amiss"
    )
    parser.add_argument("--json", help="write every verdict here")
    options = parser.parse_args()
    os.environ.setdefault("TACO_LOG", "error")
    seeds = list(range(options.seed, options.seed + options.kills))
    seeds = [options.replay] if options.replay is not None else seeds
    verdicts = campaign(seeds, options.slowest, True)
    if options.json:
        Path(options.json).write_text(json.dumps([v.as_dict() for v in verdicts], indent=1))
    print(table(verdicts))
    return 1 if any(verdict.faults for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
