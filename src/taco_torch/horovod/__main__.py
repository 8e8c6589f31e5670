"""``python -m taco_torch.horovod train.py``: runs a program written for Horovod as it is.

In it ``import horovod.torch as hvd`` is taco_torch.horovod, also where a horovod is installed;
with ``--real-first`` the installed one wins. The program's processes of multiprocessing have it
too, however they are started; other programs that it starts are as Python starts them: see
``--install-alias``.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import _taco_torch_horovod
from taco_torch.horovod import alias


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m taco_torch.horovod",
        usage="%(prog)s [--real-first] (SCRIPT | -m MODULE) [arguments]\n"
        "       %(prog)s --install-alias | --remove-alias",
        description="Runs a program in which `import horovod.torch` is taco_torch.horovod.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--real-first", action="store_true", help="a horovod that is installed wins"
    )
    parser.add_argument(
        "--install-alias",
        action="store_true",
        help="has every program of this environment find taco_torch.horovod as horovod.torch, "
        "unless a horovod is installed",
    )
    parser.add_argument("--remove-alias", action="store_true", help="undoes that")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="runs a module")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="a script and its arguments")
    found = parser.parse_args(words)
    asked = [found.install_alias, found.remove_alias, bool(found.module or found.program)]
    if sum(asked) != 1:
        parser.error("give one of SCRIPT, -m MODULE, --install-alias and --remove-alias")
    return found


def _change_alias(install: bool) -> int:
    try:
        path = alias.install() if install else alias.remove()
    except (OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    if not install:
        print(f"{path} is gone" if path else "there was no alias in this environment")
        return 0
    print(f"{path}: `import horovod.torch` is taco_torch.horovod from now on")
    real = alias.real_horovod()
    if real is not None:
        print(f"but a horovod is installed, which is found first: {real}", file=sys.stderr)
    return 0


def _run_script(path: str) -> None:
    """As `python SCRIPT` does: its folder leads sys.path, and it is the module __main__."""
    if Path(path).is_dir():
        runpy.run_path(path, run_name="__main__")
        return
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        sys.exit(f"{path} cannot be read: {error.strerror}")
    main = ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    sys.path[0] = str(Path(path).resolve().parent)
    # This file's own __future__ imports are not the script's.
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def _lead_the_spawned(is_first: bool, is_module: bool) -> None:
    """Processes that multiprocessing starts anew get this one's sys.path, and by it the finder. A
    script's own folder stays the first one, of which programs ask."""
    folder = str(Path(__file__).with_name("spawned"))
    if not is_first:
        sys.path.append(folder)
    else:
        sys.path.insert(0 if is_module else 1, folder)


def main(words: Sequence[str]) -> int:
    said = _parse(words)
    if said.install_alias or said.remove_alias:
        return _change_alias(said.install_alias)
    _taco_torch_horovod.install(first=not said.real_first)
    _lead_the_spawned(not said.real_first, bool(said.module))
    if said.module:
        sys.argv = list(said.module)
        runpy.run_module(said.module[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(said.program)
        _run_script(said.program[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
