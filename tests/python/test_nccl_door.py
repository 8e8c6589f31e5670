"""taco_torch.nccl: what it sets, what it refuses, and what ranks tell each other, with no GPU."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from conftest import taco_only
from hosts import needs_hosts
from spawn_ranks import Outcome, Ranks

from taco_torch import nccl
from taco_torch.errors import RendezvousError, VersionMismatchError

pytestmark = taco_only

TABLES = ("ncclNetPlugin_v10", "ncclNetPlugin_v11", "ncclNetPlugin_v12")


def pretend(folder: Path, version: tuple[int, ...] | None = (2, 28, 9)) -> Path:
    """A plugin of which only the file and the names of its tables are real, and an NCCL."""
    plugin = folder / "libnccl-net-harp.so"
    plugin.touch()
    nccl.PLUGIN = plugin
    nccl._nccl_version = lambda: version
    tables = types.SimpleNamespace(**dict.fromkeys(TABLES, 0))
    nccl.ctypes = types.SimpleNamespace(CDLL=lambda _: tables)  # type: ignore[attr-defined]
    return plugin


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("PLUGIN", "_nccl_version", "_enabled"):
        monkeypatch.setattr(nccl, name, getattr(nccl, name))
    monkeypatch.setattr(nccl, "ctypes", ctypes)
    kept = dict(os.environ)
    for name in (*nccl.variables(), "TORCHELASTIC_USE_AGENT_STORE"):
        os.environ.pop(name, None)
    yield
    os.environ.clear()
    os.environ.update(kept)


def set_here() -> dict[str, str]:
    return {name: os.environ[name] for name in nccl.variables() if name in os.environ}


def test_enable_names_the_plugin_and_makes_its_failure_an_error(tmp_path: Path) -> None:
    plugin = pretend(tmp_path)
    nccl.enable()
    assert set_here() == nccl.variables()
    assert os.environ["NCCL_NET_PLUGIN"] == str(plugin)
    assert os.environ["NCCL_NET"] == "HARP"


def test_enable_is_done_once(tmp_path: Path) -> None:
    pretend(tmp_path).unlink()
    with pytest.raises(FileNotFoundError):
        nccl.enable()
    plugin = pretend(tmp_path)
    nccl.enable()
    plugin.unlink()
    nccl.enable()


def test_a_plugin_that_is_missing_is_named_and_nothing_is_set(tmp_path: Path) -> None:
    plugin = pretend(tmp_path)
    plugin.unlink()
    with pytest.raises(FileNotFoundError, match=str(plugin)):
        nccl.enable()
    assert set_here() == {}


def test_a_file_that_is_no_plugin_is_named(tmp_path: Path) -> None:
    plugin = pretend(tmp_path)
    nccl.ctypes = ctypes  # type: ignore[attr-defined]
    plugin.write_text("nothing")
    with pytest.raises(FileNotFoundError, match="cannot be loaded"):
        nccl.enable()


def test_a_plugin_without_a_table_is_named(tmp_path: Path) -> None:
    pretend(tmp_path)
    empty = types.SimpleNamespace(ncclNetPlugin_v11=0)
    nccl.ctypes = types.SimpleNamespace(CDLL=lambda _: empty)  # type: ignore[attr-defined]
    with pytest.raises(FileNotFoundError, match="no ncclNetPlugin_v10, ncclNetPlugin_v12"):
        nccl.enable()


@pytest.mark.parametrize("version", [(2, 25, 1), (1, 9, 9)])
def test_an_nccl_that_is_too_old_is_an_error(tmp_path: Path, version: tuple[int, ...]) -> None:
    pretend(tmp_path, version)
    with pytest.raises(VersionMismatchError, match=r"2\.26"):
        nccl.enable()
    assert set_here() == {}


def test_a_torch_without_nccl_is_an_error(tmp_path: Path) -> None:
    pretend(tmp_path, None)
    with pytest.raises(VersionMismatchError, match="without NCCL"):
        nccl.enable()


def test_an_nccl_that_nobody_has_tried_is_a_warning(tmp_path: Path) -> None:
    pretend(tmp_path, (2, 99, 1))
    with pytest.warns(UserWarning, match=r"NCCL 2\.99\.1 is newer than 2\.32"):
        nccl.enable()
    assert set_here() == nccl.variables()


@pytest.mark.parametrize(
    ("name", "value"),
    [("NCCL_NET", "Socket"), ("NCCL_NET_PLUGIN", "aws-ofi"), ("NCCL_PROTO", "LL128")],
)
def test_a_variable_with_another_value_is_not_overridden(
    tmp_path: Path, name: str, value: str
) -> None:
    pretend(tmp_path)
    os.environ[name] = value
    with pytest.raises(ValueError, match=f'{name}="{value}"'):
        nccl.enable()
    assert set_here() == {name: value}


def test_variables_that_a_launcher_has_set_already_are_fine(tmp_path: Path) -> None:
    pretend(tmp_path)
    os.environ.update(nccl.variables(), NCCL_NET="harp")
    nccl.enable()


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_it_is_too_late_once_there_is_a_group_of_nccls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    pretend(tmp_path)
    groups = types.SimpleNamespace(pg_map={"default": (backend, None)})
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist.distributed_c10d, "_world", groups)
    with pytest.raises(RuntimeError, match="before init_process_group"):
        nccl.enable()
    groups.pg_map = {"default": ("cpu:taco", None)}
    nccl.enable()


def leave_all_networks_and_enable(folder: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0x40000000) == 0, os.strerror(ctypes.get_errno())
    pretend(folder)
    nccl.enable()


@needs_hosts
def test_a_host_with_no_interface_up_is_an_error(tmp_path: Path) -> None:
    with Ranks(1) as ranks:
        (outcome,) = ranks.outcomes(leave_all_networks_and_enable, tmp_path)
    assert outcome.error_type == "ValueError"
    assert "no network interface is usable" in outcome.error


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "taco_torch.nccl", *arguments]
    variables = {**os.environ, **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)


def test_the_command_prints_what_a_shell_evaluates(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    pretend(tmp_path / "a folder")
    assert nccl.main(["--env"]) == 0
    script = f"{capsys.readouterr().out}\nenv"
    shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    for name, value in nccl.variables().items():
        assert f"{name}={value}" in shown.splitlines()


def test_where_the_plugin_is_missing_nccl_is_told_all_the_same_not_to_go_by_sockets(
    capsys: Any, tmp_path: Path
) -> None:
    pretend(tmp_path).unlink()
    assert nccl.main(["--env"]) == 1
    said = capsys.readouterr()
    assert "export NCCL_NET=HARP" in said.out
    assert "libnccl-net-harp.so is not there" in said.err
    assert "`make build`" in said.err


def test_the_check_says_what_nccl_would_use(capsys: Any, tmp_path: Path) -> None:
    plugin = pretend(tmp_path)
    assert nccl.main(["--check"]) == 0
    assert f"NCCL 2.28.9, {plugin}, by " in capsys.readouterr().out


def test_the_check_ends_with_an_error_where_something_is_missing() -> None:
    done = run("--check", NCCL_NET="IB")
    assert done.returncode == 1
    assert 'NCCL cannot use HARP here: NCCL_NET="IB" is set' in done.stderr


def enable_as(rank: int, world: int, port: int, folder: Path, change: str) -> dict[str, str]:
    """Under torchrun's variables; `change` is what is different on this rank."""
    own = folder / str(rank)
    own.mkdir(exist_ok=True)
    plugin = pretend(own)
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    if change == "no plugin":
        plugin.unlink()
    elif change == "silent":
        return {}
    elif change == "impatient":
        nccl._OTHERS = timedelta(seconds=2)
    elif change == "version":
        from taco_torch import _check

        _check.__version__ = "0.0.1"
    nccl.enable()
    return set_here()


def enabled_by(tmp_path: Path, changes: list[str]) -> list[Outcome]:
    world = len(changes)
    with Ranks(world) as ranks:
        for rank, change in enumerate(changes):
            ranks.begin(rank, enable_as, rank, world, ranks.port, tmp_path, change)
        return ranks.gather(range(world))


def test_ranks_that_all_can_enable_it(tmp_path: Path) -> None:
    for outcome in enabled_by(tmp_path, ["", "", ""]):
        assert outcome.ok, outcome.trace
        assert outcome.value["NCCL_NET"] == "HARP"


def test_a_rank_without_the_plugin_is_named_on_every_rank(tmp_path: Path) -> None:
    first, second, third = enabled_by(tmp_path, ["", "no plugin", ""])
    assert second.error_type == "FileNotFoundError"
    for outcome in (first, third):
        assert outcome.error_type == RendezvousError.__name__
        assert "rank 1 on " in outcome.error
        assert "libnccl-net-harp.so is not there" in outcome.error


def test_a_rank_that_does_not_call_enable_is_named(tmp_path: Path) -> None:
    outcomes = enabled_by(tmp_path, ["impatient", "silent", "silent"])
    assert outcomes[0].error_type == RendezvousError.__name__
    assert "of rank 1, 2 nothing was heard within 2 s" in outcomes[0].error


def test_ranks_with_different_versions_name_each_other(tmp_path: Path) -> None:
    for outcome in enabled_by(tmp_path, ["", "version"]):
        assert outcome.error_type == VersionMismatchError.__name__
        assert "0.0.1" in outcome.error


def enable_with_a_store(port: int, folder: Path) -> str:
    os.environ.pop("RANK", None)
    pretend(folder)
    nccl.enable(dist.TCPStore("127.0.0.1", port, wait_for_workers=False))
    return ""


def test_a_store_needs_the_number_of_this_rank(tmp_path: Path) -> None:
    with Ranks(1) as ranks:
        (outcome,) = ranks.outcomes(enable_with_a_store, ranks.port, tmp_path)
    assert outcome.error_type == "ValueError"
    assert "RANK and WORLD_SIZE" in outcome.error
