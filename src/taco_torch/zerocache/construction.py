"""While a model is being built: its parameters are in pages as soon as a module has them.

A parameter moves into the store when a module registers it (or when it was copied, or comes with a
module that another one registers). From then on it is absent, as later in training, and each torch
function that is given it, or a view of it, has it present while it runs. So code that initializes a
model runs as it is, whatever it touches in whatever order, and draws the same random numbers;
there is never more of the model in torch's own memory than the parameter that is being made.
Where ranks build it together, each keeps its part of it from then on, and what is touched is
gathered from all of them.

DeepSpeed's ``zero.Init`` and Accelerate's ``init_empty_weights`` are other answers to the same
question: the one wraps constructors, the other leaves the values out.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as registration
from torch.overrides import TorchFunctionMode

from taco_torch.zerocache.memory import available_bytes
from taco_torch.zerocache.nodes import tensors_in
from taco_torch.zerocache.sizes import format_bytes

# They look at no element, or hand out memory that must not be touched once they have returned: of a
# parameter that is absent, these raise by themselves and name it.
WITHOUT_ELEMENTS: frozenset[Any] = frozenset(
    getattr(Tensor, name)
    for name in (
        *("dim", "ndimension", "size", "numel", "nelement", "element_size", "stride", "__len__"),
        *("is_contiguous", "is_floating_point", "is_complex", "is_shared", "requires_grad_"),
        *("view", "view_as", "detach", "t", "transpose", "unsqueeze", "squeeze", "register_hook"),
        *("data_ptr", "numpy", "__array__", "__dlpack__", "untyped_storage", "share_memory_"),
    )
)

_parameters: Any = nn.Parameter  # whose methods are replaced for a while
_deepcopy = _parameters.__deepcopy__
_set: Any = Tensor.set_


class _Here(threading.local):
    """The construction that goes on on this thread."""

    construction: Construction | None = None


_here = _Here()
_installed: list[Construction] = []
_install = threading.Lock()
_handles: list[Any] = []


class Construction(TorchFunctionMode):
    """One ``with cache.init():``. The thread that opened it calls all this."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        self._store = store

    def take(self, parameter: nn.Parameter | None, what: str) -> None:
        """Moves it into the store, if that can have it; wrap() says later why not."""
        if parameter is not None and isinstance(parameter, Tensor):
            self._store.make(what, parameter)

    def __torch_function__(
        self,
        function: Callable[..., Any],
        _: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        inner = getattr(function, "__wrapped__", function)  # of those that aliases.py replaces
        if name == "__get__" or function in WITHOUT_ELEMENTS or inner in WITHOUT_ELEMENTS:
            return function(*args, **kwargs)
        part_of = self._store.part_of
        held = [
            (tensor, part)
            for tensor in tensors_in((args, kwargs))
            if (part := part_of(tensor)) is not None
        ]
        if not held:
            return function(*args, **kwargs)
        if name != "__set__":
            with self._present(held):
                return function(*args, **kwargs)
        result = function(*args, **kwargs)
        if isinstance(args[0], nn.Parameter):  # its data is another tensor's now
            self.take(args[0], type(args[0]).__name__)
        return result

    def give_memory(self, parameter: nn.Parameter, *arguments: Any, **options: Any) -> Tensor:
        """Tensor.set_(), of which torch tells no mode."""
        part = self._store.part_of(parameter)
        with self._present([(parameter, part)] if part is not None else []):
            result: Tensor = _set(parameter, *arguments, **options)
        self.take(parameter, type(parameter).__name__)
        return result

    @contextmanager
    def _present(self, held: Sequence[tuple[Tensor, int]]) -> Iterator[None]:
        with ExitStack() as ends:
            for part in {part for _, part in held}:
                self._store.begin(part, False)
                ends.callback(self._store.end, part, False)
            ends.enter_context(self._noticed([tensor for tensor, _ in held]))
            yield

    @contextmanager
    def _noticed(self, tensors: list[Tensor]) -> Iterator[None]:
        """Changes in place of what shares a parameter's memory, and not its version."""
        before = [_version_of(tensor) for tensor in tensors]
        try:
            yield
        finally:
            for tensor, version in zip(tensors, before, strict=True):
                if version is None or version != tensor._version:
                    self._store.note_change(tensor)


def _version_of(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _registered(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
    if _here.construction is not None:
        _here.construction.take(parameter, f"{type(module).__name__}.{name}")


def _module_registered(module: nn.Module, name: str, child: nn.Module | None) -> None:
    """The child's parameters are in the store already, unless it was made in another way
    (unpickled, moved from the meta device) or before."""
    construction = _here.construction
    if construction is not None and child is not None:
        for own, parameter in child.named_parameters():
            construction.take(parameter, f"{type(module).__name__}.{name}.{own}")


def _copied(parameter: nn.Parameter, memo: dict[int, Any]) -> Any:
    """Copies of modules do not register what they have."""
    result = _deepcopy(parameter, memo)
    if _here.construction is not None:
        _here.construction.take(result, type(result).__name__)
    return result


def _given_memory(parameter: nn.Parameter, *arguments: Any, **options: Any) -> Tensor:
    if _here.construction is None:
        result: Tensor = _set(parameter, *arguments, **options)
        return result
    return _here.construction.give_memory(parameter, *arguments, **options)


@contextmanager
def _watched(construction: Construction) -> Iterator[None]:
    """torch's hooks are the process's, so one set of them serves all threads."""
    with _install:
        if not _installed:
            _handles[:] = [
                registration.register_module_parameter_registration_hook(_registered),
                registration.register_module_module_registration_hook(_module_registered),
            ]
            _parameters.__deepcopy__ = _copied
            _parameters.set_ = _given_memory
        _installed.append(construction)
    _here.construction = construction
    try:
        yield
    finally:
        _here.construction = None
        with _install:
            _installed.remove(construction)
            if not _installed:
                _parameters.__deepcopy__ = _deepcopy
                del _parameters.set_
                while _handles:
                    _handles.pop().remove()


@contextmanager
def built_in(store: Any) -> Iterator[None]:
    """Inside, parameters of modules are made in ``store``.

    Raises RuntimeError inside of another one on the same thread.
    """
    if _here.construction is not None:
        raise RuntimeError(
            "init() inside init(): the block that is open makes parameters in its own cache; leave "
            "it first"
        )
    construction = Construction(store)
    store.begin_run("init")
    try:
        with _watched(construction), construction:
            yield
        store.end_making()
    except BaseException as error:
        store.leave_run(f"{type(error).__name__}: {error}")  # other ranks may wait for this one
        raise
    finally:
        store.end_all()
        store.end_run()


def is_building() -> bool:
    """Whether this thread is inside of ``with cache.init():``."""
    return _here.construction is not None


def name_what_was_made(store: Any, names: Mapping[nn.Parameter, Sequence[str]]) -> None:
    """Gives what was made in ``store`` the names that it has in a model, and the rest back as
    ordinary memory: modules that were built beside the model.

    Raises MemoryError where there is none for that. Where ranks have built it together, all make
    this call.
    """
    pairs = [(name, parameter) for parameter, own in names.items() for name in own]
    if store.name_made(pairs):
        return
    gc.collect()  # modules that nobody has any more, but as parts of cycles
    if store.name_made(pairs):
        return
    mine = {parameter for parameter in names if store.holds(parameter)}
    others, free = store.parameter_bytes - sum(each.nbytes for each in mine), available_bytes()
    refusal = ""
    if others > free:
        refusal = (
            f"init() has made parameters of {format_bytes(others)} that the model does not have, "
            f"and this machine has {format_bytes(free)} of memory left to give them back: build "
            f"what the cache is not for outside of init()"
        )
    if refusal and not store.is_spread:
        raise MemoryError(refusal)
    store.give_back_unnamed(refusal)
