"""The asynchronous operations. Each submits tensors under a name and returns a Handle at once.

Operations match by name among the ranks of a process set, whatever the order on each rank. One
without a name gets the next number of its kind, so those must come in the same order everywhere.
Tensors must not be written to until the operation is done.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from taco_torch.horovod.handles import Handle
from taco_torch.horovod.job import Job, the_job
from taco_torch.horovod.process_sets import ProcessSet, global_process_set, id_of
from taco_torch.horovod.reduce_ops import Adasum, Average, ReduceOp, Sum, chosen, known

_REDUCED = {
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
}
_MOVED = _REDUCED | {torch.uint8, torch.int8, torch.int16, torch.bool}


def _check(kind: str, tensor: Any, dtypes: set[torch.dtype]) -> None:
    """ValueError for what cannot be sent as it lies, NotImplementedError for other devices."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{kind} takes tensors, got {tensor!r}")
    if tensor.layout != torch.strided:
        raise ValueError(
            f"{kind} takes dense tensors, got one of {tensor.layout}: see sparse_allreduce_async()"
        )
    if tensor.device.type != "cpu":
        raise NotImplementedError(
            f"{kind}: the tensor is on {tensor.device}, but must be on the CPU"
        )
    if tensor.dtype not in dtypes:
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise ValueError(f"{kind} does not know tensors of {tensor.dtype}, but those of {names}")
    if not tensor.is_contiguous():
        raise ValueError(
            f"{kind}: a tensor of shape {list(tensor.shape)} is not contiguous: pass "
            "tensor.contiguous()"
        )


def _check_rows(kind: str, tensor: torch.Tensor) -> None:
    if tensor.dim() == 0:
        raise RuntimeError(f"{kind}: a tensor without dimensions has no rows: pass tensor.view(1)")


def _submit(
    kind: str,
    label: str,
    tensors: list[torch.Tensor],
    outputs: list[torch.Tensor] | None,
    name: str | None,
    process_set: ProcessSet,
    **more: Any,
) -> Any:
    """``label`` begins the operation's name, in timelines and messages."""
    running = the_job()
    number = id_of(process_set)
    told = f"{label}.{_name(running, number, label, name)}"
    return running.submit(number, kind, told, tensors, outputs, **more)


def _name(running: Job, process_set: int, label: str, name: str | None) -> str:
    return f"noname.{running.next_number(process_set, label)}" if name is None else str(name)


def _first(submissions: list[Any]) -> torch.Tensor:
    output: torch.Tensor = submissions[0].outputs[0]
    return output


def _grouped(
    kind: str,
    tensors: Sequence[torch.Tensor],
    in_place: bool,
    name: str | None,
    process_set: ProcessSet,
    **more: Any,
) -> Handle:
    """One request for the tensors of each dtype: they start together, and the outputs are in the
    order of the tensors."""
    label = f"grouped_{kind}"
    running = the_job()
    base = _name(running, id_of(process_set), label, name)
    by_dtype: dict[torch.dtype, list[int]] = {}
    for index, tensor in enumerate(tensors):
        by_dtype.setdefault(tensor.dtype, []).append(index)
    submissions = []
    for dtype, indices in by_dtype.items():
        alike = [tensors[index] for index in indices]
        told = base if len(by_dtype) == 1 else f"{base}.{str(dtype).removeprefix('torch.')}"
        outputs = alike if in_place else None
        submissions.append(_submit(kind, label, alike, outputs, told, process_set, **more))

    def in_order(done: list[Any]) -> list[torch.Tensor]:
        if in_place:
            return list(tensors)
        found: dict[int, torch.Tensor] = {}
        for indices, submission in zip(by_dtype.values(), done, strict=True):
            found.update(zip(indices, submission.outputs, strict=True))
        return [found[index] for index in range(len(found))]

    return Handle(submissions, in_order)


def _reduction(
    op: ReduceOp, dtypes: set[torch.dtype], process_set: ProcessSet
) -> tuple[str, dict[str, str]]:
    """The kind of the request, and its ``op``."""
    if op is not Adasum:
        return "allreduce", {"op": op.name.lower()}
    id_of(process_set)
    size = process_set.size() or 0
    if size & (size - 1):
        raise NotImplementedError(f"Adasum needs a power of two of ranks, and there are {size}")
    if not all(dtype.is_floating_point for dtype in dtypes):
        raise ValueError("Adasum combines floating-point tensors only")
    return "adasum", {}


def _allreduce(
    tensor: torch.Tensor,
    in_place: bool,
    name: str | None,
    op: ReduceOp,
    factors: tuple[float, float],
    process_set: ProcessSet,
) -> Handle:
    _check("allreduce", tensor, _REDUCED)
    kind, how = _reduction(op, {tensor.dtype}, process_set)
    outputs = [tensor] if in_place else None
    submission = _submit(
        kind,
        "allreduce",
        [tensor],
        outputs,
        name,
        process_set,
        prescale=factors[0],
        postscale=factors[1],
        **how,
    )
    return Handle([submission], (lambda _: tensor) if in_place else _first)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """``allreduce()`` without waiting and without autograd."""
    factors = (prescale_factor, postscale_factor)
    return _allreduce(tensor, False, name, chosen(op, average), factors, process_set)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """``allreduce_()`` without waiting."""
    factors = (prescale_factor, postscale_factor)
    return _allreduce(tensor, True, name, chosen(op, average), factors, process_set)


def _grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    in_place: bool,
    name: str | None,
    op: ReduceOp,
    factors: tuple[float, float],
    process_set: ProcessSet,
) -> Handle:
    for tensor in tensors:
        _check("grouped_allreduce", tensor, _REDUCED)
    kind, how = _reduction(op, {tensor.dtype for tensor in tensors}, process_set)
    scales = {"prescale": factors[0], "postscale": factors[1]}
    return _grouped(kind, tensors, in_place, name, process_set, **scales, **how)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """``grouped_allreduce()`` without waiting and without autograd."""
    factors = (prescale_factor, postscale_factor)
    return _grouped_allreduce(tensors, False, name, chosen(op, average), factors, process_set)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """``grouped_allreduce_()`` without waiting."""
    factors = (prescale_factor, postscale_factor)
    return _grouped_allreduce(tensors, True, name, chosen(op, average), factors, process_set)


def check_sparse(op: int) -> ReduceOp:
    """ValueError for what sparse tensors are not reduced by."""
    reduction = known(op)
    if reduction not in (Average, Sum):
        raise ValueError(f"a sparse allreduce takes Average or Sum, got {reduction.name}")
    return reduction


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Reduces sparse tensors by gathering their indices and values.

    Args:
        tensor: sparse COO, of the same shape and dtype on all ranks.
        name: of the operation; None: the next number.
        op: Average or Sum.

    Returns:
        A function that waits and returns the sum or average, sparse and not coalesced.

    Raises:
        ValueError: the tensor is not sparse, or ``op`` is another one.
    """
    reduction = check_sparse(op)
    if not isinstance(tensor, torch.Tensor) or not tensor.is_sparse:
        raise ValueError("sparse_allreduce_async() takes a sparse COO tensor")
    base = _name(the_job(), id_of(process_set), "sparse_allreduce", name)
    return SparseReduction(tensor, base, reduction, process_set).wait


class SparseReduction:
    """A sparse tensor's sum or average under way: its indices and its values are gathered.

    ``dense_label`` is the label under which other ranks would submit the same tensor if it were
    dense there. The indices go under it, so that this is an error on all ranks, where they would
    else wait for each other; and the values follow by ``go_on()``, so that none are left over then.
    """

    def __init__(
        self,
        tensor: torch.Tensor,
        name: str,
        reduction: ReduceOp,
        process_set: ProcessSet,
        dense_label: str | None = None,
    ) -> None:
        self._own = tensor._values().contiguous()
        self._name, self._reduction, self._process_set = name, reduction, process_set
        self._shape = tensor.size()
        self._values: Handle | None = None
        # Rows are gathered, and an index is a column.
        columns = tensor._indices().transpose(0, 1).contiguous()
        if dense_label is None:
            self._indices = allgather_async(columns, f"sparse.{name}.indices", process_set)
            self._send_values()
        else:
            submission = _submit("allgather", dense_label, [columns], None, name, process_set)
            self._indices = Handle([submission], _first)

    def _send_values(self) -> None:
        self._values = allgather_async(self._own, f"sparse.{self._name}.values", self._process_set)

    def go_on(self) -> None:
        """Waits until all ranks have submitted indices, and submits the values, if it has not.
        Where there are several, for all of them before any ``wait()``."""
        if self._values is None:
            self._indices.wait()
            self._send_values()

    def wait(self) -> torch.Tensor:
        """The sum or average, sparse and not coalesced."""
        assert self._values is not None
        gathered = self._values.wait()
        places = self._indices.wait().transpose(0, 1)
        if self._reduction is Average:
            size = self._process_set.size() or 1
            gathered = (
                gathered / size
                if gathered.is_floating_point()
                else gathered.div(size, rounding_mode="trunc")
            )
        return torch.sparse_coo_tensor(places, gathered, self._shape, check_invariants=False)


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """``allgather()`` without waiting and without autograd."""
    _check("allgather", tensor, _MOVED)
    _check_rows("allgather", tensor)
    return Handle([_submit("allgather", "allgather", [tensor], None, name, process_set)], _first)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """``grouped_allgather()`` without waiting and without autograd."""
    for tensor in tensors:
        _check("grouped_allgather", tensor, _MOVED)
        _check_rows("grouped_allgather", tensor)
    return _grouped("allgather", tensors, False, name, process_set)


def _broadcast(
    tensor: torch.Tensor,
    in_place: bool,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
) -> Handle:
    _check("broadcast", tensor, _MOVED)
    outputs = [tensor] if in_place else None
    submission = _submit(
        "broadcast", "broadcast", [tensor], outputs, name, process_set, root=int(root_rank)
    )
    return Handle([submission], (lambda _: tensor) if in_place else _first)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """``broadcast()`` without waiting and without autograd."""
    return _broadcast(tensor, False, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """``broadcast_()`` without waiting."""
    return _broadcast(tensor, True, root_rank, name, process_set)


def _split_rows(
    tensor: torch.Tensor, splits: torch.Tensor | Sequence[int] | None, size: int
) -> list[int]:
    """How many rows each rank gets. ValueError for what the tensor does not have."""
    rows = tensor.shape[0]
    if splits is None or len(splits) == 0:
        if rows % size:
            raise ValueError(f"alltoall: {rows} rows cannot be shared by {size} ranks: pass splits")
        return [rows // size] * size
    if not isinstance(splits, torch.Tensor):
        splits = torch.tensor(splits, dtype=torch.int32, device="cpu")
    if splits.dtype != torch.int32:
        raise ValueError(f"alltoall: splits are of {splits.dtype}, but must be of torch.int32")
    if splits.dim() != 1 or splits.numel() != size:
        raise ValueError(
            f"alltoall: splits have shape {list(splits.shape)}, but must have one for each of the "
            f"{size} ranks"
        )
    told = [int(number) for number in splits.tolist()]
    if min(told) < 0 or sum(told) > rows:
        raise ValueError(f"alltoall: splits {told} do not fit a tensor of {rows} rows")
    return told


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """``alltoall()`` without waiting and without autograd. Its result is always the pair."""
    _check("alltoall", tensor, _MOVED)
    _check_rows("alltoall", tensor)
    id_of(process_set)
    rows = _split_rows(tensor, splits, process_set.size() or 1)
    sent = tensor.narrow(0, 0, sum(rows))  # the rest goes nowhere
    submission = _submit("alltoall", "alltoall", [sent], None, name, process_set, splits=rows)

    def pair(done: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        received = torch.tensor(done[0].received_splits, dtype=torch.int32, device="cpu")
        return _first(done), received

    return Handle([submission], pair)


def _check_sum(op: int) -> ReduceOp:
    reduction = known(op)
    if reduction not in (Average, Sum):
        raise RuntimeError(f"reducescatter takes Average or Sum, got {reduction.name}")
    return reduction


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """``reducescatter()`` without waiting and without autograd."""
    reduction = _check_sum(op)
    _check("reducescatter", tensor, _REDUCED)
    _check_rows("reducescatter", tensor)
    submission = _submit(
        "reducescatter",
        "reducescatter",
        [tensor],
        None,
        name,
        process_set,
        op=reduction.name.lower(),
        prescale=prescale_factor,
        postscale=postscale_factor,
    )
    return Handle([submission], _first)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """``grouped_reducescatter()`` without waiting and without autograd."""
    reduction = _check_sum(op)
    for tensor in tensors:
        _check("grouped_reducescatter", tensor, _REDUCED)
        _check_rows("grouped_reducescatter", tensor)
    scales = {"prescale": prescale_factor, "postscale": postscale_factor}
    how = {"op": reduction.name.lower()}
    return _grouped("reducescatter", tensors, False, name, process_set, **scales, **how)


def join_async() -> Handle:
    """``join()`` without waiting."""
    running = the_job()
    if running.compressing:
        raise ValueError(
            "join() gives zeros to allreduces by name, and gradients that LIGHT_* variables or "
            "Compression.lightcc() have compressed go past these: leave them out, or give all "
            "ranks as many batches"
        )
    submission = _submit("join", "join", [], None, None, global_process_set)

    def last_joined(done: list[Any]) -> int:
        running.all_have_joined()
        return int(done[0].last_joined)

    return Handle([submission], last_joined)


def barrier_async(process_set: ProcessSet = global_process_set) -> Handle:
    """``barrier()`` without waiting."""
    return Handle([_submit("barrier", "barrier", [], None, None, process_set)], lambda _: None)
