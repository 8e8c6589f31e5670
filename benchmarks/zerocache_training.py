"""One training of the GPT of examples/train_large_lm.py in a process of its own: what
zerocache_step.py compares. That gives it a job, as JSON.

Prints one line of JSON: seconds of each step, losses, and the most memory that the process took on
top of what it had before it made the model. With ``branchy`` each step leaves out some of the
blocks, others in each.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

EXAMPLES = Path(__file__).parents[1] / "examples"
VOCABULARY = 16384

Step = Callable[[Tensor, Tensor], Tensor]


def in_memory(model: nn.Module, job: dict[str, Any]) -> Step:
    """Plain torch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return plain_step(model, optimizer)


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        loss = functional.cross_entropy(model(tokens), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def in_cache(model: nn.Module, job: dict[str, Any]) -> Step:
    """A cache with the job's caps."""
    from taco_torch.zerocache import ZeroCache

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    cache = ZeroCache(job["device"], job["host"], job["ssd"], **job.get("options", {}))
    model, optimizer = cache.wrap(model, optimizer, step_in_backward=job["in_backward"])
    job["cache"] = cache
    return plain_step(model, optimizer)


def with_deepspeed(model: nn.Module, job: dict[str, Any]) -> Step:
    """ZeRO-3 with the optimizer's state, and with `parameters` those too, on the disk."""
    os.environ |= {
        "DS_ACCELERATOR": "cpu",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
    }
    import deepspeed
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    on_disk = {"device": "nvme", "nvme_path": job["directory"], "pin_memory": False}
    zero: dict[str, Any] = {"stage": 3, "offload_optimizer": on_disk | {"buffer_count": 5}}
    if job["parameters"]:
        zero["offload_param"] = on_disk | {"buffer_count": 8, "buffer_size": 1 << 25}
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=DeepSpeedCPUAdam(model.parameters(), lr=1e-4, adamw_mode=True),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": zero,
            "aio": {"block_size": 1 << 20, "queue_depth": 8, "single_submit": False},
            "steps_per_print": 1 << 30,
        },
    )

    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        loss = functional.cross_entropy(engine(tokens), targets.flatten())
        engine.backward(loss)
        engine.step()
        return loss.detach()

    return step


def leave_out(model: nn.Module, step: int) -> None:
    """A quarter of the blocks are passed over, as in LayerDrop (Fan, Grave and Joulin, 2019)."""
    draw = torch.rand(len(model.blocks), generator=torch.Generator().manual_seed(step))
    for block, number in zip(model.blocks, draw.tolist(), strict=True):
        block.forward = (lambda x: x) if number < 0.25 else type(block).forward.__get__(block)


WAYS: dict[str, Callable[[nn.Module, dict[str, Any]], Step]] = {
    "memory": in_memory,
    "cache": in_cache,
    "deepspeed": with_deepspeed,
}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Trains as the job says."""
    sys.path.append(str(EXAMPLES))
    from train_large_lm import LanguageModel, memory_of_process

    torch.manual_seed(0)
    length = min(256, job["tokens"])
    before, _ = memory_of_process()
    shape = argparse.Namespace(layers=job["layers"], width=job["width"], context=length)
    model = LanguageModel(VOCABULARY, shape)
    count = sum(parameter.numel() for parameter in model.parameters())
    step = WAYS[job["way"]](model, job)
    cache = job.pop("cache", None)
    seconds, losses, steady = [], [], None
    for index in range(job["warm_up"] + job["steps"]):
        if cache is not None and index == job["warm_up"]:
            steady = cache.stats()
        random = torch.Generator().manual_seed(index)
        data = torch.randint(VOCABULARY, (job["tokens"] // length, length + 1), generator=random)
        if job.get("branchy"):
            leave_out(model, index)
        began = time.perf_counter()
        loss = step(data[:, :-1], data[:, 1:])
        seconds.append(time.perf_counter() - began)
        losses.append(loss.item())
    result = {
        "parameters": count,
        "seconds": seconds[job["warm_up"] :],
        "losses": losses,
        "peak": memory_of_process()[1] - before,
    }
    if cache is not None:
        from taco_torch._extension import _C

        result |= {"before": steady, "after": cache.stats(), "report": cache.report()}
        result["run"] = _C.zerocache.last_run(cache.store, "train")
        cache.close()
    return result


if __name__ == "__main__":
    print("RESULT " + json.dumps(run(json.loads(sys.argv[1]))))
