"""Training over taco beside gloo: in shared memory, and by taco's own transport HARP over UDP.

    python examples/demo.py [--ranks 2] [--epochs 12]

gloo and taco take turns of a few steps in the same processes (paired_training.py). Prints one table
and saves out/demo.png.
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
next: make demo-lightcc    gradients compressed, 5x on a slow network; needs root, to emulate one
      make demo-zerocache  a GPT in a tenth of the memory of its state; needs 1 GB of disk"""


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
        if result["transport"] == "udp" and ratios(result, "step_ms")[1] < 1:
            notes.append(
                "HARP is for ranks on different hosts. On one host its packets lose to TCP, which\n"
                "the loopback carries in pieces of 64 kB; taco takes shared memory there by itself."
            )
    return notes, good


def row(title: str, accuracy: float, step: float, communication: float, last: str) -> list[str]:
    share = communication / step
    return [
        title,
        f"{accuracy:.1%}",
        f"{step:.1f} ms",
        f"{communication:.1f} ms ({share:.0%})",
        last,
    ]


def table(results: list[dict[str, Any]]) -> Table:
    first = results[0]
    made = Table(title=f"Handwritten digits, DDP, {first['world']} ranks on this machine")
    made.add_column("transport")
    headings = ("accuracy", "step", "communication", "gloo's step / its own: median, middle half")
    for heading in headings:
        made.add_column(heading, justify="right")
    baseline = [
        statistics.median(value for result in results for value in values(result, "gloo", name))
        for name in ("step_ms", "communication_ms")
    ]
    accuracy = min(result["backends"]["gloo"]["accuracy"] for result in results)
    made.add_row(*row("gloo, TCP", accuracy, *baseline, "1.00x"))
    for result in results:
        own = [
            statistics.median(values(result, "taco", name))
            for name in ("step_ms", "communication_ms")
        ]
        low, median, high = ratios(result, "step_ms")
        accuracy = result["backends"]["taco"]["accuracy"]
        last = f"{median:.2f}x   {low:.2f} to {high:.2f}"
        made.add_row(*row(f"taco, {result['title']}", accuracy, *own, last))
    return made


def workload(result: dict[str, Any]) -> str:
    pairs = len(result["backends"]["gloo"]["turns"])
    return (
        f"A perceptron of {result['parameters'] / 1e6:.1f} M parameters, small batches: each step"
        f" averages {4 * result['parameters'] / 1e6:.1f} MB of gradients\n"
        f"after {result['batch']} images a rank. gloo and taco take turns of"
        f" {result['turn_steps']} steps in the same processes, {pairs} pairs a row."
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
    labels = [f"{milliseconds:.1f} ms" for milliseconds in communication]
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


def main() -> int:
    arguments = parse(None)
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_text("")
    results = []
    for title, transport in RUNS:
        print(f"gloo and taco over {title}, in turns ...", flush=True)
        results.append(train(title, transport, arguments))
    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print()
    console.print(table(results))
    print(workload(results[0]))
    notes, good = remarks(results)
    for note in notes:
        print(note)
    picture = TOP / "out" / "demo.png"
    plot(results, picture)
    print(f"plot: {picture.relative_to(TOP)}\n{NEXT}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
