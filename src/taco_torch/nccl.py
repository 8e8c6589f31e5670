"""HARP under torch's backend "nccl": NCCL then sends between hosts by its network plugin of this
package, ``libnccl-net-harp.so``. A program adds one line::

    import taco_torch.nccl

    taco_torch.nccl.enable()
    torch.distributed.init_process_group("nccl")

Launchers and shells may set the variables themselves::

    eval "$(python -m taco_torch.nccl --env)"

``python -m taco_torch.nccl --check`` says whether this host has all that it takes.
"""

import argparse
import ctypes
import json
import os
import shlex
import socket
import sys
import warnings
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from taco_torch.errors import RendezvousError, VersionMismatchError

__all__ = ["check", "enable", "variables"]

PLUGIN = Path(__file__).with_name("libnccl-net-harp.so")
TABLES = ("ncclNetPlugin_v10", "ncclNetPlugin_v11", "ncclNetPlugin_v12")
OLDEST, NEWEST = (2, 26), (2, 32)  # of NCCL; the newest is the last that was tried
_OTHERS = timedelta(seconds=60)  # how long the ranks wait for each other
_enabled = False


def variables() -> dict[str, str]:
    """The variables that NCCL reads, and their values."""
    return {
        "NCCL_NET_PLUGIN": str(PLUGIN),
        # Without it NCCL takes its sockets where the plugin fails, and this host alone.
        "NCCL_NET": "HARP",
        # In its other protocols a GPU reads data while it arrives, and in what order it does.
        "NCCL_PROTO": "Simple",
    }


def enable(store: Store | None = None) -> None:
    """Has NCCL use HARP in this process, from its first group on.

    A host that cannot would leave all others waiting for it. So the ranks tell each other that they
    can, by ``store``, or by torchrun's own where it lends it to them; a rank that cannot is then
    named on every rank. RANK and WORLD_SIZE say which ranks there are. With no store each rank
    looks at itself alone.

    Calling it again does nothing.

    Raises:
        FileNotFoundError: the plugin is not installed.
        VersionMismatchError: NCCL is too old, or ranks have different versions of taco_torch.
        ValueError: a variable has another value already; HARP finds no interface, or a variable of
            its own is wrong.
        RuntimeError: NCCL runs in this process already.
        RendezvousError: another rank cannot use the plugin, or did not call this in 60 s.
    """
    global _enabled
    if _enabled:
        return
    store = store or _store_of_torchrun()
    if store is not None:
        _ranks()
    try:
        _refuse_where_nccl_runs()
        _check_variables(os.environ)
        check()
    except (OSError, ValueError, RuntimeError) as error:
        if store is not None:
            _tell(store, str(error))
        raise
    if store is not None:
        _tell(store, "")
        _hear(store)
    os.environ.update(variables())
    _enabled = True


def check() -> str:
    """NCCL's network on this host, in words.

    Raises:
        FileNotFoundError: the plugin is not installed, or a library that it needs.
        VersionMismatchError: NCCL is too old.
        ValueError: HARP finds no interface, or a variable of its own is wrong.
    """
    _check_plugin()
    version = _check_nccl(_nccl_version())
    return f"NCCL {version}, {PLUGIN}, by {_check_interfaces()}"


def _check_plugin() -> None:
    if not PLUGIN.exists():
        raise FileNotFoundError(
            f"NCCL's plugin {PLUGIN} is not there: this taco_torch was installed without it; "
            "install it again, in a checkout by `make build` (`make demo` leaves it out)"
        )
    try:
        plugin = ctypes.CDLL(str(PLUGIN))
    except OSError as error:
        raise FileNotFoundError(f"NCCL's plugin cannot be loaded: {error}") from error
    missing = [table for table in TABLES if not hasattr(plugin, table)]
    if missing:
        raise FileNotFoundError(f"{PLUGIN} has no {', '.join(missing)}: install taco_torch again")


def _nccl_version() -> tuple[int, ...] | None:
    """The version that torch uses; None: it has no NCCL, as builds for CPUs have none."""
    if not dist.is_nccl_available():
        return None
    found: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return found


def _check_nccl(version: tuple[int, ...] | None) -> str:
    if version is None:
        raise VersionMismatchError(
            f"torch {torch.__version__} was built without NCCL: install one for CUDA"
        )
    text, oldest, newest = (".".join(map(str, part)) for part in (version, OLDEST, NEWEST))
    if version[:2] < OLDEST:
        raise VersionMismatchError(
            f"NCCL {text} is too old: the plugin is for {oldest} and later. Install a newer torch"
        )
    if version[:2] > NEWEST:
        warnings.warn(
            f"NCCL {text} is newer than {newest}, the newest that the plugin was tried with; if it "
            'ends with "Failed to initialize any NET plugin", it no longer takes this one',
            stacklevel=3,
        )
    return text


def _check_interfaces() -> str:
    from taco_torch._extension import _C

    if error := _C.check_environment():
        raise ValueError(error)
    planned = _C.planned_paths(os.environ.get("MASTER_ADDR", ""))
    names = dict.fromkeys(entry["interface"] for entry in planned["from"])
    return ", ".join(names) or "shared memory, as no interface leads to another host"


def _check_variables(environment: Mapping[str, str]) -> None:
    for name, wanted in variables().items():
        found = environment.get(name, wanted)
        if found.lower() != wanted.lower() if name != "NCCL_NET_PLUGIN" else found != wanted:
            raise ValueError(
                f'{name}="{found}" is set, but HARP needs {name}={wanted}: unset it, or do not '
                "call taco_torch.nccl.enable()"
            )


def _refuse_where_nccl_runs() -> None:
    if not dist.is_initialized():
        return
    groups = dist.distributed_c10d._world.pg_map.values()
    if any("nccl" in str(backend).lower() for backend, _ in groups):
        raise RuntimeError(
            "NCCL runs in this process already, and reads its variables once: call "
            "taco_torch.nccl.enable() before init_process_group()"
        )


def _store_of_torchrun() -> Store | None:
    """The one that torchrun's agent serves for its ranks: it is there before any group is."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=_OTHERS,
        wait_for_workers=False,
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"attempt {attempt}", store)


def _ranks() -> tuple[int, int]:
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError) as error:
        raise ValueError(
            "RANK and WORLD_SIZE say which ranks share the store of taco_torch.nccl.enable(); "
            f"set them: {error}"
        ) from error


def _key(rank: int) -> str:
    return f"taco_torch.nccl/{rank}"


def _tell(store: Store, why_not: str) -> None:
    from taco_torch._check import __version__

    said = {"host": socket.gethostname(), "version": __version__, "why_not": why_not}
    store.set(_key(_ranks()[0]), json.dumps(said))


def _hear(store: Store) -> None:
    rank, world = _ranks()
    keys = [_key(other) for other in range(world)]
    silent: list[int] = []
    try:
        store.wait(keys, _OTHERS)
    except dist.DistStoreError:
        silent = [other for other in range(world) if not store.check([_key(other)])]
    heard = [other for other in range(world) if other not in silent]
    texts = store.multi_get([_key(other) for other in heard])
    answers = {other: json.loads(text) for other, text in zip(heard, texts, strict=True)}
    problems = [
        f"rank {other} on {answer['host']}: {answer['why_not']}"
        for other, answer in answers.items()
        if answer["why_not"]
    ]
    if silent:
        listed = ", ".join(map(str, silent))
        problems.append(
            f"of rank {listed} nothing was heard within {_OTHERS.total_seconds():g} s: each rank "
            "has to call taco_torch.nccl.enable()"
        )
    if problems:
        raise RendezvousError("NCCL cannot use HARP on every rank; " + "; ".join(problems))
    mine = answers[rank]["version"]
    for other, answer in answers.items():
        if answer["version"] != mine:
            raise VersionMismatchError(
                f"taco_torch is {mine} here, but {answer['version']} on rank {other} "
                f"({answer['host']}): install one version everywhere"
            )


def _print_variables() -> None:
    for name, value in variables().items():
        print(f"export {name}={shlex.quote(value)}")


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status: 1 when this host cannot use the plugin."""
    parser = argparse.ArgumentParser(
        prog="python -m taco_torch.nccl",
        description="HARP as the network of torch's NCCL.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--env", action="store_true", help="print the variables, for a shell")
    which.add_argument("--check", action="store_true", help="say what is missing on this host")
    options = parser.parse_args(arguments)
    if options.env:
        # Also where the plugin is missing: NCCL ends there with an error then. Without the
        # variables it would go by sockets, and all other hosts wait for it.
        _print_variables()
    try:
        if options.env:
            _check_plugin()
        else:
            _check_variables(os.environ)
            print(check())
    except (OSError, ValueError, RuntimeError) as error:
        print(f"NCCL cannot use HARP here: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
