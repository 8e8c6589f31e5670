"""Parameters for code that torch.compile makes after ``wrap``: a graph has its own in use at once.

Hooks that announce uses cannot be compiled: Dynamo would end a graph at each module. So what it
traces passes them by, and each graph that it makes announces instead what the hooks would have
announced: the parameters that it is given are in use while it runs, and in the backward pass
through what it returns. Where they do not fit on the device at once, the modules of that graph are
cut out again, and announce themselves.

Dynamo has no public place to stand at when a graph is compiled. Where the one that is used here is
missing, modules are cut out as well.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

if TYPE_CHECKING:
    from taco_torch.zerocache.hooks import Hooks

_users: Any = WeakIdKeyDictionary()  # parameters, with (a weak reference to) their Hooks


def watch(hooks: Hooks, parameters: Sequence[nn.Parameter]) -> None:
    """Graphs that are given these have them in use, as ``hooks`` tell it."""
    for parameter in parameters:
        _users[parameter] = weakref.ref(hooks)


def forget(parameters: Sequence[nn.Parameter]) -> None:
    """No longer."""
    for parameter in parameters:
        _users.pop(parameter, None)


def graphs_announce() -> bool:
    """Whether graphs tell what they use. Dynamo calls it while it traces a hook."""
    from torch._dynamo.output_graph import OutputGraph

    compiler: Any = getattr(OutputGraph, "call_user_compiler", None)
    if compiler is not None and not hasattr(compiler, "_taco_announces"):
        _announce_graphs(OutputGraph, compiler)
    return compiler is not None


# As torch.compiler.assume_constant_result() marks it, which would import Dynamo, a second's work.
graphs_announce._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _announce_graphs(output_graph: Any, compiler: Callable[..., Any]) -> None:
    @functools.wraps(compiler)
    def call_user_compiler(self: Any, module: Any, example_inputs: Any) -> Any:
        for hooks, parameters in _given(example_inputs).items():
            if not hooks.make_whole(parameters):
                from torch._dynamo.exc import UnspecializeRestartAnalysis

                raise UnspecializeRestartAnalysis(
                    restart_reason="parameters of the graph do not fit on the device at once"
                )
        compiled = compiler(self, module, example_inputs)
        return functools.partial(_run, compiled) if _given(example_inputs) else compiled

    call_user_compiler._taco_announces = True  # type: ignore[attr-defined]
    output_graph.call_user_compiler = call_user_compiler


def _given(args: Sequence[Any]) -> dict[Hooks, list[nn.Parameter]]:
    """The parameters among the arguments of a graph, by who announces them."""
    found: dict[Hooks, list[nn.Parameter]] = {}
    for each in args:
        reference = _users.get(each) if isinstance(each, nn.Parameter) else None
        hooks = reference() if reference is not None else None
        if hooks is not None:
            found.setdefault(hooks, []).append(each)
    return found


def _run(compiled: Callable[..., Any], *args: Any) -> Any:
    """Runs a graph, whose parameters are in use meanwhile."""
    with ExitStack() as uses:
        keeps = [
            uses.enter_context(hooks.run_graph(parameters))
            for hooks, parameters in _given(args).items()
        ]
        output = compiled(*args)
        for keep in keeps:
            keep(output)
    return output
