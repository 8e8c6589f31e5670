"""Programs under torchrun, for tests: the command line, a job that resumes where it died, and ranks
that find all as torchrun leaves it but need no launcher."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch.distributed as dist
from fabric import wait_all
from warm_python import WarmPython


def command(script: Path, *arguments: str, ranks: int) -> list[str]:
    """torchrun with its own arguments, ``ranks`` of them on this host."""
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    return [*launcher, *arguments, str(script)]


def rank_environment(rank: int, world: int, port: int) -> dict[str, str]:
    """Variables of torchrun for a rank of one host whose agent serves the store at ``port``."""
    variables = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "ROLE_NAME": "default",
    }
    for scope in ("", "LOCAL_", "ROLE_"):
        variables |= {f"{scope}RANK": rank, f"{scope}WORLD_SIZE": world}
    variables |= {"GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}
    return {name: str(value) for name, value in variables.items()}


def run_forked(
    python: WarmPython,
    program: Sequence[str | Path],
    ranks: int,
    environment: Mapping[str, str] | None = None,
    timeout: float = 300.0,
) -> subprocess.CompletedProcess[str]:
    """The program (see WarmPython.popen) in ``ranks`` processes, as torchrun would start them.
    The status is that of the first that failed, or 0; what all of them print is one text."""
    store = dist.TCPStore("127.0.0.1", 0, ranks, True, wait_for_workers=False)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        processes = []
        try:
            for rank in range(ranks):
                own = rank_environment(rank, ranks, store.port)
                variables = {**os.environ, **(environment or {}), **own}
                processes.append(
                    python.popen(program, variables, stdout=out.fileno(), stderr=err.fileno())
                )
            status = wait_all(processes, timeout)
        finally:
            for process in processes:
                process.end()
        out.seek(0)
        err.seek(0)
        texts = out.read().decode(), err.read().decode()
    return subprocess.CompletedProcess(list(program), status, *texts)


def write_resuming_job(folder: Path) -> Path:
    """20 steps with a checkpoint every five. Rank 1 kills itself before step 10, once."""
    script = folder / "resume.py"
    script.write_text(
        textwrap.dedent("""
            import os, signal, torch, torch.distributed as dist, taco_torch
            dist.init_process_group("taco")
            rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
            value, first = torch.zeros(1), 0
            if os.path.exists("checkpoint.pt"):
                first, value = torch.load("checkpoint.pt")
            for step in range(first, 20):
                if step == 10 and first == 0 and rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                tensor = torch.ones(1)
                dist.all_reduce(tensor)
                value += tensor
                if step % 5 == 4:
                    if rank == 0:
                        torch.save((step + 1, value), "checkpoint.tmp")
                        os.rename("checkpoint.tmp", "checkpoint.pt")
                    dist.barrier()
            assert value.item() == 20 * dist.get_world_size(), value
            print(f"rank {rank} finished on attempt {attempt} from step {first}")
            dist.destroy_process_group()
        """)
    )
    return script
