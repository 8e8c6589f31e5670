"""The commands of the package: harp-nccl-check, harp-perf, harp-setup and harp-stat, programs of
which the process becomes one, and tacorun, in Python.

Beside the package, and without importing it: none of them needs torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import NoReturn


def _become(name: str) -> NoReturn:
    spec = importlib.util.find_spec("taco_torch")
    folders = (spec.submodule_search_locations if spec else None) or []
    programs = [Path(folder) / "bin" / name for folder in folders]
    for program in programs:
        if os.access(program, os.X_OK):
            os.execv(program, [name, *sys.argv[1:]])
    looked = ", ".join(map(str, programs)) or "no taco_torch is installed here"
    sys.exit(
        f"{name}: its program is not there ({looked}): install taco_torch again, in a checkout by "
        "`make build` (`make demo` leaves it out)"
    )


def harp_nccl_check() -> NoReturn:
    _become("harp-nccl-check")


def harp_perf() -> NoReturn:
    _become("harp-perf")


def harp_setup() -> NoReturn:
    _become("harp-setup")


def harp_stat() -> NoReturn:
    _become("harp-stat")


def _launch(module: str) -> NoReturn:
    """Runs a module of taco_torch.launch. The package itself is found, but not run, as that would
    import torch: seconds, and on hosts where only the ranks need it."""
    spec = importlib.util.find_spec("taco_torch")
    if spec is None or spec.loader is None:
        sys.exit("tacorun: no taco_torch is installed here")
    sys.modules["taco_torch"] = importlib.util.module_from_spec(spec)
    sys.exit(importlib.import_module(f"taco_torch.launch.{module}").main())


def tacorun() -> NoReturn:
    _launch("tacorun")


def tacorun_host() -> NoReturn:
    """The supervisor of one host's ranks, for tacorun alone."""
    _launch("remote")
