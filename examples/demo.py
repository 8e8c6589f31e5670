"""The same training three times: over gloo, over taco in shared memory, over taco's own transport.

    python examples/demo.py [--ranks 2] [--epochs 12]

Prints one table and saves out/demo.png.
"""

from __future__ import annotations

import argparse
import json
import os
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
# Title, backend, what the environment adds.
RUNS = [
    ("gloo", "gloo", {}),
    ("taco, shared memory", "taco", {"TACO_TRANSPORT": "shm"}),
    ("taco, HARP over UDP", "taco", {"TACO_TRANSPORT": "udp"}),
]


def train(
    title: str, backend: str, variables: dict[str, str], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Runs one training under torchrun. Returns the result that train_digits.py reports, plus
    `exit_status`. Only the baseline may end with an error, and only after it has its result."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(arguments.ranks)]
        command += [str(TOP / "examples" / "train_digits.py"), "--backend", backend]
        command += ["--epochs", str(arguments.epochs), "--json", str(result)]
        # One thread per rank, so that threads do not outnumber the cores.
        environment = {"OMP_NUM_THREADS": "1", **os.environ, **variables}
        done = subprocess.run(command, env=environment, check=False)
        status = done.returncode
        if status != 0 and (backend == "taco" or not result.exists()):
            raise SystemExit(f"the run over {title} failed with status {status}")
        return {"title": title, "exit_status": status, **json.loads(result.read_text())}


def remarks(results: list[dict[str, Any]]) -> tuple[list[str], bool]:
    """Notes to print below the table, and whether all results are as they should be."""
    notes, good = [], True
    for result in results:
        title, status = result["title"], result["exit_status"]
        if status != 0:
            notes.append(
                f"{title}: the run ended with status {status} after its result, which stands"
            )
        if result["accuracy"] < 0.97:
            notes.append(f"{title}: accuracy fell below 97%: something is wrong")
            good = False
        if not result["replicas_identical"]:
            notes.append(f"{title}: ranks ended with different parameters")
            good = False
    return notes, good


def table(results: list[dict[str, Any]]) -> Table:
    baseline = results[0]
    made = Table(title=f"Handwritten digits, DDP, {baseline['world']} ranks on this machine")
    made.add_column("transport")
    for heading in ("accuracy", "step", "communication", "images/s", "ratio to gloo"):
        made.add_column(heading, justify="right")
    for result in results:
        share = result["communication_share"]
        made.add_row(
            result["title"],
            f"{result['accuracy']:.1%}",
            f"{result['step_ms']:.1f} ms",
            f"{result['communication_ms']:.2f} ms ({share:.0%})",
            f"{result['images_per_s']:.0f}",
            f"{baseline['step_ms'] / result['step_ms']:.2f}x step, "
            f"{baseline['communication_ms'] / result['communication_ms']:.1f}x comm.",
        )
    return made


def plot(results: list[dict[str, Any]], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    titles = [result["title"] for result in results]
    communication = [result["communication_ms"] for result in results]
    rest = [result["step_ms"] - result["communication_ms"] for result in results]
    axes.barh(titles, rest, color="#9db4c0", label="computation alone")
    bars = axes.barh(titles, communication, left=rest, color="#e07a5f", label="communication")
    labels = [f"{milliseconds:.1f} ms" for milliseconds in communication]
    axes.bar_label(bars, labels=labels, label_type="center", fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds a step")
    axes.set_title(f"DDP step, {results[0]['world']} ranks")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=12)
    arguments = parser.parse_args()
    results = [train(*run, arguments) for run in RUNS]
    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print()
    console.print(table(results))
    picture = TOP / "out" / "demo.png"
    plot(results, picture)
    console.print(f"plot: {picture.relative_to(TOP)}")
    notes, good = remarks(results)
    for note in notes:
        console.print(note)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
