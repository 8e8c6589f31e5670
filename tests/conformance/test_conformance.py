"""Torch's own distributed suite over taco, as part of the test run; see run.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.whole(because="they are torch's own tests, not ours"), pytest.mark.alone]

RUN = Path(__file__).parent / "run.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUN), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)


def test_everything_that_gloo_passes_passes_over_taco() -> None:
    pytest.importorskip("taco_torch", reason="the package is not installed")
    done = run("--backend", "taco")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_a_lost_test_is_reported() -> None:
    # Over gloo this one fails: gloo refuses unequal tensors. Were it in the list, it would be lost.
    done = run("--backend", "gloo", "--test", "test_all_to_all", "--expect", "test_all_to_all")
    assert done.returncode == 1
    assert "LOST test_all_to_all" in done.stdout
