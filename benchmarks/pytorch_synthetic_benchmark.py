"""Images a second of a model that trains on made-up data: Horovod's synthetic benchmark, its flags
and its lines, over taco_torch.

    python benchmarks/pytorch_synthetic_benchmark.py --no-cuda
    torchrun --nproc-per-node 2 benchmarks/pytorch_synthetic_benchmark.py --no-cuda
    mpirun -np 4 -H host1:2,host2:2 -x MASTER_ADDR=host1 \\
        python benchmarks/pytorch_synthetic_benchmark.py --no-cuda --lightcc

--backend says who averages the gradients: "horovod", the default, is taco_torch.horovod with its
DistributedOptimizer; "taco" and "gloo" are torch's DistributedDataParallel over that backend.
--lightcc sends less of the gradients between hosts: the largest hundredth, or what the LIGHT_*
variables say (docs/lightcc.md).

--emulate-compute MS trains nothing: of a step's MS milliseconds a third passes before the backward
pass and the rest during it, layer by layer, as on a device that leaves the processor idle. So the
gradients of a large model become ready as they would, on a machine that could not compute them.
--scale makes them, and DDP's buckets, so many times smaller; make the network's rate, and
HOROVOD_FUSION_THRESHOLD, smaller by as much.

Models of words are counted in sequences, where Horovod's lines have images.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: train_digits.py says why
from emulated import BUCKET_BYTES, FORWARD, MODELS, Emulated, Gradients
from synthetic_models import TASKS
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

BACKENDS = ("horovod", "taco", "gloo")
BASE_RATE = 0.01  # of learning, for one process
CHOOSE_LIGHTCC = ("LIGHT_TOPK_ALLREDUCE", "LIGHT_WIRE_DTYPE", "LIGHT_AUTO")


class HorovodJob:
    """Ranks that average by taco_torch.horovod."""

    def __init__(self) -> None:
        import taco_torch.horovod as hvd

        hvd.init()
        self._hvd = hvd
        self.rank, self.size, self.local_rank = hvd.rank(), hvd.size(), hvd.local_rank()

    def learning_rate_scale(self, arguments: argparse.Namespace) -> int:
        return 1 if arguments.use_adasum else self.size

    def distribute(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, arguments: argparse.Namespace
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        hvd = self._hvd
        fp16 = arguments.fp16_allreduce
        optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=hvd.Compression.fp16 if fp16 else hvd.Compression.none,
            op=hvd.Adasum if arguments.use_adasum else hvd.Average,
        )
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        return model, optimizer

    def leave(self) -> None:
        self._hvd.shutdown()


class TorchJob:
    """Ranks that average by DistributedDataParallel, over one of torch.distributed's backends."""

    def __init__(self, backend: str, cuda: bool) -> None:
        if cuda:
            backend = f"cpu:{backend},cuda:nccl"
        if "taco" in backend:
            import taco_torch  # noqa: F401  registers the backend
        if self._must_be_told():
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        else:
            dist.init_process_group(backend)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))

    @staticmethod
    def _must_be_told() -> bool:
        """Whether this is a process alone. Sets torchrun's variables where mpirun's are there."""
        if {"RANK", "WORLD_SIZE"} <= os.environ.keys():
            return False
        from taco_torch.horovod.environment import world

        place = world()
        if place.size == 1:
            return True
        found = {
            "RANK": place.rank,
            "WORLD_SIZE": place.size,
            "LOCAL_RANK": place.local_rank,
            "LOCAL_WORLD_SIZE": place.local_size,
            "MASTER_ADDR": place.address,
            "MASTER_PORT": place.port,
        }
        known = {name: str(value) for name, value in found.items() if value is not None}
        os.environ.update(known)
        return False

    def learning_rate_scale(self, arguments: argparse.Namespace) -> int:
        return self.size

    def distribute(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, arguments: argparse.Namespace
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        cap = BUCKET_BYTES / arguments.scale / (1 << 20)
        bucket = {} if arguments.scale == 1 else {"bucket_cap_mb": cap}  # else DDP's own sizes
        parallel = DistributedDataParallel(model, gradient_as_bucket_view=True, **bucket)
        if arguments.fp16_allreduce:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            parallel.register_comm_hook(None, fp16_compress_hook)
        return parallel, optimizer

    def leave(self) -> None:
        dist.destroy_process_group()


class OwnGradients:
    """Gradients in memory of their own, where those of Emulated are views of one array: Horovod
    averages a gradient in place, and would change the others."""

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients

    def like(self, weight: Tensor) -> Tensor:
        return self._gradients.like(weight).clone()


class Untouched(torch.optim.Optimizer):
    """Leaves the parameters as they are: a processor would take longer for them than the devices
    whose computation is emulated."""

    def __init__(self, parameters: Any, lr: float = BASE_RATE) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> None:
        assert closure is None


def make_model(
    arguments: argparse.Namespace, device: torch.device
) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """The model, and what makes its loss of one batch."""
    if arguments.emulate_compute is not None:
        layers = [layer.scaled(arguments.scale) for layer in MODELS[arguments.model]()]
        seconds = arguments.emulate_compute / 1e3
        model = Emulated(layers, (1 - FORWARD) * seconds, FORWARD * seconds, seed=arguments.seed)
        if arguments.backend == "horovod":
            model.gradients = OwnGradients(model.gradients)  # type: ignore[assignment]
        one = torch.ones(1, requires_grad=True)
        return model, lambda distributed: distributed(one)
    task = TASKS[arguments.model]
    inputs = task.inputs(arguments.batch_size).to(device)
    targets = task.targets(arguments.batch_size).to(device)

    def loss(distributed: nn.Module) -> Tensor:
        logits = distributed(inputs)
        return functional.cross_entropy(logits.flatten(0, -2), targets)

    return task.make().to(device), loss


def make_step(
    arguments: argparse.Namespace, job: HorovodJob | TorchJob, device: torch.device
) -> Callable[[], None]:
    model, loss = make_model(arguments, device)
    rate = BASE_RATE * job.learning_rate_scale(arguments)
    kind = torch.optim.SGD if arguments.emulate_compute is None else Untouched
    distributed, optimizer = job.distribute(model, kind(model.parameters(), lr=rate), arguments)

    def step() -> None:
        optimizer.zero_grad()
        loss(distributed).backward()
        optimizer.step()

    return step


def benchmark(
    arguments: argparse.Namespace, job: HorovodJob | TorchJob, log: Callable[[str], None]
) -> dict[str, Any]:
    device = torch.device("cuda" if has_cuda(arguments) else "cpu")
    kind = "GPU" if has_cuda(arguments) else "CPU"
    if has_cuda(arguments):
        torch.cuda.set_device(job.local_rank)
    unit = TASKS[arguments.model].unit
    step = make_step(arguments, job, device)
    log(f"Model: {arguments.model}")
    log(f"Batch size: {arguments.batch_size}")
    log(f"Number of {kind}s: {job.size}")
    log("Running warmup...")
    timeit.timeit(step, number=arguments.num_warmup_batches)
    log("Running benchmark...")
    speeds = []
    for number in range(arguments.num_iters):
        seconds = timeit.timeit(step, number=arguments.num_batches_per_iter)
        speeds.append(arguments.batch_size * arguments.num_batches_per_iter / seconds)
        log(f"Iter #{number}: {speeds[-1]:.1f} {unit}/sec per {kind}")
    mean, spread = statistics.fmean(speeds), 1.96 * statistics.pstdev(speeds)
    log(f"{unit.capitalize()}/sec per {kind}: {mean:.1f} +-{spread:.1f}")
    total = f"Total {unit}/sec on {job.size} {kind}(s)"
    log(f"{total}: {job.size * mean:.1f} +-{job.size * spread:.1f}")
    return {
        "model": arguments.model,
        "backend": arguments.backend,
        "lightcc": arguments.lightcc,
        "ranks": job.size,
        "batch_size": arguments.batch_size,
        "per_second": speeds,
        "mean": mean,
        "spread": spread,
    }


def has_cuda(arguments: argparse.Namespace) -> bool:
    return not arguments.no_cuda and torch.cuda.is_available()


def make_job(arguments: argparse.Namespace) -> HorovodJob | TorchJob:
    """Raises ValueError where nobody would average the gradients of GPUs."""
    cuda = has_cuda(arguments)
    if arguments.backend != "horovod":
        return TorchJob(arguments.backend, cuda)
    if cuda:
        raise ValueError(
            "--backend horovod averages CPU tensors, and this machine has a GPU: give --no-cuda, "
            "or --backend taco, where NCCL averages the gradients of GPUs"
        )
    return HorovodJob()


def ask_for_lightcc() -> None:
    """Sets the variables that --lightcc stands for, unless others choose already. They are read at
    the first use of taco_torch."""
    if not any(os.environ.get(name) for name in CHOOSE_LIGHTCC):
        os.environ["LIGHT_TOPK_ALLREDUCE"] = "1"
        os.environ["LIGHT_TOPK_FP16"] = "1"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--fp16-allreduce", action="store_true", help="average in 16 bits")
    parser.add_argument("--model", choices=list(TASKS), default="resnet50")
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--num-warmup-batches", type=int, default=10, help="that do not count")
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10)
    parser.add_argument("--no-cuda", action="store_true", help="compute on the CPU")
    parser.add_argument("--use-adasum", action="store_true", help="average by Adasum")
    ours = parser.add_argument_group("beyond Horovod's")
    ours.add_argument("--backend", choices=BACKENDS, default="horovod")
    ours.add_argument("--lightcc", action="store_true", help="send less of the gradients")
    ours.add_argument("--emulate-compute", type=float, metavar="MS", help="of a step: do not train")
    ours.add_argument("--scale", type=float, default=1.0, help="gradients so many times smaller")
    ours.add_argument("--seed", type=int, default=1, help="of what is made up")
    ours.add_argument("--json", type=Path, help="where rank 0 writes every figure")
    return parser


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = make_parser()
    arguments = parser.parse_args(words)
    for name, least in (
        ("batch_size", 1),
        ("num_warmup_batches", 0),
        ("num_batches_per_iter", 1),
        ("num_iters", 1),
        ("scale", 1),
    ):
        value = getattr(arguments, name)
        if value < least:
            option = name.replace("_", "-")
            parser.error(f"--{option} is {value:g}, but must be {least} or more")
    if arguments.emulate_compute is not None and arguments.emulate_compute < 0:
        parser.error(f"--emulate-compute is {arguments.emulate_compute:g}, but must be 0 or more")
    if arguments.scale > 1 and arguments.emulate_compute is None:
        parser.error("--scale is for --emulate-compute: a model that is trained has its own size")
    if arguments.use_adasum and arguments.backend != "horovod":
        parser.error(f"--use-adasum is Horovod's: --backend {arguments.backend} cannot do it")
    if arguments.lightcc and arguments.backend == "gloo":
        parser.error("--lightcc is taco's: --backend gloo sends all of the gradients")
    if arguments.lightcc and arguments.fp16_allreduce:
        parser.error("--lightcc and --fp16-allreduce both change what is sent: give one of them")
    return arguments


def main() -> int:
    arguments = parse_arguments(sys.argv[1:])
    if arguments.lightcc:
        ask_for_lightcc()
    torch.manual_seed(arguments.seed)
    try:
        job = make_job(arguments)
    except ValueError as error:
        raise SystemExit(f"{Path(sys.argv[0]).name}: {error}") from None

    def log(text: str) -> None:
        if job.rank == 0:
            print(text, flush=True)

    result = benchmark(arguments, job, log)
    if job.rank == 0 and arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    job.leave()
    return 0


if __name__ == "__main__":
    sys.exit(main())
