"""Does ``ZeroCache.plan()`` predict what a step takes? Measured and predicted, from one run.

    python benchmarks/zerocache_plan.py [--steps 12] [--directory out/zerocache_plan]

The GPT of examples/train_large_lm.py is trained with several capacities. After every step the plan
of the same capacities is compared with that very step, and the plans of the others with what those
measured in the end: times of computing and speeds are then another run's. The ratio is the median
over steps of predicted / measured; 1 means that the plan is right.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from taco_torch.zerocache import ZeroCache

TOP = Path(__file__).parents[1]
# Device and host, of about 290 MiB of parameters and state.
CAPS = [("12MiB", "16MiB"), ("12MiB", "150MiB"), ("100MiB", "220MiB")]
GOAL = 0.1
UNTIL_STEADY = 3


def measure(caps: tuple[str, str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains, and plans after every step."""
    from train_char_lm import batch_of, reference_manual
    from train_large_lm import LanguageModel

    torch.manual_seed(0)
    text, _, vocabulary = reference_manual()
    shape = argparse.Namespace(width=arguments.width, layers=arguments.layers, context=128)
    model = LanguageModel(vocabulary, shape)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=3e-4)
    directory = f"{arguments.directory}:1GiB"
    with ZeroCache(*caps, directory, page="1MiB") as cache:
        _, optimizer = cache.wrap(model, optimizer)
        ratios: list[float] = []
        seconds: list[float] = []
        plans: dict[str, list[float]] = {f"{d} + {h}": [] for d, h in CAPS}
        for step in range(arguments.steps):
            tokens, targets = batch_of(text, arguments.batch, 128, seed=step)
            loss = functional.cross_entropy(model(tokens), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step < UNTIL_STEADY:
                continue
            plan = cache.plan()
            ratios.append(plan.step_s / plan.measured_s)
            seconds.append(plan.measured_s)
            for device, host in CAPS:
                plans[f"{device} + {host}"].append(cache.plan(device, host).step_s)
        waited = cache.stats()["stalled_s"] / arguments.steps
    return {
        "step_s": statistics.median(seconds),
        "waited_s": waited,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "plans": {caps: statistics.median(found) for caps, found in plans.items()},
    }


def table(rows: dict[str, dict[str, Any]]) -> Table:
    made = Table(title="device + host: a step, measured and predicted")
    for heading in ("", "measured", "of it waiting", "predicted / measured"):
        made.add_column(heading, justify="left" if not heading else "right")
    for other in rows:
        made.add_column(f"by the run with {other}", justify="right")
    for caps, row in rows.items():
        cells = [caps, f"{row['step_s']:.3f} s", f"{row['waited_s']:.3f} s", f"{row['ratio']:.2f}"]
        for run in rows.values():
            cells.append(f"{run['plans'][caps] / row['step_s']:.2f}")
        made.add_row(*cells)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8, help="sequences of 128 characters")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--directory", type=Path, default=TOP / "out" / "zerocache_plan")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    if arguments.steps <= UNTIL_STEADY:
        parser.error(f"--steps={arguments.steps}: the first {UNTIL_STEADY} are not measured")
    arguments.directory.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(TOP / "examples"))
    rows = {f"{device} + {host}": measure((device, host), arguments) for device, host in CAPS}
    Console(width=None if sys.stdout.isatty() else 120).print(table(rows))
    missed = [caps for caps, row in rows.items() if abs(row["ratio"] - 1) > GOAL]
    print(f"goal: within {100 * GOAL:.0f}%; missed: {', '.join(missed) or 'by none'}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
