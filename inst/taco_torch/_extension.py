"""The compiled extension. Every module imports it from here, after the check that torch fits."""

from taco_torch._check import check_torch

check_torch()

# Not "from taco_torch import _C": the package would look for it in this very module.
import taco_torch._C as _C  # noqa: E402

__all__ = ["_C"]
