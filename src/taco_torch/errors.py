"""The errors that taco raises. All are ``torch.distributed.DistBackendError``, hence
``RuntimeError``.

For mistakes of the caller taco raises Python's own errors: ValueError (sizes, ranks, splits),
TypeError (a dtype or reduction that does not exist), NotImplementedError (CUDA tensors).
"""

from typing import cast

from torch.distributed import DistBackendError


class TacoError(DistBackendError):
    """Any failure of the taco backend."""


class PeerLostError(TacoError):
    """A rank died or fell silent.

    Attributes:
        rank: its rank in the group that reports the loss; -1 if it is not known.
        address: its address, for example "10.0.0.2:41234 (pid 77 on nodeb)".
        last_heard_s: seconds from the last sign of life to the decision that it is lost; -1 if
            there was no sign of life.
    """

    rank: int = -1
    address: str = ""
    last_heard_s: float = -1.0


def loss_of(rank: int, address: str, last_heard_s: float) -> type[PeerLostError]:
    """A type whose call makes the PeerLostError of one loss. That is an instance of PeerLostError
    itself, which can be pickled, as pools of processes and launchers do with errors."""

    class Loss(PeerLostError):
        def __new__(cls, *arguments: object) -> "Loss":
            error = PeerLostError(*arguments)
            error.rank, error.address, error.last_heard_s = rank, address, last_heard_s
            return cast("Loss", error)

    return Loss


class CollectiveTimeoutError(TacoError):
    """An operation did not finish in its time; the text says which ranks have arrived."""


class MismatchError(TacoError):
    """Ranks called different operations, or with different sizes, dtypes or reductions."""


class AbortedError(TacoError):
    """The group was aborted, shut down or destroyed."""


class RendezvousError(TacoError):
    """The ranks did not find each other: the store is gone, or some ranks never came."""


class VersionMismatchError(TacoError):
    """Two ranks have different versions or settings, or the extension does not fit torch."""
