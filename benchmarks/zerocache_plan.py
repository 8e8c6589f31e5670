"""Does ``ZeroCache.plan()`` predict what a step takes? Measured and predicted, from one run.

    python benchmarks/zerocache_plan.py [--steps 12] [--directory out/zerocache_plan]

The GPT of examples/train_large_lm.py is trained by several caches in one process, each of other
capacities, which take turns step by step: whatever else the machine does disturbs all alike. After
each turn every cache plans all capacities, from the times of computing and the speeds that it has
measured itself, and each plan is compared with the step of the cache that has those capacities. The
ratio is the median over turns of predicted / measured; 1 means that the plan is right.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from contextlib import ExitStack
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


class Training:
    """One cache and what it trains."""

    def __init__(self, stack: ExitStack, caps: tuple[str, str], arguments: Any) -> None:
        from train_char_lm import reference_manual
        from train_large_lm import LanguageModel

        torch.manual_seed(0)
        self.name = " + ".join(caps)
        self.batch, self.context = arguments.batch, arguments.context
        self.text, _, vocabulary = reference_manual()
        shape = argparse.Namespace(
            width=arguments.width, layers=arguments.layers, context=arguments.context
        )
        model = LanguageModel(vocabulary, shape)
        place = arguments.directory / caps[1]
        place.mkdir(parents=True, exist_ok=True)
        self.cache = stack.enter_context(ZeroCache(*caps, f"{place}:1GiB", page="1MiB"))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        self.model, self.optimizer = self.cache.wrap(model, optimizer)

    def step(self, number: int) -> float:
        """Seconds that were waited for pages."""
        from train_char_lm import batch_of

        before = self.cache.stats()["stalled_s"]
        tokens, targets = batch_of(self.text, self.batch, self.context, seed=number)
        loss = functional.cross_entropy(self.model(tokens), targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(self.cache.stats()["stalled_s"] - before)


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """For each capacities the medians of what was measured, and of each cache's predictions."""
    with ExitStack() as stack:
        trainings = [Training(stack, caps, arguments) for caps in CAPS]
        turns: list[list[dict[str, Any]]] = [[] for _ in CAPS]
        for number in range(arguments.steps):
            waits = [training.step(number) for training in trainings]
            if number < UNTIL_STEADY:
                continue
            own = [training.cache.plan() for training in trainings]
            for index, caps in enumerate(CAPS):
                measured = own[index].measured_s
                plans = [training.cache.plan(*caps) for training in trainings]
                turns[index].append(
                    {
                        "step_s": measured,
                        "waited_s": waits[index],
                        "predicted_wait_s": own[index].waiting_s,
                        "ratios": [plan.step_s / measured for plan in plans],
                    }
                )
    rows = []
    for training, found in zip(trainings, turns, strict=True):
        row: dict[str, Any] = {"caps": training.name}
        for key in ("step_s", "waited_s", "predicted_wait_s"):
            row[key] = statistics.median(turn[key] for turn in found)
        columns = zip(*(turn["ratios"] for turn in found), strict=True)
        row["ratios"] = [statistics.median(column) for column in columns]
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> Table:
    made = Table(title="A step with device + host; the ratios are predicted / measured")
    headings = ["", "measured", "waited", "predicted wait"]
    for heading in [*headings, *(f"by {row['caps']}" for row in rows)]:
        made.add_column(heading, justify="right" if heading else "left")
    for row in rows:
        times = [row["step_s"], row["waited_s"], row["predicted_wait_s"]]
        cells = [f"{time:.3f} s" for time in times] + [f"{ratio:.2f}" for ratio in row["ratios"]]
        made.add_row(row["caps"], *cells)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8, help="sequences a step")
    parser.add_argument("--context", type=int, default=128, help="characters of a sequence")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--directory", type=Path, default=TOP / "out" / "zerocache_plan")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    if arguments.steps <= UNTIL_STEADY:
        parser.error(f"--steps={arguments.steps}: the first {UNTIL_STEADY} are not measured")
    arguments.directory.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(TOP / "examples"))
    rows = measure(arguments)
    Console(width=None if sys.stdout.isatty() else 120).print(table(rows))
    missed = [row["caps"] for i, row in enumerate(rows) if abs(row["ratios"][i] - 1) > GOAL]
    print(
        f"goal: by its own cache within {100 * GOAL:.0f}%; missed: {', '.join(missed) or 'by none'}"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
