"""Ranks that ask the program which started them to change their network between measurements.

In a rank:      ask("loss", "0.01")             returns once it is done, on all ranks
In the parent:  direct(__file__, fabric, {"loss": lambda share: fabric.set_loss(float(share))})

on_fabric() is the whole of such a parent.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from fabric import Fabric, FabricUnavailable, wait_all
from launch import RESULT

PREFIX = "ask "
Acts = Mapping[str, Callable[..., object]]


def ask(*words: str) -> None:
    """In every rank. What the parent does happens while none of them is in an operation."""
    dist.barrier()
    if dist.get_rank() == 0:
        print(PREFIX + " ".join(words), flush=True)
        if sys.stdin.readline() != "done\n":
            raise RuntimeError(f"the parent did not do what it was asked for: {words}")
    dist.barrier()


def direct(
    script: str,
    fabric: Fabric,
    acts: Acts,
    timeout: float = 1800.0,
    **environment: str,
) -> Any:
    """Starts `script` with this process's own arguments once a host and does what the ranks ask
    for; rank 0's result (launch.deliver)."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        variables = {RESULT: str(result), "TACO_LOG": "error", **environment}
        ranks = fabric.launch(
            [sys.executable, script, *sys.argv[1:]],
            environment=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        asks, answers = ranks[0].stdout, ranks[0].stdin
        assert asks is not None
        assert answers is not None
        for line in asks:
            if not line.startswith(PREFIX):
                print(line, end="", file=sys.stderr)
                continue
            name, *words = line.split()[1:]
            acts[name](*words)
            answers.write("done\n")
            answers.flush()
        status = wait_all(ranks, timeout)
        if status != 0:
            raise SystemExit(f"a rank failed with status {status}")
        return json.loads(result.read_text())


def on_fabric(
    script: str,
    fabric: Fabric,
    acts: Acts,
    show: Callable[[Any, argparse.Namespace], None],
    arguments: argparse.Namespace,
) -> None:
    """Ranks of `script` on emulated hosts, what they measured shown and, for --json, written."""
    try:
        with fabric:
            result = direct(script, fabric, acts)
    except FabricUnavailable as reason:
        raise SystemExit(f"no emulated hosts here: {reason}") from None
    show(result, arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))
