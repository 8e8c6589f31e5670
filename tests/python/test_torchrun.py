"""Under torchrun: its environment, its long-lived store, and its restarts."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
from pathlib import Path

from conftest import taco_only
from torchrun import command, write_resuming_job

pytestmark = taco_only


def torchrun(script: Path, *arguments: str, ranks: int = 2, **environment: str) -> str:
    process = subprocess.Popen(
        command(script, "--standalone", *arguments, ranks=ranks),
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        cwd=script.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=180)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"torchrun did not end:\n{output}") from None
    assert process.returncode == 0, output
    return output


def test_init_destroy_init_under_one_store(tmp_path: Path) -> None:
    script = tmp_path / "again.py"
    script.write_text(
        textwrap.dedent("""
            import torch, torch.distributed as dist, taco_torch
            for _ in range(4):
                dist.init_process_group("taco")
                tensor = torch.ones(1000)
                dist.all_reduce(tensor)
                assert tensor[0].item() == dist.get_world_size()
                dist.destroy_process_group()
            print("done")
        """)
    )
    assert torchrun(script, ranks=3).count("done") == 3


def test_a_dead_rank_restarts_the_job_from_its_checkpoint(tmp_path: Path) -> None:
    script = write_resuming_job(tmp_path)
    output = torchrun(script, "--max-restarts=1")
    assert output.count("finished on attempt 1 from step 10") == 2, output


def test_leaving_without_destroy(tmp_path: Path) -> None:
    script = tmp_path / "leave.py"
    script.write_text(
        textwrap.dedent("""
            import torch, torch.distributed as dist, taco_torch
            dist.init_process_group("taco")
            tensor = torch.ones(10)
            dist.all_reduce(tensor)
            work = dist.all_reduce(tensor, async_op=True)
            print("left")
        """)
    )
    assert torchrun(script).count("left") == 2
