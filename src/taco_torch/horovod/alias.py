"""``import horovod.torch`` in every program of an environment: opt-in, and undone without a trace.

``python -m taco_torch.horovod --install-alias`` writes one .pth file into site-packages, which
Python reads whenever it starts; ``--remove-alias`` deletes it. The finder that it appends stands
behind all others, so that a horovod which is installed, then or later, wins. No folder called
horovod is made: two distributions that have one destroy each other when either is uninstalled.
"""

from __future__ import annotations

import contextlib
import os
import site
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path

NAME = "taco_torch_horovod_alias.pth"
# Python runs a line that begins with import. It says nothing where taco_torch is gone again.
_LINE = (
    'import sys; exec("try:\\n import _taco_torch_horovod as alias\\nexcept ImportError:\\n pass\\n'
    'else:\\n alias.install(first=False)")\n'
)


def folder() -> Path:
    """The folder of the running environment's packages.

    Raises:
        RuntimeError: Python does not read .pth files there.
    """
    found = Path(sysconfig.get_path("purelib"))
    if found.resolve() not in {Path(each).resolve() for each in site.getsitepackages()}:
        raise RuntimeError(
            f"{found} is where this Python's packages go, but it reads no .pth files there; use a "
            "virtual environment"
        )
    return found


def real_horovod() -> str | None:
    """Where a horovod is installed, which would be found before the alias."""
    spec = PathFinder.find_spec("horovod")
    if spec is None:
        return None
    return spec.origin or ", ".join(spec.submodule_search_locations or [])


def install(where: Path | None = None) -> Path:
    """Writes the file; the same again if it is there already. Its path.

    Raises:
        PermissionError: this user may not write there.
    """
    path = (where or folder()) / NAME
    made = path.with_name(f"{NAME}.{os.getpid()}")
    try:
        made.write_text(_LINE)
        made.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            made.unlink()
        raise _refused(error, path) from None
    return path


def remove(where: Path | None = None) -> Path | None:
    """Deletes the file; its path, or None where there was none.

    Raises:
        PermissionError: this user may not.
    """
    path = (where or folder()) / NAME
    try:
        path.unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refused(error, path) from None
    return path


def _refused(error: OSError, path: Path) -> PermissionError:
    return PermissionError(
        f"{path} cannot be changed ({error.strerror}): use a virtual environment of your own, or "
        "python -m taco_torch.horovod SCRIPT, which needs no file"
    )
