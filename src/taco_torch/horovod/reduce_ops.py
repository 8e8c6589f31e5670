"""How operands of different ranks are combined, with Horovod's numbers."""

import enum
import warnings


class ReduceOp(enum.IntEnum):
    """A way to combine what ranks give."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Adasum = ReduceOp.ADASUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT


def chosen(op: int | None, average: bool | None) -> ReduceOp:
    """The reduction that the arguments ``op`` and ``average`` ask for; neither: Average.

    Raises:
        ValueError: both are given, or ``op`` is no reduction.
    """
    if op is not None and average is not None:
        raise ValueError(
            f"both op={op!r} and average={average!r} are given: leave average out, op replaces it"
        )
    if average is not None:
        warnings.warn(
            "the argument average has been replaced by op=hvd.Average or op=hvd.Sum",
            DeprecationWarning,
            stacklevel=3,
        )
        return Average if average else Sum
    return Average if op is None else known(op)


def known(op: int) -> ReduceOp:
    try:
        return ReduceOp(op)
    except ValueError:
        names = ", ".join(each.name.capitalize() for each in ReduceOp)
        raise ValueError(f"op is {op!r}, but must be one of hvd's {names}") from None
