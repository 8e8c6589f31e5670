"""A Horovod-compatible ``hvd`` over taco: the surface of ``horovod.torch``, by one import.

    import taco_torch.horovod as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

A script that says ``import horovod.torch as hvd`` runs unchanged by
``python -m taco_torch.horovod train.py``. docs/horovod.md says what stays and what differs. Tensors
are on the CPU. Importing starts nothing; a name's module is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taco_torch.horovod.asynchronous import (
        allgather_async,
        allreduce_async,
        allreduce_async_,
        alltoall_async,
        broadcast_async,
        broadcast_async_,
        grouped_allgather_async,
        grouped_allreduce_async,
        grouped_allreduce_async_,
        grouped_reducescatter_async,
        reducescatter_async,
        sparse_allreduce_async,
    )
    from taco_torch.horovod.basics import (
        ccl_built,
        cross_rank,
        cross_size,
        cuda_built,
        ddl_built,
        gloo_built,
        gloo_enabled,
        init,
        is_homogeneous,
        is_initialized,
        local_rank,
        local_size,
        mpi_built,
        mpi_enabled,
        mpi_threads_supported,
        nccl_built,
        rank,
        rocm_built,
        shutdown,
        size,
        start_timeline,
        stop_timeline,
    )
    from taco_torch.horovod.compression import Compression
    from taco_torch.horovod.exceptions import (
        HorovodInternalError,
        HostsUpdatedInterrupt,
        NotInitializedError,
    )
    from taco_torch.horovod.functions import (
        allgather_object,
        broadcast_object,
        broadcast_optimizer_state,
        broadcast_parameters,
    )
    from taco_torch.horovod.handles import poll, synchronize
    from taco_torch.horovod.operations import (
        allgather,
        allreduce,
        allreduce_,
        alltoall,
        barrier,
        broadcast,
        broadcast_,
        grouped_allgather,
        grouped_allreduce,
        grouped_allreduce_,
        grouped_reducescatter,
        join,
        reducescatter,
    )
    from taco_torch.horovod.optimizer import DistributedOptimizer
    from taco_torch.horovod.process_sets import (
        ProcessSet,
        add_process_set,
        global_process_set,
        process_set_ids,
        remove_process_set,
    )
    from taco_torch.horovod.reduce_ops import Adasum, Average, Max, Min, Product, Sum
    from taco_torch.horovod.sync_batch_norm import SyncBatchNorm

# The names of each module.
_NAMES = {
    "asynchronous": "allgather_async allreduce_async allreduce_async_ alltoall_async "
    "broadcast_async broadcast_async_ grouped_allgather_async grouped_allreduce_async "
    "grouped_allreduce_async_ grouped_reducescatter_async reducescatter_async "
    "sparse_allreduce_async",
    "basics": "ccl_built cross_rank cross_size cuda_built ddl_built gloo_built gloo_enabled init "
    "is_homogeneous is_initialized local_rank local_size mpi_built mpi_enabled "
    "mpi_threads_supported nccl_built rank rocm_built shutdown size start_timeline stop_timeline",
    "compression": "Compression",
    "exceptions": "HorovodInternalError HostsUpdatedInterrupt NotInitializedError",
    "functions": "allgather_object broadcast_object broadcast_optimizer_state broadcast_parameters",
    "handles": "poll synchronize",
    "operations": "allgather allreduce allreduce_ alltoall barrier broadcast broadcast_ "
    "grouped_allgather grouped_allreduce grouped_allreduce_ grouped_reducescatter join "
    "reducescatter",
    "optimizer": "DistributedOptimizer",
    "process_sets": "ProcessSet add_process_set global_process_set process_set_ids "
    "remove_process_set",
    "reduce_ops": "Adasum Average Max Min Product Sum",
    "sync_batch_norm": "SyncBatchNorm",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "NotInitializedError",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "process_set_ids",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]


def __getattr__(name: str) -> Any:
    if name in ("elastic", "optimizer"):  # modules of their own
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
