"""Says which of the installed extensions fits the running torch, before one is loaded.

Each fits one minor version of torch only. An installation from source has one, a wheel one for each
minor version that it was built for.
"""

import json
import os
import warnings

import torch

from taco_torch.errors import VersionMismatchError

# The newest minor version that the tests were run over; docs/torch-versions.md has the runs.
TESTED = ("2", "15")


def _read_build() -> tuple[str, list[str]]:
    """The version of taco_torch, and those of torch that there are extensions for."""
    # From a file beside the extensions, because one that does not fit may not even load.
    try:
        with open(os.path.join(os.path.dirname(__file__), "_build.json")) as file:
            build = json.load(file)
    except FileNotFoundError:
        raise ImportError(
            "taco_torch has no compiled extension: install it with\n"
            "  python -m pip install --no-build-isolation .\n"
            "(the source folder src on PYTHONPATH hides an installed package)"
        ) from None
    return str(build["version"]), [str(version) for version in build["torch"]]


__version__, _torches = _read_build()


def built_for() -> list[str]:
    """The torch versions that the extensions were compiled against, e.g. ["2.13.0+cpu"]."""
    return list(_torches)


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def check_torch(found: str | None = None) -> str:
    """The name of the extension for the running torch, e.g. "_C_torch_2_13". Warns where nobody
    has tested it.

    Raises:
        VersionMismatchError: none was compiled against this minor version.
    """
    found = found or torch.__version__
    if _minor(found) in map(_minor, _torches):
        if tuple(map(int, _minor(found))) > tuple(map(int, TESTED)):
            warnings.warn(
                f"torch {found} is newer than {'.'.join(TESTED)}, the newest that taco_torch "
                f"{__version__} was tested with. It was compiled against it, and may work",
                stacklevel=2,
            )
        return "_".join(("_C_torch", *_minor(found)))
    built = " and ".join(filter(None, (", ".join(_torches[:-1]), _torches[-1])))
    fitting = ".".join(_minor(_torches[-1]))
    raise VersionMismatchError(
        f"taco_torch {__version__} was built for torch {built}, but torch {found} is running. "
        "Install a torch that it was built for:\n"
        f'  python -m pip install "torch=={fitting}.*"\n'
        "or build it against this torch, in its source folder:\n"
        "  python -m pip install --no-build-isolation --force-reinstall --no-deps ."
    )
