"""Compressed gradients for DistributedDataParallel, and ``compress()`` for all models."""

import functools
import sys
from collections.abc import Callable, Collection
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo
from torch.nn.parallel import DistributedDataParallel

from taco_torch._extension import _C
from taco_torch.groups import taco_backend
from taco_torch.lightcc import ledger, models
from taco_torch.lightcc.once import say_once, wrap
from taco_torch.lightcc.settings import Options, scale_of


class Hook:
    """Returned by ``hook()``, for ``DistributedDataParallel.register_comm_hook(None, ...)``. It
    stands for a hook in C++: torch never calls this object."""

    def __init__(self, settings: _C.GradientSettings, grad_scaler: Any) -> None:
        self.settings = settings
        self.grad_scaler = grad_scaler
        # torch shows a hook by its name. On the class, pickle would look for it by that.
        self.__name__ = self.__qualname__ = "lightcc"

    def __deepcopy__(self, memo: dict[int, Any]) -> "Hook":
        """With the same scaler, unless that is copied as well: another would tell of no loss."""
        return Hook(self.settings, memo.get(id(self.grad_scaler), self.grad_scaler))

    def __call__(self, state: object, bucket: Any) -> Any:
        raise RuntimeError(
            "lightcc.hook() works only with DistributedDataParallel.register_comm_hook(None, hook)"
        )


def hook(
    compression: str | None = None,
    *,
    ratio: float | None = None,
    threshold: int | None = None,
    values: str | None = None,
    warm_up_steps: int = 0,
    momentum: float = 0.0,
    allow: Collection[str] | None = None,
    grad_scaler: Any = None,
) -> Hook:
    """``compress()`` as a communication hook: ``ddp.register_comm_hook(None, hook("topk"))``.
    Arguments and errors are those of ``compress()``."""
    options = Options(compression, ratio, threshold, values, warm_up_steps, momentum, allow)
    scale_of(grad_scaler)  # says so if it is none
    return Hook(options.settings(must_ask=True), grad_scaler)


def compress(
    model: torch.nn.Module,
    compression: str | None = None,
    *,
    ratio: float | None = None,
    threshold: int | None = None,
    values: str | None = None,
    warm_up_steps: int = 0,
    momentum: float = 0.0,
    allow: Collection[str] | None = None,
    grad_scaler: Any = None,
) -> None:
    """Compresses the gradients of a model on their way between hosts.

    All ranks call it alike. A second call changes the settings: what has not been sent so far goes
    out with the gradients of the next step. Only float32 gradients on the CPU are compressed, and
    only between hosts: where all ranks share one, nothing is.

    Args:
        model: DistributedDataParallel, or with modules of fully_shard (FSDP2), over taco groups. Of
            the latter all under ``model`` are meant: gradients of shards travel in 16 bits, if that
            is asked for, and ``topk`` works between replicas, on meshes of two dimensions (HSDP).
        compression: ``"topk"`` sends the largest elements and keeps the rest for later steps (error
            feedback; Shi et al., MLSys 2021). ``"float16"`` (with a scale for each 16,384 elements)
            and ``"bfloat16"`` send all elements, rounded once. ``"none"`` is exact. ``"auto"``
            chooses for each bucket among exact gradients and ``allow``, by what it should cost and
            what steps have taken: what the computation hides stays exact. None: what LIGHT_AUTO,
            LIGHT_TOPK_ALLREDUCE and LIGHT_WIRE_DTYPE say.
        ratio: of ``topk``: the part of the elements that is sent, in (0, 1]; None:
            LIGHT_TOPK_RATIO.
        threshold: of ``topk``: bytes; smaller buckets are sent whole; None: LIGHT_TOPK_THRESHOLD,
            or 0 with ``momentum``, which buckets that are sent whole would lack.
        values: of ``topk``: ``"float32"`` or ``"float16"``, how elements travel; what is rounded
            off is kept for later. None: LIGHT_TOPK_FP16.
        warm_up_steps: of ``topk``: over so many steps the ratio comes down to its value: 25%, 6.3%,
            1.6%, 0.4% (Lin et al., ICLR 2018).
        momentum: of ``topk``: in [0, 1), the factor of the momentum correction of that paper. It
            takes the place of the optimizer's momentum, which then must be 0. Not for
            ``auto``, which may choose something else.
        allow: of ``auto``: what may be used besides exact gradients: any of ``"topk"`` and either
            ``"float16"`` or ``"bfloat16"``; ratio, threshold, values and warm_up_steps hold for
            ``topk``. None: ``("float16", "topk")``; where LIGHT_AUTO chooses, what
            LIGHT_TOPK_ALLREDUCE and LIGHT_WIRE_DTYPE ask for.
        grad_scaler: the ``torch.amp.GradScaler`` that scales the loss, if one does, or whatever has
            a ``get_scale()`` that tells the factor: what is kept is rescaled when that changes.
            None: the GradScaler that unscales or steps an optimizer of the model.

    Raises:
        TypeError: the model is neither, its group has another backend, or a value is of another
            type.
        ValueError: a value is out of range, or ``topk`` finds no replicas.
        RuntimeError: the model has a communication hook or custom reduce_scatter of its own; or
            this torch lacks something that compressing modules of fully_shard takes.
    """
    options = Options(compression, ratio, threshold, values, warm_up_steps, momentum, allow)
    settings = options.settings(must_ask=True)
    scale_of(grad_scaler)  # says so if it is none
    model = models.uncompiled(model)
    if not isinstance(model, DistributedDataParallel) and not _is_sharded(model):
        raise TypeError(
            "lightcc.compress() takes a DistributedDataParallel model or modules of fully_shard, "
            f"got {type(model).__name__}"
        )
    if isinstance(model, DistributedDataParallel):
        _compress(model, settings, grad_scaler)
    else:
        from taco_torch.lightcc import fsdp  # what it imports takes long

        fsdp.compress(model, settings, grad_scaler)


def _is_sharded(model: torch.nn.Module) -> bool:
    """Not without fully_shard having been imported."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not isinstance(model, torch.nn.Module):
        return False
    return any(isinstance(module, fsdp.FSDPModule) for module in model.modules())


def _compress(
    model: DistributedDataParallel, settings: _C.GradientSettings, grad_scaler: Any
) -> None:
    scale = scale_of(grad_scaler)
    known = models.find(model)
    if known is not None:
        known.grad_scaler = known.grad_scaler if grad_scaler is None else grad_scaler
        known.native.change(settings, scale_of(known.grad_scaler))
        return
    owner = _other_owner(model)
    if owner:
        raise RuntimeError(f"lightcc cannot compress the gradients of this model: {owner}")
    order = _reduced_by(model)
    reduced = {id(parameter) for parameter in order}
    parameters = {
        models.plain_name(name): parameter
        for name, parameter in model.module.named_parameters()
        if id(parameter) in reduced
    }
    ledger.listen()
    backend = taco_backend(model.process_group)
    native = _C.GradientHook(backend, list(parameters.items()), settings, scale)
    native.attach(model.reducer, order, model.find_unused_parameters or model.static_graph)
    compressed = models.Compressed(native, parameters, grad_scaler)
    for number, parameter in enumerate(parameters.values()):
        ledger.add(parameter, native, number, compressed)
    models.add(model, compressed)
    if model.logger is not None:
        model.logger._set_comm_hook_name("lightcc")
    _announce(model, native, settings)


def _reduced_by(model: DistributedDataParallel) -> list[torch.Tensor]:
    """The parameters that DDP reduces: those that were not frozen when it was made."""
    known = [held() for held in _reduced.get(model, ())]
    if known and all(parameter is not None for parameter in known):
        return [parameter for parameter in known if parameter is not None]
    return [
        parameter
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad and name not in model.parameters_to_ignore
    ]


def _announce(
    model: DistributedDataParallel, native: _C.GradientHook, settings: _C.GradientSettings
) -> None:
    if dist.get_rank(model.process_group) != 0:
        return
    name = type(model.module).__name__
    if len(set(native.groups)) == 1:
        _C.log_info("lightcc", f"{name}: nothing to compress, all ranks share one host")
    elif not any(p.dtype == torch.float32 for p in model.module.parameters()):
        _C.log_info("lightcc", f"{name}: nothing to compress, no gradient is of float32")
    else:
        _C.log_info("lightcc", f"{name}: gradients go between hosts as {settings}")


def _wrap_join_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def join_hook(self: DistributedDataParallel, **kwargs: Any) -> Any:
        if _waiting_in(self):  # a rank without inputs never comes to a forward pass
            _switch_on_now(self)
        # Communication hooks divide by the world size; torch tells them of nothing else.
        if not kwargs.get("divide_by_initial_world_size", True) and models.find(self) is not None:
            raise NotImplementedError(
                "join(divide_by_initial_world_size=False) with compressed gradients: they are "
                "always divided by the initial world size"
            )
        made = original(self, **kwargs)
        made.post_hook = functools.partial(_after_join, self, made.post_hook)
        return made

    return join_hook


def _after_join(
    model: DistributedDataParallel, original: Callable[[bool], None], is_last_joiner: bool
) -> None:
    """Tells the ranks that had no inputs any more what the others have done without them."""
    compressed = models.find(model)
    known = [] if compressed is None else compressed.native.to_catch_up(is_last_joiner)
    if compressed is not None and known:
        agreed = torch.tensor(known, dtype=torch.float64, device="cpu")
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX, group=model.process_group)
        compressed.native.catch_up(agreed.tolist())
    original(is_last_joiner)


def _wrap_check_global_requires_backward_grad_sync(
    original: Callable[..., Any],
) -> Callable[..., Any]:
    """Wraps what ranks with inputs call in each forward pass within ``join()``, and those without
    in the place of it."""

    @functools.wraps(original)
    def method(self: DistributedDataParallel, is_joined_rank: bool) -> Any:
        known = models.find(self)
        if known is not None:
            flag = torch.tensor([float(is_joined_rank)], dtype=torch.float32, device="cpu")
            work = dist.all_reduce(
                flag, op=dist.ReduceOp.MAX, group=self.process_group, async_op=True
            )
            known.native.announce(flag, work)
        return original(self, is_joined_rank)

    return method


def _other_owner(model: DistributedDataParallel) -> str:
    """The owner of the model's communication, if it is not LightCC; "": none."""
    if model._comm_hooks:
        used, _ = model._comm_hooks[0]
        return f"it has a communication hook ({getattr(used, '__qualname__', used)})"
    if any(hasattr(p, "_in_backward_optimizers") for p in model.parameters()):
        return "its optimizer runs in backward, by a communication hook"
    if model._use_python_reducer:
        return "its gradients are reduced by torch's Python reducer"
    if model._delay_all_reduce_all_params:
        return "the reduction of all its gradients is delayed"
    return ""


def _wrap_register_comm_hook(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def register_comm_hook(self: DistributedDataParallel, state: object, hook: Any) -> None:
        if isinstance(hook, Hook):
            if state is not None:
                raise ValueError("lightcc.hook() takes no state: pass None")
            _compress(self, hook.settings, hook.grad_scaler)
            return
        if models.find(self) is not None:
            raise RuntimeError(
                "the gradients of this model are compressed by lightcc already; a communication "
                "hook must be registered before the model's first forward pass"
            )
        original(self, state, hook)

    return register_comm_hook


def _wrap_update_process_group(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def _update_process_group(self: DistributedDataParallel, group: Any) -> None:
        original(self, group)
        known = models.find(self)
        if known is not None and self.process_group is group:
            known.native.move(taco_backend(group))

    return _update_process_group


def _switch_on(model: DistributedDataParallel) -> None:
    """Compresses as the environment says, for a model that is about to train."""
    if models.find(model) is not None or model.device.type != "cpu":
        return
    try:
        taco_backend(model.process_group)
    except (TypeError, RuntimeError):
        return  # a group of another backend
    owner = _other_owner(model)
    if not owner:
        try:
            _compress(model, Options().settings(), None)
            return
        except RuntimeError as error:  # torch does not show a built-in hook
            if "can only be called once" not in str(error):
                raise
            owner = "it has a communication hook of torch's own"
    say_once(f"gradients of {type(model.module).__name__} are not compressed: {owner}")


@_disable_dynamo  # torch.compiler.disable would load the compiler here and now
def _before_forward(model: DistributedDataParallel, _inputs: object) -> None:
    """Switches on as late as that: only now it is known whether the program has registered a hook
    of its own. At module level, so that models can still be pickled."""
    if torch.is_grad_enabled() and model.require_backward_grad_sync:
        _switch_on_now(model)


def _switch_on_now(model: DistributedDataParallel) -> None:
    for key in _waiting_in(model):
        del model._forward_pre_hooks[key]
    _switch_on(model)


def _waiting_in(model: DistributedDataParallel) -> list[int]:
    return [key for key, hook in model._forward_pre_hooks.items() if hook is _before_forward]


# The parameters that the reducer of each model reduces, in its order.
_reduced: "WeakKeyDictionary[DistributedDataParallel, list[ref[torch.Tensor]]]" = (
    WeakKeyDictionary()
)
_switches_on = False


def _wrap_ddp_init_helper(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps the part of a model's making that a new one and one from a copy share."""

    @functools.wraps(original)
    def _ddp_init_helper(
        self: DistributedDataParallel, parameters: Any, *arguments: Any, **options: Any
    ) -> None:
        original(self, parameters, *arguments, **options)
        _reduced[self] = [ref(parameter) for parameter in parameters]
        if _switches_on and not _waiting_in(self):
            self.register_forward_pre_hook(_before_forward)

    return _ddp_init_helper


def install() -> None:
    """Makes DistributedDataParallel know ``hook()`` and what compressed gradients cannot do. Called
    when the first taco group is made: ``model.register_comm_hook(None, lightcc.hook())`` takes the
    method before it imports lightcc."""
    ledger.install()
    wrap(DistributedDataParallel, "_ddp_init_helper", _wrap_ddp_init_helper)
    wrap(DistributedDataParallel, "register_comm_hook", _wrap_register_comm_hook)
    wrap(DistributedDataParallel, "join_hook", _wrap_join_hook)
    wrap(
        DistributedDataParallel,
        "_check_global_requires_backward_grad_sync",
        _wrap_check_global_requires_backward_grad_sync,
    )
    wrap(DistributedDataParallel, "_update_process_group", _wrap_update_process_group)


def say_that_nothing_is_allowed() -> None:
    """Tells users who let LIGHT_AUTO choose between exact algorithms only, which is done anyway."""
    say_once(
        "LIGHT_AUTO=1: all gradients stay exact. Allow more by LIGHT_WIRE_DTYPE=float16 or "
        "LIGHT_TOPK_ALLREDUCE=1"
    )


def install_for_all() -> None:
    """Every DistributedDataParallel made from now on compresses as the LIGHT_* variables say.
    Called when the first taco group is made; models exist only after that."""
    global _switches_on
    _switches_on = True


install()
