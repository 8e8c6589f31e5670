"""docs/frameworks.md, line by line: each framework trains over taco as its line says, and ends with
the losses and weights that it has over gloo, to the last bit.

A framework that is not installed is skipped: requirements.txt beside this file has those that
install in seconds, docs/frameworks.md the versions of all that were tried.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torchrun import run_forked
from warm_python import WarmPython

PROGRAMS = Path(__file__).parent / "programs"
PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
RANKS = 2
# Program, the packages it needs, whether it starts its ranks itself, and what its ranks can have
# imported before they are forked: None where they are started by torchrun, or by the program.
CASES = [
    ("ddp", [], False, None),
    ("fsdp2", [], False, ["torch.distributed.fsdp"]),
    ("accelerate_", ["accelerate"], False, ["accelerate"]),
    ("trainer", ["transformers", "accelerate"], False, ["transformers.trainer"]),
    ("lightning_", ["lightning"], False, ["lightning.pytorch.strategies"]),
    ("fabric_", ["lightning"], False, ["lightning.fabric.strategies"]),
    ("torchft_", ["torchft"], True, None),
    ("deepspeed_", ["deepspeed"], False, None),
    ("ray_train", ["ray"], True, None),
    ("torchrec_", ["torchrec", "fbgemm_gpu"], False, None),
]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}


def run(
    program: list[str], starts_ranks: bool, python: WarmPython | None, compiled: Path
) -> subprocess.CompletedProcess[str]:
    """Two ranks of the program, forked from ``python`` if there is one."""
    # DeepSpeed compiles extensions at its first use. In the place that is everybody's, it would
    # wait without end for a run that was killed while it compiled.
    environment = {**ENVIRONMENT, "TORCH_EXTENSIONS_DIR": str(compiled)}
    if python is not None:
        return run_forked(python, program, RANKS, environment)
    launcher = [] if starts_ranks else ["-m", "torch.distributed.run", "--standalone"]
    if not starts_ranks:
        launcher.append(f"--nproc-per-node={RANKS}")
    return subprocess.run(
        [sys.executable, *launcher, *program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def reports(done: subprocess.CompletedProcess[str], backend: str) -> list[dict[str, Any]]:
    """The reports of the ranks, by rank; the process that has them all as threads reports one."""
    output = done.stdout + done.stderr
    found = [
        json.loads(rest)
        for _, mark, rest in (line.partition("REPORT ") for line in output.splitlines())
        if mark
    ]
    assert found, output[-6000:]
    # An error of the baseline after its reports is its own affair: gloo's threads, where anything
    # keeps its group beyond destroy_process_group, may meet an interpreter in its last moments.
    assert done.returncode == 0 or backend == "gloo", output[-6000:]
    return sorted(found, key=lambda entry: int(entry["rank"]))


@pytest.mark.whole(because="its programs are others' and take minutes")
@pytest.mark.parametrize(
    ("program", "packages", "starts_ranks", "modules"), CASES, ids=[c[0] for c in CASES]
)
def test_a_framework_trains_as_over_gloo(
    program: str,
    packages: list[str],
    starts_ranks: bool,
    modules: list[str] | None,
    tmp_path: Path,
) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed")
    with contextlib.ExitStack() as stack:
        python = None
        if modules is not None:
            python = stack.enter_context(WarmPython(["torch._dynamo", *modules], ENVIRONMENT))
        over_taco, over_gloo = (
            reports(
                run([str(PROGRAMS / f"{program}.py"), backend], starts_ranks, python, tmp_path),
                backend,
            )
            for backend in ("taco", "gloo")
        )
    for ours, theirs in zip(over_taco, over_gloo, strict=True):
        assert ours["backend"] == "taco"
        assert ours["calls"] > 0, "nothing went over taco"
        assert theirs["backend"] == "gloo"
        assert ours["losses"] == theirs["losses"]
        assert ours["weights"] == theirs["weights"]
        assert len(ours["losses"]) >= 8


@pytest.mark.whole(because="they are torchft's own tests, not ours")
def test_torchfts_own_tests_of_its_groups_pass() -> None:
    for package in ("torchft", "parameterized"):
        pytest.importorskip(package, reason="not installed")
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "torchft_own_tests.py")],
        env={**os.environ, **ENVIRONMENT, "TACO_LOG": "error"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    assert "Ran 22 tests" in done.stderr


def test_the_page_shows_the_code_that_is_tried() -> None:
    (shown,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert (PROGRAMS / "torchft_group.py").read_text().endswith(f"\n\n\n{shown}")
