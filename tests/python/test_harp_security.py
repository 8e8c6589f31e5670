"""Levels of security between ranks, the job's key file, and what is said where ranks disagree."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from fabric import Fabric
from hosts import CLONE_NEWNET, host_ranks, join, needs_hosts
from spawn_ranks import Outcome, Ranks, initialise
from torchrun import command

pytestmark = taco_only

LEVELS = ("none", "auth", "encrypt")
COUNT = 300_001


def exchange(rank: int, world: int, port: int, changes: dict[str, str]) -> int:
    """A group whose ranks exchange something small and something large; what failed a check."""
    import taco_torch

    os.environ.update(changes)
    initialise(rank, world, port, timeout_s=30)
    for count in (1, COUNT):
        tensor = torch.arange(count, dtype=torch.float32) + rank
        dist.all_reduce(tensor)
        expected = torch.arange(count, dtype=torch.float32) * world + world * (world - 1) / 2
        assert torch.equal(tensor, expected)
    failures = int(taco_torch.stats().checksum_failures)
    dist.destroy_process_group()
    return failures


def gather(changes: list[dict[str, str]]) -> list[Outcome]:
    with Ranks(len(changes)) as ranks:
        for rank, own in enumerate(changes):
            ranks.begin(rank, exchange, rank, len(changes), ranks.port, own)
        return ranks.gather(range(len(changes)), 60)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("transport", ["udp", "auto"])
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_ranks_work_at_each_level(level: str, keyed: bool, transport: str, key_file: Path) -> None:
    changes = {"TACO_HARP_SECURITY": level, "TACO_TRANSPORT": transport}
    if keyed:
        changes["TACO_HARP_KEY_FILE"] = str(key_file)
    for outcome in gather([changes] * 3):
        assert outcome.ok, outcome
        assert outcome.value == 0


def test_levels_that_differ_are_an_error_on_all_ranks() -> None:
    for outcome in gather([{"TACO_HARP_SECURITY": level} for level in ("auth", "auth", "none")]):
        assert outcome.error_type == "VersionMismatchError", outcome
        assert "rank 0 has TACO_HARP_SECURITY=auth" in outcome.error, outcome
        assert "rank 2 has TACO_HARP_SECURITY=none" in outcome.error, outcome


@pytest.mark.parametrize("level", LEVELS)
def test_ranks_work_where_the_kernel_is_trusted_with_payloads(level: str) -> None:
    changes = {"TACO_HARP_SECURITY": level, "TACO_HARP_CHECKSUM": "kernel", "TACO_TRANSPORT": "udp"}
    for outcome in gather([changes] * 3):
        assert outcome.ok, outcome
        assert outcome.value == 0


def test_checksums_that_differ_are_an_error_on_all_ranks() -> None:
    for outcome in gather(
        [{"TACO_HARP_CHECKSUM": what} for what in ("crc32c", "kernel", "kernel")]
    ):
        assert outcome.error_type == "VersionMismatchError", outcome
        assert "rank 0 has TACO_HARP_CHECKSUM=crc32c" in outcome.error, outcome
        assert "rank 1 has TACO_HARP_CHECKSUM=kernel" in outcome.error, outcome


@pytest.mark.parametrize("other", ["differs", "missing"])
@pytest.mark.parametrize("transport", ["udp", "shm"])
def test_key_files_that_differ_are_an_error_on_all_ranks(
    other: str, transport: str, key_file: Path, tmp_path: Path
) -> None:
    keyed = {"TACO_HARP_KEY_FILE": str(key_file), "TACO_TRANSPORT": transport}
    second = tmp_path / "second"
    second.write_bytes(os.urandom(32))
    second.chmod(0o600)
    changes = {"TACO_TRANSPORT": transport}
    if other == "differs":
        changes["TACO_HARP_KEY_FILE"] = str(second)
    outcomes = gather([keyed, changes])
    for outcome in outcomes:
        assert outcome.error_type == "VersionMismatchError", outcome
        assert "rank 0 has TACO_HARP_KEY_FILE=#" in outcome.error, outcome
        shown = "TACO_HARP_KEY_FILE=" + ("#" if other == "differs" else "none")
        assert f"rank 1 has {shown}" in outcome.error, outcome
        for secret in (key_file.read_bytes().hex(), second.read_bytes().hex()):
            assert secret not in outcome.error


def test_two_files_with_one_content_are_one_key(key_file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(key_file.read_bytes())
    copy.chmod(0o400)
    for outcome in gather([{"TACO_HARP_KEY_FILE": str(path)} for path in (key_file, copy)]):
        assert outcome.ok, outcome


def spoil(path: Path, how: str) -> tuple[Path, str]:
    """A file that is refused, and what the error says beside its name."""
    if how == "mode":
        path.chmod(0o640)
        return path, f"chmod 600 {path}"
    if how == "short":
        path.write_bytes(b"only 15 letters")
        return path, "holds 15 bytes, but a key has 16 to 4096"
    if how == "long":
        path.write_bytes(bytes(5000))
        return path, "holds more than 4096 bytes"
    if how == "folder":
        return path.parent, "is not a regular file"
    if how == "socket":
        path.unlink()
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
        return path, "cannot be opened"
    assert how == "missing"
    path.unlink()
    return path, "No such file"


@pytest.mark.parametrize("how", ["mode", "short", "long", "folder", "socket", "missing"])
def test_a_key_file_that_is_no_good_is_refused(how: str, key_file: Path) -> None:
    path, words = spoil(key_file, how)
    for outcome in gather([{"TACO_HARP_KEY_FILE": str(path)}] * 2):
        assert outcome.error_type == "ValueError", outcome
        assert f'TACO_HARP_KEY_FILE="{path}"' in outcome.error, outcome
        assert words in outcome.error, outcome


def test_an_unknown_level_is_refused() -> None:
    for outcome in gather([{"TACO_HARP_SECURITY": "full"}] * 2):
        assert outcome.error_type == "ValueError", outcome
        assert 'TACO_HARP_SECURITY is "full", but must be none, auth or encrypt' in outcome.error


def test_an_unknown_checksum_is_refused() -> None:
    for outcome in gather([{"TACO_HARP_CHECKSUM": "none"}] * 2):
        assert outcome.error_type == "ValueError", outcome
        assert 'TACO_HARP_CHECKSUM is "none", but must be crc32c or kernel' in outcome.error


@pytest.mark.parametrize("level", LEVELS)
def test_torchrun_passes_the_level_and_the_key_on(
    level: str, key_file: Path, tmp_path: Path
) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import torch, torch.distributed as dist, taco_torch\n"
        "dist.init_process_group('taco')\n"
        "tensor = torch.ones(100_000)\n"
        "dist.all_reduce(tensor)\n"
        "assert tensor[0].item() == dist.get_world_size()\n"
        "dist.destroy_process_group()\n"
        "print('done')\n"
    )
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TACO_HARP_SECURITY": level,
        "TACO_HARP_KEY_FILE": str(key_file),
        "TACO_TRANSPORT": "udp",
    }
    done = subprocess.run(
        command(script, "--standalone", ranks=2),
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.stdout.count("done") == 2, done.stdout + done.stderr


ETH_P_ALL, SO_RCVBUFFORCE = 3, 33  # Linux

MARK = struct.pack("<f", 2.718281828) * 4


class Tap:
    """Records what crosses a host's links while it is open."""

    def __init__(self, namespace: str) -> None:
        # A thread may stand in another namespace than its process; a socket stays where it was
        # made.
        maker = threading.Thread(target=self._make, args=(namespace,))
        maker.start()
        maker.join()
        self._stop = threading.Event()
        self._reader = threading.Thread(target=self._read)

    def _make(self, namespace: str) -> None:
        descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
        enter_network(descriptor)
        os.close(descriptor)
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self._socket.settimeout(0.1)

    def _read(self) -> None:
        while True:
            try:
                self.frames.append(self._socket.recv(65_536))
            except TimeoutError:
                if self._stop.is_set():
                    return

    def __enter__(self) -> Tap:
        self.frames: list[bytes] = []
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._reader.join()
        self._socket.close()

    def saw(self, mark: bytes) -> bool:
        return any(mark in frame for frame in self.frames)


def enter_network(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def broadcast_marks(count: int) -> None:
    tensor = torch.full((count,), 2.718281828)
    if dist.get_rank() != 0:
        tensor.zero_()
    dist.broadcast(tensor, 0)
    assert bool((tensor == tensor[0]).all())
    assert tensor[0].item() > 2
    dist.barrier()


@needs_hosts
@pytest.mark.parametrize("level", LEVELS)
def test_what_crosses_a_network_can_be_read_as_far_as_the_level_says(level: str) -> None:
    with (
        Fabric(hosts=2, links=2, rate="1gbit") as fabric,
        host_ranks(fabric, {"TACO_HARP_SECURITY": level}) as ranks,
    ):
        ranks.run(join)
        for count, readable in ((50, level == "none"), (200_000, level != "encrypt")):
            with Tap(fabric.namespace(1)) as tap:
                ranks.run(broadcast_marks, count)
            assert tap.frames
            assert tap.saw(MARK) == readable, (level, count)
