"""The same training with gradients sent whole and compressed, between two emulated hosts at
100 Mbit/s.

    python examples/demo_lightcc.py [--epochs 20] [--rate 100mbit] [--seeds 5]

Prints one table, and over several seeds how many images TopK gets right beside gloo; saves
out/demo_lightcc.png. Emulating hosts needs root. Without it the ranks
stay on this host and only pretend to be on two: then accuracy and bytes are shown, and what the
bytes save is not, since nothing slows them.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

TOP = Path(__file__).parents[1]
sys.path.insert(0, str(TOP / "benchmarks"))  # fabric.py emulates hosts for benchmarks and tests

from fabric import Fabric, wait_all, why_unavailable  # noqa: E402

HOSTS, RANKS_PER_HOST = 2, 2
TIMEOUT_S = 600.0
# Title, backend, compression.
RUNS = [
    ("gloo", "gloo", "none"),
    ("taco", "taco", "none"),
    ("taco, float16", "taco", "float16"),
    ("taco, TopK", "taco", "topk"),
]


def command_of(backend: str, compression: str, arguments: argparse.Namespace) -> list[str]:
    command = [sys.executable, str(TOP / "examples" / "train_digits.py"), "--backend", backend]
    command += ["--compress", compression, "--ratio", str(arguments.ratio)]
    command += ["--warm-up", str(arguments.warm_up)]
    return [*command, "--epochs", str(arguments.epochs), "--batch", str(arguments.batch)]


def train_on_emulated_hosts(command: Sequence[str], rate: str) -> int:
    """The first failed rank's exit status, or 0."""
    with Fabric(hosts=HOSTS, rate=rate) as fabric:
        command = [*command, "--interface", "eth0"]
        return wait_all(fabric.launch(command, ranks_per_host=RANKS_PER_HOST), TIMEOUT_S)


def train_on_this_host(command: Sequence[str]) -> int:
    """As above, with ranks that take themselves for two hosts' and connect over loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(HOSTS * RANKS_PER_HOST):
        host = rank // RANKS_PER_HOST
        variables = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(HOSTS * RANKS_PER_HOST),
            "LOCAL_RANK": str(rank % RANKS_PER_HOST),
            "LOCAL_WORLD_SIZE": str(RANKS_PER_HOST),
            "GROUP_RANK": str(host),
            "GROUP_WORLD_SIZE": str(HOSTS),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "TACO_HOST_ID": f"demo-host-{host}",
        }
        ranks.append(subprocess.Popen(command, env={**os.environ, **variables}))
    return wait_all(ranks, TIMEOUT_S)


def train(
    title: str, backend: str, compression: str, arguments: argparse.Namespace, seeds: int = 1
) -> dict[str, Any]:
    """One training, or one for each of several seeds, at this host's speed. Returns the result that
    train_digits.py reports, plus `exit_status`. Only the baseline may end with an error, and only
    after it has its result."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [*command_of(backend, compression, arguments), "--json", str(result)]
        if arguments.rate is None or seeds > 1:
            status = train_on_this_host([*command, "--seeds", str(seeds)])
        else:
            status = train_on_emulated_hosts(command, arguments.rate)
        if status != 0 and (backend == "taco" or not result.exists()):
            raise SystemExit(f"the run over {title} failed with status {status}")
        return {"title": title, "exit_status": status, **json.loads(result.read_text())}


def remarks(results: list[dict[str, Any]], arguments: argparse.Namespace) -> tuple[list[str], bool]:
    """Notes to print below the table, and whether all results are as they should be."""
    notes, good = [], True
    if arguments.rate is None:
        notes.append(
            "One host that plays two, over loopback: accuracy and bytes are as between\n"
            "hosts, times are not. As root you see what the bytes save on a slow network."
        )
    for result in results:
        title, status = result["title"], result["exit_status"]
        if status != 0:
            notes.append(
                f"{title}: the run ended with status {status} after its result, which stands"
            )
        if result["accuracy"] < results[0]["accuracy"] - 0.02:
            notes.append(f"{title}: accuracy fell 2% below that of {results[0]['title']}")
            good = False
        if not result["replicas_identical"]:
            notes.append(f"{title}: ranks ended with different parameters")
            good = False
    return notes, good


def images_apart(dense: dict[str, Any], sparse: dict[str, Any]) -> str:
    """How many images TopK gets right beside the baseline, over all seeds."""
    images = dense["test_images"] * len(dense["right"])
    right, baseline = sum(sparse["right"]), sum(dense["right"])
    gap = f"{abs(right - baseline)} {'more' if right > baseline else 'fewer'}"
    gap = "as many" if right == baseline else gap
    by_seed = [a - b for a, b in zip(sparse["right"], dense["right"], strict=True)]
    shown = ", ".join(f"{each:+d}" if each else "0" for each in by_seed)
    return (
        f"Over {len(by_seed)} seeds {sparse['title']} gets {right} of {images} test images right,\n"
        f"{dense['title']} {baseline}: {gap} (by seed: {shown})."
    )


def show_bytes(count: float | None) -> str:
    return "-" if count is None else f"{count / 1e3:.0f} kB"


def table(results: list[dict[str, Any]], arguments: argparse.Namespace) -> Table:
    baseline = results[0]
    place = f"2 hosts at {arguments.rate}" if arguments.rate else "one host that plays two"
    made = Table(
        title=f"Handwritten digits, DDP, {baseline['world']} ranks, {place}",
        caption=f"speed: {baseline['title']}'s step / its own",
    )
    made.add_column("gradients by", no_wrap=True)
    for heading in ("accuracy", "step", "speed", "a host sends a step"):
        made.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        ratio = f" {arguments.ratio:.0%}" if result["compress"] == "topk" else ""
        made.add_row(
            result["title"] + ratio,
            f"{result['accuracy']:.1%}",
            f"{result['step_ms']:.1f} ms",
            f"{baseline['step_ms'] / result['step_ms']:.2f}x",
            show_bytes(result["host_bytes_per_step"]),
        )
    return made


def plot(results: list[dict[str, Any]], path: Path) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), layout="constrained", sharey=True)
    titles = [result["title"] for result in results]
    panels = [
        ("accuracy, %", [100 * result["accuracy"] for result in results], "%.1f"),
        ("step, ms", [result["step_ms"] for result in results], "%.1f"),
        (
            "a host sends a step, kB",
            [(result["host_bytes_per_step"] or 0) / 1e3 for result in results],
            "%.0f",
        ),
    ]
    for panel, (label, values, form) in zip(axes, panels, strict=True):
        bars = panel.barh(titles, values, color=["#9db4c0"] * 2 + ["#e07a5f"] * (len(titles) - 2))
        panel.bar_label(bars, fmt=form, fontsize=8, padding=2)
        panel.set_xlabel(label)
        panel.margins(x=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150)


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0].replace("\n", " "))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32, help="images per rank and step")
    parser.add_argument("--rate", default="100mbit", help="of each host's cable")
    parser.add_argument("--ratio", type=float, default=0.01, help="of elements that TopK sends")
    parser.add_argument("--warm-up", type=int, default=20, help="steps until TopK is at its ratio")
    parser.add_argument("--seeds", type=int, default=5, help="over which accuracy is compared")
    arguments = parser.parse_args(words)
    if arguments.seeds < 2:
        parser.error(f"--seeds {arguments.seeds}: one training may differ by luck; give 2 or more")
    return arguments


def show(
    results: list[dict[str, Any]],
    seeded: list[dict[str, Any]],
    arguments: argparse.Namespace,
    console: Console,
) -> bool:
    """Prints the table and what it needs to be understood, on a screen of 80 columns. Returns
    whether all results are as they should be."""
    console.print()
    console.print(table(results, arguments))
    picture = TOP / "out" / "demo_lightcc.png"
    plot(results, picture)
    notes, good = remarks(results, arguments)
    print(images_apart(*seeded), f"plot: {picture.relative_to(TOP)}", *notes, sep="\n")
    return good


def main() -> int:
    arguments = parse(None)
    reason = why_unavailable()
    if reason:
        print(f"no emulated hosts here: {reason}")
        arguments.rate = None
    results = [train(*run, arguments) for run in RUNS]
    seeded = [train(*RUNS[place], arguments, arguments.seeds) for place in (0, -1)]
    console = Console(width=None if sys.stdout.isatty() else 80)
    return 0 if show(results, seeded, arguments, console) else 1


if __name__ == "__main__":
    sys.exit(main())
