"""Training over taco beside gloo: in shared memory, and by taco's own transport HARP over UDP.

    python examples/demo.py [--ranks 2] [--epochs 12]

gloo and taco take turns of a few steps in the same processes (paired_training.py). Prints one
table, which fits a terminal of 80 columns and 24 lines with all that stands around it, and saves
out/demo.png.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

TOP = Path(__file__).parents[1]
LOG = TOP / "out" / "demo.log"
# taco's turns go over these, TACO_TRANSPORT.
RUNS = [("shared memory", "shm"), ("HARP over UDP", "udp")]
NEXT = """\
next: make demo-lightcc    compressed gradients, 5x on a slow network; as root
      make demo-zerocache  a GPT in a tenth of its state's memory; 1 GB of disk"""

# A note about each transport, shown where taco's steps over it were slower than gloo's.
SLOWER = {
    "shm": """\
Shared memory lost to gloo, as it should not: if this machine was busy with
something else meanwhile, try again when it is idle.""",
    "udp": """\
HARP is for ranks on different hosts. On one host its packets lose to TCP, of
which the loopback carries 64 kB at once; taco takes shared memory there.""",
}


def last_lines(path: Path, count: int) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-count:])


def train(title: str, transport: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """gloo and taco in turns, under torchrun: the result that paired_training.py reports. What
    torch and gloo say meanwhile is kept in LOG, and shown where the run fails."""
    with tempfile.TemporaryDirectory() as folder, LOG.open("a") as log:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(arguments.ranks)]
        command += [str(TOP / "examples" / "paired_training.py")]
        command += ["--epochs", str(arguments.epochs), "--json", str(result)]
        # One thread per rank, so that threads do not outnumber the cores.
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "TACO_TRANSPORT": transport}
        status = subprocess.run(command, env=environment, stderr=log, check=False).returncode
        if status != 0:
            raise SystemExit(
                f"the run over {title} failed with status {status}; the end of {LOG}:\n\n"
                + last_lines(LOG, 25)
            )
        return {"title": title, "transport": transport, **json.loads(result.read_text())}


def values(result: dict[str, Any], backend: str, name: str) -> list[float]:
    return [turn[name] for turn in result["backends"][backend]["turns"]]


def ratios(result: dict[str, Any], name: str) -> tuple[float, float, float]:
    """gloo's by taco's, of turns side by side: the lower quartile, the median, the upper one."""
    pairs = zip(values(result, "gloo", name), values(result, "taco", name), strict=True)
    low, median, high = statistics.quantiles([a / b for a, b in pairs], method="inclusive")
    return low, median, high


def remarks(results: list[dict[str, Any]]) -> tuple[list[str], bool]:
    """Notes to print below the table, and whether all results are as they should be."""
    notes, good = [], True
    for result in results:
        for backend, of in result["backends"].items():
            who = f"{backend} beside {result['title']}" if backend == "gloo" else result["title"]
            if of["accuracy"] < 0.97:
                notes.append(f"{who}: accuracy fell below 97%: something is wrong")
                good = False
            if not of["replicas_identical"]:
                notes.append(f"{who}: ranks ended with different parameters")
                good = False
        if result["taco_bytes"] < 4 * result["parameters"] * result["steps"]:
            notes.append(f"{result['title']}: not all gradients went over taco: something is wrong")
            good = False
        if ratios(result, "step_ms")[1] < 1:
            notes.append(SLOWER[result["transport"]])
    return notes, good


def milliseconds(value: float) -> str:
    return f"{value:.1f} ms" if value < 99.95 else f"{value:.0f} ms"


def row(title: str, accuracy: float, step: float, communication: float, *speed: str) -> list[str]:
    share = communication / step
    times = (milliseconds(step), f"{milliseconds(communication)}, {share:.0%}")
    return [title, f"{accuracy:.1%}", *times, *speed]


def table(results: list[dict[str, Any]]) -> Table:
    made = Table(
        title=f"Handwritten digits, DDP, {results[0]['world']} ranks on this machine",
        show_edge=False,
        pad_edge=False,
    )
    made.add_column("transport", no_wrap=True)
    for heading in ("accuracy", "step", "communication", "speed", "middle half"):
        made.add_column(heading, justify="right", no_wrap=True)
    baseline = [
        statistics.median(value for result in results for value in values(result, "gloo", name))
        for name in ("step_ms", "communication_ms")
    ]
    accuracy = min(result["backends"]["gloo"]["accuracy"] for result in results)
    made.add_row(*row("gloo, TCP", accuracy, *baseline, "1.00x", ""))
    for result in results:
        own = [
            statistics.median(values(result, "taco", name))
            for name in ("step_ms", "communication_ms")
        ]
        low, median, high = ratios(result, "step_ms")
        accuracy = result["backends"]["taco"]["accuracy"]
        speed = (f"{median:.2f}x", f"{low:.2f}-{high:.2f}")
        made.add_row(*row(f"taco, {result['title']}", accuracy, *own, *speed))
    return made


def workload(result: dict[str, Any]) -> str:
    pairs = len(result["backends"]["gloo"]["turns"])
    return (
        f"A perceptron of {result['parameters'] / 1e6:.1f} M parameters: each step averages"
        f" {4 * result['parameters'] / 1e6:.1f} MB of gradients after\n"
        f"{result['batch']} images a rank. gloo and taco take turns of {result['turn_steps']} steps"
        " in the same processes.\n"
        f"speed: gloo's step / taco's of two turns side by side, median of {pairs} pairs."
    )


def plot(results: list[dict[str, Any]], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    titles, communication, rest = [], [], []
    for result in results:
        for backend, title in (("gloo", "gloo, beside it"), ("taco", f"taco, {result['title']}")):
            busy = statistics.median(values(result, backend, "communication_ms"))
            titles.append(title)
            communication.append(busy)
            rest.append(statistics.median(values(result, backend, "step_ms")) - busy)
    places = range(len(titles))
    axes.barh(places, rest, color="#9db4c0", label="computation alone")
    bars = axes.barh(places, communication, left=rest, color="#e07a5f", label="communication")
    labels = [milliseconds(busy) for busy in communication]
    axes.bar_label(bars, labels=labels, label_type="center", fontsize=8)
    axes.set_yticks(places, titles)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds a step")
    axes.set_title(f"DDP step, {results[0]['world']} ranks")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=12)
    arguments = parser.parse_args(words)
    if arguments.ranks < 2:
        parser.error(f"--ranks {arguments.ranks}: one rank has nobody to talk to; give 2 or more")
    if arguments.epochs < 1:
        parser.error(f"--epochs {arguments.epochs}: nothing would be trained; give 1 or more")
    return arguments


def show(results: list[dict[str, Any]], console: Console) -> bool:
    """Prints the table, what it needs to be understood and what to try next. Returns whether all
    results are as they should be."""
    console.print()
    console.print(table(results))
    notes, good = remarks(results)
    print(workload(results[0]), *notes, sep="\n")
    picture = TOP / "out" / "demo.png"
    plot(results, picture)
    print(f"plot: {picture.relative_to(TOP)}\n{NEXT}")
    return good


def main() -> int:
    arguments = parse(None)
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_text("")
    results = []
    for title, transport in RUNS:
        print(f"gloo and taco in turns: {title} ...", flush=True)
        results.append(train(title, transport, arguments))
    console = Console(width=None if sys.stdout.isatty() else 80)
    return 0 if show(results, console) else 1


if __name__ == "__main__":
    sys.exit(main())
