"""Hooks that tell a store where a model uses its parameters, in forward and in backward.

A *part* is what one module needs at once: its own parameters, or all below it where its children
are not called as modules. Forward, a part is in use while its module runs. Backward, it is in use
from the first to run of the autograd graph's nodes that the module made until the last, which the
hooks find by the numbers that autograd gives its nodes. What the user sees is left alone: no output
is wrapped, so in-place operations and hooks work as they do without.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import _get_sequence_nr as next_number  # type: ignore[attr-defined]
from torch.autograd.graph import Node

from taco_torch.errors import TacoError
from taco_torch.zerocache import compiled, placed_parameter
from taco_torch.zerocache.aliases import Aliases
from taco_torch.zerocache.nodes import entries, lowest, nodes_since, tensors_in
from taco_torch.zerocache.turns import Turns

current_task: Callable[[], int] = torch._C._current_graph_task_id
current_node: Callable[[], Node] = torch._C._current_autograd_node
will_run: Callable[[Node], bool] = torch._C._will_engine_execute_node
is_compiling: Callable[[], bool] = torch.compiler.is_compiling
NO_TASK = -1

# These read their children's parameters themselves, not only by calling the children.
WHOLE_PARTS: tuple[type, ...] = (
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    torch.jit.ScriptModule,
)
# Are never called: the module that holds them reads their parameters.
NEVER_CALLED = (nn.ParameterList, nn.ParameterDict)
# Their backward pass reads no parameter: to fetch it would be for nothing.
FORWARD_ONLY = (nn.Embedding.forward,)
# Sets of parameters that use() has named: those that were used last are remembered, for their parts
# to be the same in each run.
MAX_SETS = 1024
NOT_COPIED = (
    "a ZeroCache, and the model in it, cannot be copied or pickled, since parameters are absent: "
    "copy the model before ZeroCache.wrap(), or load its state_dict() into another model"
)


Before = Callable[[nn.Module, tuple[Any, ...]], None]
After = Callable[[nn.Module, tuple[Any, ...], Any], None]


class Store(Protocol):
    """A listener that is told of uses. ``backward`` says which of the two passes; uses nest."""

    def add_part(self, names: Sequence[str]) -> int: ...
    def forget_part(self, part: int) -> None: ...
    def begin(self, part: int, backward: bool) -> None: ...
    def begin_alone(self, part: int) -> None: ...
    def end(self, part: int, backward: bool) -> None: ...
    def end_all(self) -> None: ...
    @property
    def open(self) -> int: ...


class Runs(Protocol):
    """A listener that is told of runs: "train" until the optimizer has stepped, "eval" for one
    forward pass; of the end of a forward pass, or of an exception in it or in a backward pass,
    which other ranks may wait for."""

    def begin_run(self, name: str) -> None: ...
    def end_run(self) -> None: ...
    def end_forward(self) -> None: ...
    def leave_run(self, reason: str) -> None: ...


def own_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Parameters that the module's own code reads; for a whole part, all below it."""
    whole = is_whole(module)
    yield from module.parameters(recurse=whole)
    if not whole:
        for child in module.children():
            if isinstance(child, NEVER_CALLED):
                yield from own_parameters(child)


def called_children(module: nn.Module) -> Iterator[nn.Module]:
    """The modules below it that have parts of their own."""
    if not is_whole(module):
        yield from (child for child in module.children() if not isinstance(child, NEVER_CALLED))


def parameters_of(targets: Iterable[nn.Module | nn.Parameter]) -> list[nn.Parameter]:
    """The parameters among these, and all of the modules', each once."""
    found: dict[nn.Parameter, None] = {}
    for target in targets:
        own = target.parameters() if isinstance(target, nn.Module) else (target,)
        found.update(dict.fromkeys(own))
    return list(found)


def is_whole(module: nn.Module) -> bool:
    return isinstance(module, WHOLE_PARTS) or _is_compiled(module)


class Part:
    """A part that is known to its store for as long as this object lives."""

    def __init__(self, store: Store, names: Sequence[str]) -> None:
        self.number = store.add_part(names)
        weakref.finalize(self, store.forget_part, self.number).atexit = False


class Call:
    """The backward passes through what one call of a part computed.

    The engine runs what is ready in the order of falling numbers, and a node is ready after all
    that were computed from it. So when the lowest number that was given during the call is done,
    all of the call is, however many others use the same inputs.

    Hooks must not keep a graph alive that would be freed without them: a node's hooks hold no node
    from which it can be reached, itself included.
    """

    __slots__ = ("first", "hooks", "part")

    def __init__(self, hooks: Hooks, part: Part, first: int) -> None:
        self.hooks = hooks
        self.part = part
        self.first = first

    def expect(self, tensors: Iterable[Tensor]) -> None:
        starts = entries(tensors, self.first)
        if not starts:
            return
        last = lowest(nodes_since(starts, self.first))
        for node in starts:
            node.register_prehook(partial(self.begin, None if node is last else last))
        last.register_hook(self.end)

    def begin(self, last: Node | None, _: tuple[Tensor | None, ...]) -> None:
        if not self.hooks.begin_backward(self, current_task()):
            return
        if last is not None and not will_run(last):
            # This pass is for the gradients of some tensors alone.
            node = current_node()  # of which torch does not say so where the pass began with it
            rest = nodes_since([node], self.first)
            running = (each for each in rest if each is node or will_run(each))
            handle = lowest(running).register_hook(self.end)
            self.hooks.at_end_of_task(handle.remove)
        if torch.is_grad_enabled():
            self.expect_higher_order()

    def end(self, *_: object) -> None:
        self.hooks.end_backward(self, current_task())

    def expect_higher_order(self) -> None:
        """The results of this backward pass can be differentiated: its nodes save parameters
        as well."""
        first = next_number()

        def computed(gradients: tuple[Tensor | None, ...], _: object) -> None:
            Call(self.hooks, self.part, first).expect(g for g in gradients if g is not None)

        for node in nodes_since([current_node()], self.first):
            self.hooks.at_end_of_task(node.register_hook(computed).remove)


def _left_to_graph(cut: bool) -> bool:
    """Whether Dynamo traces the hook, and the graph that it makes will announce: not where modules
    are cut out of graphs."""
    return is_compiling() and not cut and compiled.graphs_announce()


class Announcer:
    """The hooks of one module."""

    def __init__(self, hooks: Hooks, module: nn.Module, names: Sequence[str]) -> None:
        self.hooks = hooks
        self.names = names
        self.part = Part(hooks.store, names)
        # The class of a ScriptModule has no forward() that can be looked at.
        scripted = isinstance(module, torch.jit.ScriptModule)
        self.read_in_backward = scripted or type(module).forward not in FORWARD_ONLY
        self.cut = hooks.cut  # out of graphs that torch.compile makes, which announce the rest
        # For each call under way, the number of its first node; none where begin() has failed.
        self.calls: list[int | None] = []

    def before(self, *_: object) -> None:
        if _left_to_graph(self.cut):
            return
        self.hooks.turns.take()
        self.calls.append(None)
        self.hooks.begin(self.part.number, False)
        self.calls[-1] = next_number()

    def after(self, _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        if _left_to_graph(self.cut):
            return
        if not self.hooks.turns.is_mine():  # take() has refused it
            return
        first = self.calls.pop() if self.calls else None
        if first is None:
            return
        self.hooks.end(self.part.number, False)
        if self.read_in_backward and output is not None and torch.is_grad_enabled():
            tensors = (output,) if type(output) is Tensor else tensors_in(output)
            Call(self.hooks, self.part, first).expect(tensors)


class Hooks:
    """The hooks of a model; made by ``attach``. One thread at a time runs the model (turns.py)."""

    def __init__(self, store: Store, names: Mapping[nn.Parameter, str], runs: Runs | None) -> None:
        self.store = store
        self.runs = runs
        self._names = names
        self._parts: dict[tuple[str, ...], Part] = {}  # by what use() named, the last of it last
        self._announcers: list[Announcer] = []
        self._undo: list[Callable[[], None]] = []
        # Per backward pass (a "graph task" of torch's), the uses that have begun in it, in order.
        self._open: dict[int, dict[Call, None]] = {}
        self._by_hand: list[Call] = []  # inside use(), which ends its own after any exception
        self.turns = Turns(lambda: bool(self._by_hand))
        self.aliases: Aliases | None = None  # that are looked at before a use ends
        # Whether calls of the model are cut out of graphs that torch.compile makes. Ranks that
        # spread parameters have to know where a pass begins and ends.
        self.cut = bool(getattr(store, "is_spread", False))
        self._root_calls = 0
        self._handled: BaseException | None = None  # when the outermost of these began

    def __reduce_ex__(self, _: Any) -> Any:
        """Refused: it hangs on the modules, so this is where copies of a model end."""
        raise TypeError(NOT_COPIED)

    @property
    def parts(self) -> int:
        """The number of parts that modules announce."""
        return len(self._announcers)

    def detach(self) -> None:
        """Ends all uses and takes the hooks off. Graphs that exist keep theirs, to no effect."""
        self.end_all()
        if self.aliases is not None:
            self.aliases.detach()
        while self._undo:
            self._undo.pop()()
        self._announcers.clear()
        self._parts.clear()
        compiled.forget(list(self._names))
        self._names = {}
        self.store = _Nobody()

    def begin(self, part: int, backward: bool) -> None:
        """Tells the store, which one thread is in at a time."""
        self.turns.check_handler()
        with self.turns.lock:
            self._note_aliases()  # others may give way to it
            self.store.begin(part, backward)

    def begin_alone(self, part: int) -> None:
        """Likewise, of all that an operator is given: others give way where there is no room."""
        self.turns.check_handler()
        with self.turns.lock:
            self._note_aliases()
            self.store.begin_alone(part)

    def end(self, part: int, backward: bool) -> None:
        """Likewise."""
        with self.turns.lock:
            self._note_aliases()
            self.store.end(part, backward)

    def _note_aliases(self) -> None:
        if self.aliases is not None:
            self.aliases.note()

    @contextmanager
    def alone(self, doing: str = "") -> Iterator[None]:
        """Inside, no other thread is in the store, and what exceptions have left open is ended.
        ``doing``: what nobody may meet in the middle of a pass ("stepped"); it is refused then."""
        self.turns.check_handler()
        with self.turns.lock:
            if doing:
                self.turns.check(doing)
            self.end_left_over()
            yield

    def end_left_over(self, *, loading: bool = False) -> None:
        """Ends uses that an exception has left open, if nobody uses the model now. ``loading``: its
        load_state_dict() is called, and has begun none."""
        if self.store.open and not self._by_hand and not self.turns.is_inside(loading):
            self.end_all()

    def end_all(self) -> None:
        """Ends uses that an exception has left open."""
        for announcer in self._announcers:
            announcer.calls.clear()
        self._open.clear()
        self._by_hand.clear()
        self._root_calls = 0
        with self.turns.lock:
            self._note_aliases()
            self.store.end_all()

    @contextmanager
    def use(self, *targets: nn.Module | nn.Parameter) -> Iterator[Callable[[Any], Any]]:
        """Announces a use that no module shows: ``with use(other.weight) as keep: y =
        keep(F.linear(x, other.weight))``. What passes through ``keep``, and comes out as it is, has
        the parameters in its backward pass too.

        Raises KeyError if a parameter is none of the model's.
        """
        names = tuple(self._name_of(parameter) for parameter in parameters_of(targets))
        self.turns.take()
        self.end_left_over()
        part = self._part_of(names)
        self.begin(part.number, False)
        call = Call(self, part, next_number())
        self._by_hand.append(call)

        def keep(output: Any) -> Any:
            if torch.is_grad_enabled():
                call.expect(tensors_in(output))
            return output

        try:
            yield keep
        finally:
            if call in self._by_hand:
                self._by_hand.remove(call)
                self.end(part.number, False)

    def _part_of(self, names: tuple[str, ...]) -> Part:
        part = self._parts.pop(names, None) or Part(self.store, names)
        self._parts[names] = part
        if len(self._parts) > MAX_SETS:
            del self._parts[next(iter(self._parts))]
        return part

    def make_whole(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Whether a graph of torch.compile can have these in use at once. Where it cannot, their
        modules are cut out of graphs from now on."""
        if self._are_in_use(parameters):
            return True
        try:
            with self.use(*parameters):
                return True
        except (ValueError, TacoError):  # never, or not beside what others have in use now
            self.cut = True
            names = {self._names[parameter] for parameter in parameters}
            for announcer in self._announcers:
                announcer.cut = announcer.cut or not names.isdisjoint(announcer.names)
            return False

    @contextmanager
    def run_graph(self, parameters: Sequence[nn.Parameter]) -> Iterator[Callable[[Any], Any]]:
        """Likewise use(), while a graph of torch.compile runs. Where that is not inside of a call
        of a module, it is one of the model."""
        if self._are_in_use(parameters):
            yield lambda output: None
            return
        outermost = current_task() == NO_TASK and not self.turns.is_inside_here()
        if outermost:
            self.turns.take()
            self._begin_pass()
        try:
            with self.use(*parameters) as keep:
                yield keep
        finally:
            if outermost and not torch.is_grad_enabled() and self.runs is not None:
                self.runs.end_run()

    def _are_in_use(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Whether a module whose call has not returned has announced all of these: a compiled one
        does so outside of its graph."""
        names = {self._names[parameter] for parameter in parameters}
        return any(
            names.issubset(announcer.names)
            for announcer in self._announcers
            if any(call is not None for call in announcer.calls)
        )

    def begin_backward(self, call: Call, task: int) -> bool:
        """False if it has begun already."""
        self.turns.take()
        calls = self._open.get(task)
        if calls is None:
            calls = self._open[task] = {}
            self.at_end_of_task(partial(self._end_task, task))
        elif call in calls:
            return False
        self.begin(call.part.number, True)
        calls[call] = None
        return True

    def end_backward(self, call: Call, task: int) -> None:
        calls = self._open.get(task)
        if calls and call in calls:
            del calls[call]
            self.end(call.part.number, True)

    def leave_backward(self) -> bool:
        """Whether a backward pass has ended by an exception since the last forward pass. Who else
        runs is told, and its uses end."""
        if not self._open or current_task() != NO_TASK:
            return False
        if self.runs is not None:
            self.runs.leave_run("its backward pass has ended by an exception")
        if not self._by_hand:
            self.end_all()
        else:  # what the program has in use stays
            for task in list(self._open):
                self._end_task(task)
        return True

    @staticmethod
    def at_end_of_task(function: Callable[[], None]) -> None:
        """Calls it when the backward pass under way ends without an exception."""
        torch.autograd.Variable._execution_engine.queue_callback(function)

    def _end_task(self, task: int) -> None:
        for call in reversed(self._open.pop(task, {})):
            self.end(call.part.number, True)

    def _name_of(self, parameter: nn.Parameter) -> str:
        if parameter not in self._names:
            shape = "x".join(map(str, parameter.shape))
            raise KeyError(f"a parameter of shape {shape} is none of those that the cache holds")
        return self._names[parameter]

    def _announce(self, module: nn.Module, parameters: Iterable[nn.Parameter]) -> None:
        names = [self._names[parameter] for parameter in parameters if parameter in self._names]
        if names:
            announcer = Announcer(self, module, names)
            self._announcers.append(announcer)
            self._hook(module, announcer.before, announcer.after)

    def _hook(self, module: nn.Module, before: Before, after: After) -> None:
        """``before`` is the first of the module's hooks, and ``after`` is called in any case."""
        compiled = module._compiled_call_impl
        if compiled is not None:
            # Hooks that are registered would be compiled with it.
            module._compiled_call_impl = partial(_call_between, compiled, module, before, after)
            self._undo.append(partial(setattr, module, "_compiled_call_impl", compiled))
            return
        # Methods of the class, as ScriptModules refuse their own and have hooks all the same.
        first = nn.Module.register_forward_pre_hook(module, before, prepend=True)
        last = nn.Module.register_forward_hook(module, after, always_call=True)
        self._undo += [first.remove, last.remove]

    def _announce_below(self, module: nn.Module, seen: set[nn.Module]) -> None:
        if module in seen:
            return
        seen.add(module)
        self._announce(module, own_parameters(module))
        for child in called_children(module):
            self._announce_below(child, seen)

    def _before_root(self, model: nn.Module, _: tuple[Any, ...]) -> None:
        if _left_to_graph(self.cut):
            return
        self.turns.take()
        # A checkpointed model is called again within its own backward pass.
        outermost = self._root_calls == 0 or not _called_from_within(model)
        if outermost and current_task() == NO_TASK:
            self._begin_pass()
            self._handled = sys.exc_info()[1]
        self._root_calls += 1

    def _begin_pass(self) -> None:
        self.leave_backward()
        if not self._by_hand:
            self.end_all()
        if self.runs is not None:
            self.runs.begin_run("train" if torch.is_grad_enabled() else "eval")

    def _after_root(self, *_: object) -> None:
        if _left_to_graph(self.cut):
            return
        if not self.turns.is_mine():  # take() has refused it
            return
        self._root_calls = max(self._root_calls - 1, 0)
        outermost = self._root_calls == 0 and current_task() == NO_TASK
        if not outermost or self.runs is None:
            return
        error = sys.exc_info()[1]
        try:
            if error in (None, self._handled):
                self.runs.end_forward()
            else:
                self.runs.leave_run(f"{type(error).__name__}: {error}")
        finally:
            if not torch.is_grad_enabled():
                self.runs.end_run()


class _Nobody:
    """For hooks that outlive what they were attached to."""

    open = 0

    def add_part(self, names: Sequence[str]) -> int:
        raise RuntimeError(f"the hooks have been detached: {', '.join(names)} cannot be used")

    def forget_part(self, part: int) -> None:
        pass

    def begin(self, part: int, backward: bool) -> None:
        pass

    def begin_alone(self, part: int) -> None:
        pass

    def end(self, part: int, backward: bool) -> None:
        pass

    def end_all(self) -> None:
        pass


def _is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile(module) or module.compile() has compiled it."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")  # slow to import for nothing
    made_by_compile = dynamo is not None and isinstance(module, dynamo.OptimizedModule)
    return made_by_compile or module._compiled_call_impl is not None


def _call_between(
    call: Callable[..., Any],
    module: nn.Module,
    before: Before,
    after: After,
    *args: Any,
    **kwargs: Any,
) -> Any:
    output = None
    try:
        before(module, args)
        output = call(*args, **kwargs)
    finally:
        after(module, args, output)
    return output


def _called_from_within(module: nn.Module) -> bool:
    """Whether the call of ``module`` that is under way was made by another call of it. A count of
    calls does not tell: an interrupt from the keyboard skips hooks."""
    code, calls = nn.Module._call_impl.__code__, 0
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is code and frame.f_locals.get("self") is module:
            calls += 1
        frame = frame.f_back  # type: ignore[assignment]
    return calls > 1


def attach(
    model: nn.Module,
    store: Store,
    names: Mapping[nn.Parameter, str] | None = None,
    runs: Runs | None = None,
    aliases: Aliases | None = None,
) -> Hooks:
    """Hooks that announce to ``store`` each use of parameters by modules of ``model``.

    ``names`` are the parameters that the store holds, by default all that ``model`` has (a tied one
    by the first of its names). From then on each is absent outside its uses. Modules that
    torch.compile has made are one part each. ``runs`` is told of training steps and of passes
    without gradients; ``aliases`` are looked at before a use ends.
    """
    if names is None:
        names = {parameter: name for name, parameter in model.named_parameters()}
    hooks = Hooks(store, names, runs)
    hooks.turns.watch(model.modules())
    hooks.aliases = aliases
    with _undone_on_error(hooks):
        hooks._undo += placed_parameter.mark(names)
        compiled.watch(hooks, list(names))
        hooks._announce_below(model, set())
        hooks._hook(model, hooks._before_root, hooks._after_root)
    return hooks


@contextmanager
def _undone_on_error(hooks: Hooks) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(Exception):
            hooks.detach()
        raise
