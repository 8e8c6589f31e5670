"""An optimizer's gradients, averaged as Compression.lightcc() or LIGHT_* variables ask: in fewer
bytes between hosts.

The float32 gradients go in buckets, as under DistributedDataParallel (taco_torch/lightcc): these
are the same on all ranks, and sent in the same order, the last parameters first, each as soon as it
and those before it are ready. Other gradients go by name, exact.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from taco_torch._extension import _C
from taco_torch.horovod.compression import Compressor, LightCC, NoneCompressor
from taco_torch.horovod.gradient_reducer import NamedReducer, put_back
from taco_torch.horovod.job import current, internal_errors, the_job
from taco_torch.horovod.process_sets import ProcessSet, global_process_set
from taco_torch.horovod.reduce_ops import Average, ReduceOp, Sum
from taco_torch.lightcc import ledger
from taco_torch.lightcc.settings import Options


def asked_for(compression: type[Compressor] | Compressor | LightCC) -> Options | None:
    """How the argument, or else LIGHT_* variables, ask for gradients to be compressed; None: they
    do not. ValueError if a variable is malformed."""
    light = _C.lightcc_environment()
    if isinstance(compression, LightCC):
        return None if compression.options.compression == "none" else compression.options
    return Options() if light["compresses"] else None


def check_possible(
    compression: type[Compressor] | Compressor | LightCC, op: ReduceOp, process_set: ProcessSet
) -> None:
    """ValueError for arguments that compressed gradients do not go with."""
    problem = ""
    is_by_argument = isinstance(compression, LightCC)
    kind = compression if isinstance(compression, type) else type(compression)
    if not is_by_argument and kind is not NoneCompressor:
        problem = f"compression={kind.__name__} compresses them, too"
    elif op not in (Average, Sum):
        problem = f"op={op.name} is neither Average nor Sum"
    elif process_set is not global_process_set:
        problem = f"they are averaged in {process_set}, not in the global process set"
    if problem:
        asking = "Compression.lightcc() asks" if is_by_argument else "LIGHT_* variables ask"
        raise ValueError(f"{asking} for compressed gradients, but {problem}: leave one of them out")


class CompressedReducer:
    """Compresses the gradients of float32 parameters; ``others`` reduces the rest."""

    def __init__(
        self,
        names: dict[torch.Tensor, str],
        others: NamedReducer,
        options: Options,
        op: ReduceOp,
        sparse_as_dense: bool,
    ) -> None:
        self.grad_scaler: Any = None  # found by lightcc/ledger.py
        self._others = others
        self._names = names
        self._op = op
        self._sparse_as_dense = sparse_as_dense
        self._parameters = [
            p for p in names if p.requires_grad and p.dtype == torch.float32 and p.numel() > 0
        ]
        self._number = {p: number for number, p in enumerate(self._parameters)}
        self._backend = the_job().backend
        the_job().compressing.add(self)
        named = [(names[p], p) for p in self._parameters]
        self._native = _C.GradientHook(self._backend, named, options.settings(), None)
        ledger.listen()
        for parameter, number in self._number.items():
            ledger.add(parameter, self._native, number, self)
        self._buckets = self._arranged(int(_C.lightcc_environment()["fusion_bytes"]))
        self._bucket_of = {p: number for number, b in enumerate(self._buckets) for p in b}
        self._ready: set[torch.Tensor] = set()
        self._arrived: Counter[int] = Counter()  # how many of a bucket
        self._works: list[tuple[Any, torch.Tensor, list[torch.Tensor]]] = []  # by bucket

    def _arranged(self, fusion_bytes: int) -> list[list[torch.Tensor]]:
        """The buckets, those whose gradients a backward pass has first before others."""
        buckets: list[list[torch.Tensor]] = []
        room = 0
        for parameter in reversed(self._parameters):
            if not buckets or parameter.nbytes > room:
                buckets.append([])
                room = fusion_bytes
            buckets[-1].append(parameter)
            room -= parameter.nbytes
        return buckets

    def is_pending(self) -> bool:
        return bool(self._ready) or bool(self._works) or self._others.is_pending()

    def forget(self) -> None:
        self._ready.clear()
        self._arrived.clear()
        self._works.clear()
        self._others.forget()

    def end(self) -> None:
        self.forget()
        running = current()
        if running is not None:
            running.compressing.discard(self)

    def begin(self, parameter: torch.Tensor) -> None:
        if parameter not in self._number:
            self._others.begin(parameter)
            return
        if parameter not in self._ready:
            self._ready.add(parameter)
            self._arrived[self._bucket_of[parameter]] += 1
        while self._is_next_ready():
            self._start()

    def _is_next_ready(self) -> bool:
        number = len(self._works)
        return number < len(self._buckets) and self._arrived[number] == len(self._buckets[number])

    @torch.no_grad()
    def _start(self) -> None:
        """Sends the next bucket."""
        if not self._works and the_job().backend is not self._backend:  # a new incarnation
            self._backend = the_job().backend
            the_job().compressing.add(self)
            self._native.move(self._backend)
        number = len(self._works)
        bucket = self._buckets[number]
        gradients = [self._gradient(parameter) for parameter in bucket]
        if len(bucket) == 1 and gradients[0].layout == torch.strided:
            flat = gradients[0].contiguous().view(-1)
        else:
            flat = torch.cat([g.to_dense().reshape(-1) for g in gradients])
        layout = [self._number[parameter] for parameter in bucket]
        with internal_errors():
            work = self._native.average(number, layout, flat)
        self._works.append((work, flat, gradients))

    def _gradient(self, parameter: torch.Tensor) -> torch.Tensor:
        if parameter.grad is None:  # others may have one
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.is_sparse and not self._sparse_as_dense:
            raise ValueError(
                f"the gradient of {self._names[parameter]} is sparse, and this optimizer "
                "compresses gradients: pass sparse_as_dense=True to DistributedOptimizer()"
            )
        return parameter.grad

    def finish(self, parameters: Sequence[torch.Tensor]) -> None:
        try:
            while len(self._works) < len(self._buckets):
                self._start()
            self._others.finish([p for p in parameters if p not in self._number])
            for (work, flat, gradients), bucket in zip(self._works, self._buckets, strict=True):
                with internal_errors():
                    work.wait()
                self._take(bucket, flat, gradients)
            self._native.end_pass()
        finally:
            self.forget()

    @torch.no_grad()
    def _take(
        self, bucket: list[torch.Tensor], flat: torch.Tensor, gradients: list[torch.Tensor]
    ) -> None:
        if self._op is Sum:
            flat.mul_(the_job().size)
        parts = torch.split(flat, [parameter.numel() for parameter in bucket])
        for parameter, part, gradient in zip(bucket, parts, gradients, strict=True):
            if gradient.is_sparse or part.data_ptr() != gradient.data_ptr():
                put_back(parameter, gradient, part.view(parameter.shape))
