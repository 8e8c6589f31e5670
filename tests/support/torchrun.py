"""Programs under torchrun, for tests: the command line, and a job that resumes where it died."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path


def command(script: Path, *arguments: str, ranks: int) -> list[str]:
    """torchrun with its own arguments, ``ranks`` of them on this host."""
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    return [*launcher, *arguments, str(script)]


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
