"""``elastic.run``: a training function that goes on from its state when ranks are lost or come.

In process: those that live leave the world that is broken, meet in the next one, which the launcher
puts together (taco_torch/launch), and go on from the last commit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, cast

from taco_torch.horovod import unnamed
from taco_torch.horovod.basics import init, shutdown
from taco_torch.horovod.elastic.state import State
from taco_torch.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from taco_torch.launch import member

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_StateType = TypeVar("_StateType", bound=State)


def _meet_again() -> None:
    """Leaves this world and joins the next. All that live call it."""
    shutdown()
    init()


def run_fn(
    func: Callable[Concatenate[_StateType, _Arguments], _Result], reset: Callable[[], None]
) -> Callable[Concatenate[_StateType, _Arguments], _Result]:
    """As run(), with a function that has the ranks meet again."""

    @functools.wraps(func)
    def wrapper(state: _StateType, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        is_current = False
        numbers = unnamed.given()
        while True:
            unnamed.rewind(numbers)  # those that come call it for the first time
            try:
                if not is_current:
                    state.sync()
                return func(state, *args, **kwargs)
            except HorovodInternalError as error:
                if not member.present() and reset is _meet_again:
                    raise HorovodInternalError(
                        f"{error}\nNobody puts the ranks that are left together again: start the "
                        "job by `tacorun --min-np N`. torchrun ends all processes when one has "
                        "died, and starts them again where --max-restarts says so: then save "
                        "checkpoints to files"
                    ) from error
                state.restore()
                is_current = False
            except HostsUpdatedInterrupt as interrupt:
                is_current = interrupt.skip_sync
            # Outside of the handlers: their exception holds what the lost world has made.
            reset()
            # Ranks may have come after it was told that others go.
            is_current = is_current and not (reset is _meet_again and member.has_newcomers())
            state.on_reset()

    return cast("Callable[Concatenate[_StateType, _Arguments], _Result]", wrapper)


def run(
    func: Callable[Concatenate[_StateType, _Arguments], _Result],
) -> Callable[Concatenate[_StateType, _Arguments], _Result]:
    """Decorates a training function, whose first argument is a ``State``.

    The state is synchronised, and the function called. When a rank is lost (HorovodInternalError),
    the state goes back to its last commit; when hosts come or go (HostsUpdatedInterrupt, which
    ``state.commit()`` raises), it stays as it is. Then the ranks meet in a new world, the state's
    reset callbacks are called, and all begins again with the state's synchronisation.

    Raises:
        HorovodInternalError: a rank was lost, and the job was not started by ``tacorun --min-np``.
    """
    return run_fn(func, _meet_again)
