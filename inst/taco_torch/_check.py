"""Checks torch's version before the extension is loaded, which fits one minor version only."""

import json
import os

import torch

from taco_torch.errors import VersionMismatchError


def _read_build() -> dict[str, str]:
    # From a file beside the extension, because an extension that does not fit may not even load.
    try:
        with open(os.path.join(os.path.dirname(__file__), "_build.json")) as file:
            return dict(json.load(file))
    except FileNotFoundError:
        raise ImportError(
            "taco_torch has no compiled extension: install it with\n"
            "  python -m pip install --no-build-isolation .\n"
            "(the source folder src on PYTHONPATH hides an installed package)"
        ) from None


_build = _read_build()
__version__ = _build["version"]


def built_for() -> str:
    """The torch version the extension was compiled against, e.g. "2.13.0+cpu"."""
    return _build["torch"]


def check_torch(found: str | None = None) -> None:
    """Raises VersionMismatchError if torch has another minor version than the extension needs."""
    found = found or torch.__version__
    if built_for().split(".")[:2] != found.split(".")[:2]:
        raise VersionMismatchError(
            f"taco_torch was built for torch {built_for()}, but torch {found} is running. "
            "Rebuild it against this torch, in its source folder:\n"
            "  python -m pip install --no-build-isolation --force-reinstall --no-deps ."
        )
