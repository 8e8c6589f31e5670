"""The files of an installation."""

from __future__ import annotations

from pathlib import Path

from conftest import taco_only

import taco_torch

pytestmark = taco_only

MAX_BYTES = 5_000_000


def test_extensions_are_small_as_debug_information_is_apart() -> None:
    sizes = {
        file.name: file.stat().st_size
        for file in Path(taco_torch.__file__).parent.glob("_C_torch_*.so")
    }
    assert Path(taco_torch._C.__file__).name in sizes
    assert {name: size for name, size in sizes.items() if size > MAX_BYTES} == {}
