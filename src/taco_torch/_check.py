"""Checked before the extension is loaded: its memory layout fits one minor version of torch."""

import json
import os

import torch


def built_for() -> str:
    """The torch version the extension was compiled against, e.g. "2.13.0+cpu"."""
    # A file beside the extension, because a mismatched extension may not even load.
    with open(os.path.join(os.path.dirname(__file__), "_build.json")) as file:
        return str(json.load(file)["torch"])


def check_torch(found: str | None = None) -> None:
    """Raises VersionMismatchError when torch is of another minor version than the extension's."""
    from taco_torch.errors import VersionMismatchError

    found = found or torch.__version__
    try:
        built = built_for()
    except FileNotFoundError:
        raise ImportError(
            "taco_torch has no compiled extension: install it with\n"
            "  python -m pip install --no-build-isolation .\n"
            "(the source folder src on PYTHONPATH hides an installed package)"
        ) from None
    if built.split(".")[:2] != found.split(".")[:2]:
        raise VersionMismatchError(
            f"taco_torch was built for torch {built}, but torch {found} is running. "
            "Rebuild it against this torch, in its source folder:\n"
            "  python -m pip install --no-build-isolation --force-reinstall --no-deps ."
        )
