"""From the root of the checkout, where Python looks first, the installed package is found: however
a program is started there, no source folder hides it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import taco_only

pytestmark = taco_only

TOP = Path(__file__).resolve().parents[2]
# Adds up over two ranks, or over one where no launcher says how many there are.
SUM = """
import os, torch, torch.distributed as dist, taco_torch
if "RANK" in os.environ:
    dist.init_process_group("taco")
else:
    dist.init_process_group("taco", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert tensor.tolist() == [dist.get_world_size()] * 3
dist.destroy_process_group()
"""
TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def run(*arguments: str, stdin: str = "") -> str:
    """The output of Python when it is started in the root with these arguments."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=TOP,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_info_as_the_readme_types_it() -> None:
    assert "transports" in run("-m", "taco_torch.info")


@pytest.mark.parametrize("start", ["python -c", "python <"])
def test_a_program_of_one_line_and_one_from_a_pipe(start: str) -> None:
    run("-c", SUM) if start == "python -c" else run("-", stdin=SUM)


@pytest.mark.whole(instead="tests/python/test_torchrun.py::test_init_destroy_init_under_one_store")
def test_a_module_and_a_script_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "sum.py"
    script.write_text(SUM)
    run("-m", *TORCHRUN, str(script))
    assert run("-m", *TORCHRUN, "-m", "taco_torch.info").count("transports") == 2


def test_pytest_as_a_module(tmp_path: Path) -> None:
    (tmp_path / "test_sum.py").write_text(f"def test_sum():\n    exec({SUM!r}, {{}})\n")
    shown = run("-m", "pytest", "-p", "no:cacheprovider", str(tmp_path / "test_sum.py"))
    assert "1 passed" in shown
