"""Handles of operations that are under way."""

from collections.abc import Callable
from typing import Any

from taco_torch.horovod.job import internal_errors


class Handle:
    """An operation under way, for ``poll()`` and ``synchronize()``. May be dropped: the operation
    runs to its end all the same. Any thread."""

    def __init__(self, submissions: list[Any], result: Callable[[list[Any]], Any]) -> None:
        self._submissions = submissions
        self._result = result

    def is_done(self) -> bool:
        return all(submission.done() for submission in self._submissions)

    def wait(self) -> Any:
        """The result, each time it is asked for. Waits for all before it raises for one."""
        failure: Exception | None = None
        for submission in self._submissions:
            try:
                with internal_errors():
                    submission.wait()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return self._result(self._submissions)


def _the_handle(handle: object) -> Handle:
    if not isinstance(handle, Handle):
        raise TypeError(f"{handle!r} is no handle of an asynchronous operation")
    return handle


def poll(handle: Handle) -> bool:
    """Whether ``synchronize(handle)`` would return, or raise, without waiting."""
    return _the_handle(handle).is_done()


def synchronize(handle: Handle | Callable[[], Any]) -> Any:
    """Waits until an operation is done.

    Args:
        handle: of an asynchronous operation, or what ``sparse_allreduce_async()`` returns.

    Returns:
        A tensor; of a grouped operation a list of them; of ``alltoall_async()`` a tensor and the
        received splits. The same tensors each time.

    Raises:
        RuntimeError: ranks submitted different operations under this name; the text shows both. The
            job stays usable.
        HorovodInternalError: a rank is lost or has shut down.
    """
    return handle() if callable(handle) else _the_handle(handle).wait()
