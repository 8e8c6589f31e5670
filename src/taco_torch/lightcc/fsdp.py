"""Compressed gradients for modules of fully_shard (FSDP2).

FSDP2 reduces the gradients of a group of parameters in up to two legs: a reduce_scatter among the
ranks that share the parameters out, and, where the mesh has a second dimension (HSDP), an
all_reduce between the replicas of each shard. A custom reduce_scatter codes the first. torch calls
no hook before the second: what it is about to reduce is told to the group beforehand, by a wrapper
of torch's ``foreach_reduce``.

The names of torch that are not public are those of 2.11 to 2.14; ``_need`` says which is missing.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_param_group, _fsdp_state
from torch.distributed.tensor import DTensor, distribute_tensor

from taco_torch._extension import _C
from taco_torch.groups import taco_backend
from taco_torch.lightcc import ledger, models
from taco_torch.lightcc.once import say_once, wrap
from taco_torch.lightcc.settings import Options, scale_of

_SIXTEEN_BITS = ("float16", "bfloat16")
_TORCHS_OWN = ("DefaultReduceScatter", "ProcessGroupAllocReduceScatter")


def _need(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        what = owner.__name__ if hasattr(owner, "__name__") else type(owner).__name__
        raise RuntimeError(
            f"lightcc cannot compress modules of fully_shard: torch {torch.__version__} has no "
            f"{what}.{name}, as torch 2.11 to 2.14 do"
        ) from None


@dataclass
class _Group:
    """Parameters that FSDP2 reduces together, and the module to which they belong."""

    torchs: Any  # FSDPParamGroup
    module: FSDPModule
    alone: bool  # the module has no other

    @property
    def shards(self) -> dist.ProcessGroup | None:
        """The group among whose ranks the parameters are shared out."""
        return _shard_group(self.torchs)

    @property
    def replicas(self) -> dist.ProcessGroup | None:
        """The ranks with the same shard, of which this rank is one; None: the mesh has no such
        dimension."""
        mesh = _need(self.torchs, "mesh_info")
        if _need(mesh, "replicate_mesh_dim") is None:
            return None
        replicas: dist.ProcessGroup = _need(mesh, "replicate_process_group")
        return replicas

    def take_over(self, sharded: "Sharded") -> None:
        comm: Any = CodedReduceScatter(sharded, self.torchs._reduce_scatter_comm)
        if self.alone:
            self.module.set_custom_reduce_scatter(comm)
        else:  # the public call does not take modules of several groups
            self.torchs._reduce_scatter_comm = comm


def _shard_group(group: Any) -> dist.ProcessGroup | None:
    mesh = _need(group, "mesh_info")
    if _need(mesh, "shard_mesh_dim") is None:
        return None
    shards: dist.ProcessGroup = _need(mesh, "shard_process_group")
    return shards


def _groups_of(model: torch.nn.Module) -> list[_Group]:
    """The groups of all modules under ``model``."""
    found: dict[int, _Group] = {}
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        state = _need(module, "_get_fsdp_state")()
        several = getattr(state, "_fsdp_param_groups", None)
        own = [_need(state, "_fsdp_param_group")] if several is None else several
        for group in own:
            if group is not None and id(group) not in found:
                found[id(group)] = _Group(group, module, len(own) == 1)
    return list(found.values())


class CodedReduceScatter:
    """Stands in for the ReduceScatter of a group of parameters, and marks that group as one whose
    gradients are compressed."""

    def __init__(self, sharded: "Sharded", original: Any) -> None:
        self.sharded = sharded
        self._original = original

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        allocated: torch.Tensor = self._original.allocate(size, dtype=dtype, device=device)
        return allocated

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        wire = self.sharded.wire
        if not wire or not _is_float32(input_tensor):
            plain: dist.Work | None = self._original(
                output_tensor=output_tensor,
                input_tensor=input_tensor,
                group=group,
                op=op,
                async_op=async_op,
            )
            return plain
        work: dist.Work = taco_backend(group).reduce_scatter_coded(
            output_tensor, input_tensor, op, wire, async_op
        )
        if async_op:
            return work
        work.wait()
        return None


def _is_float32(tensor: torch.Tensor) -> bool:
    if tensor.dtype == torch.float32:
        return True
    say_once(f"gradients of {tensor.dtype} are sent as they are: only float32 is compressed")
    return False


@dataclass
class _Shard:
    """A parameter's, and what it is reduced with."""

    param: ref[Any]  # FSDPParam
    group: ref[Any]  # FSDPParamGroup


class ReplicaLeg(models.Leg):
    """The replicas of this rank's shards. Holds no module."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self._shards: dict[str, _Shard] = {}

    def add(self, name: str, param: Any, group: Any) -> int:
        """The parameter's number."""
        self._shards[name] = _Shard(ref(param), ref(group))
        return len(self._shards) - 1

    def start(self, settings: _C.GradientSettings, scale: Callable[[], float] | None) -> None:
        self.names = list(self._shards)
        shapes = [
            (name, torch.empty(self.elements(name), dtype=torch.float32, device="meta"))
            for name in self.names
        ]
        self.native = _C.GradientHook(taco_backend(self.group), shapes, settings, scale)

    def _param(self, name: str) -> Any:
        param = self._shards[name].param()
        if param is None:
            raise RuntimeError(f"the parameter {name} is no longer sharded by fully_shard")
        return param

    def elements(self, name: str) -> int:
        return int(_need(self._param(name), "padded_sharded_param_size").numel())

    def shape(self, name: str) -> torch.Size:
        shape: torch.Size = self._param(name).sharded_param.shape
        return shape

    def gradient(self, name: str) -> torch.Tensor | None:
        gradient: torch.Tensor | None = self._param(name).sharded_param.grad
        return gradient.to_local() if isinstance(gradient, DTensor) else gradient

    def part(self, name: str, flat: torch.Tensor) -> torch.Tensor:
        size: torch.Size = _need(self._param(name), "sharded_size")
        return flat[: size.numel()].view(size)

    def saved(self, name: str, part: torch.Tensor) -> torch.Tensor:
        saved: torch.Tensor = _need(self._param(name), "to_sharded_dtensor")(part)
        return saved

    def loaded(self, name: str, saved: torch.Tensor) -> torch.Tensor:
        parameter = self._param(name).sharded_param
        mesh, placements = parameter.device_mesh, parameter.placements
        if not isinstance(saved, DTensor):
            saved = distribute_tensor(saved.detach().cpu(), mesh, placements, src_data_rank=None)
        if saved.placements != placements or not torch.equal(saved.device_mesh.mesh, mesh.mesh):
            raise ValueError(
                f"the residual of {name} is sharded otherwise than the parameter: load it by "
                "torch.distributed.checkpoint into the lightcc.state_dict() of this model"
            )
        local = saved.to_local().detach().to(device="cpu", dtype=torch.float32).reshape(-1)
        flat = torch.zeros(self.elements(name), dtype=torch.float32, device="cpu")
        flat[: local.numel()] = local
        return flat

    def unit(self, name: str) -> float:
        group = self._shards[name].group()
        world = self.group.size()
        factor: float | None = getattr(group, "gradient_divide_factor", None)
        if not getattr(group, "force_sum_reduction_for_comms", False):
            return 1.0 if factor is None else float(world)  # torch averages, or sums
        shards = _shard_group(group)
        return world / (factor or world * (1 if shards is None else shards.size()))


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


@dataclass
class _Place:
    """The place where a parameter's gradient is averaged between replicas."""

    leg: ReplicaLeg
    bucket: int
    number: int
    entered: ref[torch.Tensor] | None = None  # into the ledger
    left: ref[torch.Tensor] | None = None  # the gradient, as the last pass has left it
    version: int = 0
    nonzero: bool = False  # it was: only then do zeros say anything

    def leave(self, gradient: torch.Tensor | None) -> None:
        self.left = None if gradient is None else ref(gradient)
        self.version = 0 if gradient is None else gradient._version
        self.nonzero = gradient is not None and not _C.is_zero_everywhere(_local(gradient))

    def is_thrown_away(self, gradient: torch.Tensor | None) -> bool:
        if gradient is None:
            return True
        there = self.left is not None and self.left() is gradient
        untouched = there and self.version == gradient._version
        return self.nonzero and not untouched and _C.is_zero_everywhere(_local(gradient))


class Sharded:
    """The state of one model. Its modules hold it, by their CodedReduceScatter, and it holds no
    module."""

    def __init__(
        self, model: torch.nn.Module, settings: _C.GradientSettings, grad_scaler: Any
    ) -> None:
        self.settings = settings
        self.grad_scaler = grad_scaler
        self.legs: dict[str, ReplicaLeg] = {}  # by the names of their groups
        self.shard_groups: dict[str, dist.ProcessGroup] = {}
        self._groups: list[ref[Any]] = []  # FSDPParamGroups; a bucket is a number among them
        self._places: WeakKeyDictionary[Any, _Place] = WeakKeyDictionary()  # by FSDPParam
        self._new_pass = True
        self._reduced: set[int] = set()  # buckets, in this step
        prefixes = {id(module): name + "." for name, module in model.named_modules() if name}
        for group in _groups_of(model):
            self._add(group, prefixes)
        ledger.listen()
        for leg in self.legs.values():
            leg.start(settings, scale_of(grad_scaler))
        for param, place in self._places.items():
            self._enter(param, place)

    def hooks(self) -> list[_C.GradientHook]:
        return [leg.native for leg in self.legs.values()]

    def _enter(self, param: Any, place: _Place) -> None:
        """Into the ledger, by the parameter that optimizers have."""
        parameter = _need(param, "sharded_param")
        if place.entered is None or place.entered() is not parameter:
            place.entered = ref(parameter)
            ledger.add(parameter, place.leg.native, place.number, self)

    @property
    def wire(self) -> str:
        """The format in which sharded gradients travel; "": as they are."""
        asked = self.settings.compression
        asked = self.settings.small if asked == "topk" else asked
        return asked if asked in _SIXTEEN_BITS else ""

    def _add(self, group: _Group, prefixes: dict[int, str]) -> None:
        bucket = len(self._groups)
        self._groups.append(ref(group.torchs))
        shards, replicas = group.shards, group.replicas
        if shards is not None:
            self.shard_groups[shards.group_name] = shards
        if replicas is None:
            return
        leg = self.legs.setdefault(replicas.group_name, ReplicaLeg(replicas))
        for param in _need(group.torchs, "fsdp_params"):
            if _need(param, "sharded_param").requires_grad:
                home = _need(param, "_module_info")
                name = models.plain_name(prefixes.get(id(home.module), "") + home.param_name)
                self._places[param] = _Place(leg, bucket, leg.add(name, param, group.torchs))

    def change(self, settings: _C.GradientSettings, grad_scaler: Any) -> None:
        self.settings = settings
        self.grad_scaler = self.grad_scaler if grad_scaler is None else grad_scaler
        for leg in self.legs.values():
            leg.native.change(settings, scale_of(self.grad_scaler))

    def kept(self) -> models.Kept:
        layout: list[int] = []
        for leg in self.legs.values():
            layout += [*dist.get_process_group_ranks(leg.group), *leg.native.groups]
        return models.Kept(
            legs=list(self.legs.values()),
            groups=[*(leg.group for leg in self.legs.values()), *self.shard_groups.values()],
            place=f"rank {dist.get_rank()} of {dist.get_world_size()}",
            layout=layout,
            grad_scaler=self.grad_scaler,
        )

    def before_forward(self) -> None:
        self._new_pass = True

    def is_in_place(self) -> bool:
        """Has nobody put another reduce_scatter in the place of ours?"""
        groups = [group for group in (held() for held in self._groups) if group is not None]
        return all(isinstance(group._reduce_scatter_comm, CodedReduceScatter) for group in groups)

    @contextlib.contextmanager
    def reducing(self, params: list[Any]) -> Iterator[None]:
        """While torch reduces the gradients of these FSDPParams, which lie one after the other."""
        places = [self._places.get(param) for param in params]
        known = [place for place in places if place is not None]
        if len(known) < len(places) or len({place.bucket for place in known}) != 1:
            if known:
                say_once(
                    "gradients of parameters that were frozen when lightcc.compress() was called "
                    "are sent as they are, and so are those that are reduced with them"
                )
            yield
            return
        bucket = known[0].bucket
        group = self._groups[bucket]()
        if not getattr(group, "all_reduce_grads", True):
            yield  # the replicas wait for a later pass
            return
        self._begin_step_if_new(bucket)
        native = known[0].leg.native
        for param, place in zip(params, known, strict=True):
            self._enter(param, place)
        whole = self._look_at(params, known)
        native.arm(bucket, [place.number for place in known], whole)
        try:
            yield
        finally:
            native.disarm()
        for param, place in zip(params, known, strict=True):
            place.leave(param.sharded_param.grad)

    def _begin_step_if_new(self, bucket: int) -> None:
        """With the first reduction after a forward pass, or when one comes again."""
        if not self._new_pass and bucket not in self._reduced:
            self._reduced.add(bucket)
            return
        self._new_pass, self._reduced = False, {bucket}
        for leg in self.legs.values():
            leg.native.begin_step()

    def _look_at(self, params: list[Any], places: list[_Place]) -> bool:
        """Sees what the program has done to gradients since their last pass. Is this in vain? Then
        a scaler will have the step skipped, and nothing is to be kept of it."""
        native = places[0].leg.native
        if not native.is_undecided([place.number for place in places]):
            return False
        gradients = [param.sharded_param.grad for param in params]
        thrown_away = [
            place.number
            for place, gradient in zip(places, gradients, strict=True)
            if place.is_thrown_away(gradient)
        ]
        if thrown_away:
            native.dropped(thrown_away)
        if self.grad_scaler is None:
            return False
        local = [_local(gradient) for gradient in gradients if gradient is not None]
        return not all(bool(torch.isfinite(gradient).all()) for gradient in local)


def compress(model: torch.nn.Module, settings: _C.GradientSettings, grad_scaler: Any) -> None:
    """``lightcc.compress()`` for a model with modules of fully_shard."""
    groups = _groups_of(model)
    if settings.compression == "auto":
        raise ValueError(
            "auto chooses for DistributedDataParallel only: name float16, bfloat16 or, between "
            "replicas, topk"
        )
    if not groups:
        raise ValueError(f"{type(model).__name__} has no parameters that fully_shard has sharded")
    if settings.compression == "topk" and settings.small == "none" and not _has_replicas(groups):
        raise ValueError(
            "topk works between replicas, and this model has none: fully_shard gives each gradient "
            "to one rank only, and no rank could send a rest later. "
            "Name float16 or bfloat16, or shard over a mesh of two dimensions with several "
            "replicas (HSDP)"
        )
    known = models.find_sharded(model)
    if isinstance(known, Sharded):
        known.change(settings, grad_scaler)
        return
    owner = _other_owner(model, groups)
    if owner:
        raise RuntimeError(f"lightcc cannot compress the gradients of this model: {owner}")
    _switch_on(model, groups, settings, grad_scaler)


def _has_replicas(groups: list[_Group]) -> bool:
    """Whether gradients are replicated; also by one replica, if nothing leaves a host."""
    found = [group.replicas for group in groups if group.replicas is not None]
    if any(replicas.size() > 1 for replicas in found):
        return True
    return bool(found) and not _leaves_a_host(_backends(groups))


def _backends(groups: list[_Group]) -> list[_C.ProcessGroupTaco]:
    legs = [leg for group in groups for leg in (group.shards, group.replicas)]
    return [taco_backend(leg) for leg in legs if leg is not None]


def _leaves_a_host(backends: list[_C.ProcessGroupTaco]) -> bool:
    return any(len(set(backend.groups)) > 1 for backend in backends)


def _switch_on(
    model: torch.nn.Module,
    groups: list[_Group],
    settings: _C.GradientSettings,
    grad_scaler: Any,
) -> None:
    backends = _backends(groups)
    _need(_fsdp_param_group, "foreach_reduce")
    wrap(_fsdp_param_group, "foreach_reduce", _wrap_foreach_reduce)
    sharded = Sharded(model, settings, grad_scaler)
    for group in groups:
        group.take_over(sharded)
    models.add_sharded(model, sharded)
    model.register_forward_pre_hook(_before_forward)
    if dist.get_rank() == 0:
        _announce(type(model).__name__, sharded, backends)


def _announce(name: str, sharded: Sharded, backends: list[_C.ProcessGroupTaco]) -> None:
    if not _leaves_a_host(backends):
        _C.log_info("lightcc", f"{name}: nothing to compress, the ranks of a group share one host")
        return
    text = f"{name}: gradients of shards go between hosts as {sharded.wire or 'float32'}"
    if any(leg.group.size() > 1 for leg in sharded.legs.values()):
        text += f", those of replicas as {sharded.settings}"
    _C.log_info("lightcc", text)


def _other_owner(model: torch.nn.Module, groups: list[_Group]) -> str:
    """The owner of the model's communication, if it is not LightCC; "": none."""
    inside = {id(module) for module in model.modules()}
    for group in groups:
        comm = _need(group.torchs, "_reduce_scatter_comm")
        if isinstance(comm, CodedReduceScatter):
            return "lightcc compresses those of a part of it, or of a model that it is part of"
        if type(comm).__name__ not in _TORCHS_OWN:
            return f"it has a custom reduce_scatter ({type(comm).__name__})"
        hook = _need(group.torchs, "_all_reduce_hook")
        if hook is not None:
            return f"it has an all-reduce hook ({getattr(hook, '__qualname__', hook)})"
        for param in _need(group.torchs, "fsdp_params"):
            home = _need(param, "_module_info").module
            if id(home) not in inside:
                return f"it is sharded together with a {type(home).__name__} outside of it"
    return ""


@_disable_dynamo  # torch.compiler.disable would load the compiler here and now
def _before_forward(model: torch.nn.Module, _inputs: object) -> None:
    sharded = models.find_sharded(model)
    if isinstance(sharded, Sharded) and torch.is_grad_enabled():
        sharded.before_forward()
        if not sharded.is_in_place():
            say_once(
                f"{type(model).__name__} has a custom reduce_scatter now: the gradients that it "
                "reduces are not compressed any more"
            )


def _wrap_foreach_reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def foreach_reduce(fsdp_params: list[Any], *arguments: Any, **options: Any) -> Any:
        for argument in (*arguments, *options.values()):
            if isinstance(argument, CodedReduceScatter):
                with argument.sharded.reducing(fsdp_params):
                    return original(fsdp_params, *arguments, **options)
        return original(fsdp_params, *arguments, **options)

    return foreach_reduce


def _switch_on_by_environment(model: torch.nn.Module) -> None:
    """For a model whose root is about to run for the first time."""
    groups = _groups_of(model)
    if any(isinstance(group.torchs._reduce_scatter_comm, CodedReduceScatter) for group in groups):
        return  # compress() has been called
    if not groups or any(group.torchs.device.type != "cpu" for group in groups):
        return
    try:
        _backends(groups)
    except (TypeError, RuntimeError):
        return  # a group of another backend
    name = type(model).__name__
    owner = _other_owner(model, groups)
    if owner:
        say_once(f"gradients of {name} are not compressed: {owner}")
        return
    settings = Options().settings()
    if settings.compression == "auto":
        say_once(f"gradients of {name} are not compressed: LIGHT_AUTO does not choose for them")
        return
    if settings.compression == "topk" and not _has_replicas(groups):
        say_once(
            f"gradients of {name} are not sent by TopK: it works between replicas, and fully_shard "
            "has given each gradient to one rank. They go as LIGHT_WIRE_DTYPE says"
        )
        if settings.small == "none":
            return
    _switch_on(model, groups, settings, None)


def _wrap_lazy_init(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def _lazy_init(self: Any) -> None:
        before = self._is_root
        original(self)
        if before is None and self._is_root:
            _switch_on_by_environment(self._modules[0])

    return _lazy_init


def install_for_all() -> None:
    """Every model of fully_shard compresses as the LIGHT_* variables say, from its first forward
    pass on."""
    state_type = _need(_fsdp_state, "FSDPState")
    _need(state_type, "_lazy_init")
    wrap(state_type, "_lazy_init", _wrap_lazy_init)
