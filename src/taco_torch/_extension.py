"""The compiled side, which every module takes from here: it is loaded only into a torch it fits."""

from taco_torch._check import check_torch

check_torch()

# Not from the package, which would ask this very module for it.
import taco_torch._C as _C  # noqa: E402

__all__ = ["_C"]
