"""A real sshd on a host of an emulated network, and what ssh needs to come in.

    with Fabric(hosts=2) as fabric, Sshd(fabric, 1, folder) as sshd:
        run(["--ssh-command", sshd.command, ...])

Its keys and settings are files of the test's folder; nothing of the machine's own sshd is read or
changed but the folder that sshd demands (/run/sshd), which is made where it is missing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from fabric import Fabric, why_unavailable

PORT = 2222
_SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")
_PRIVILEGES = Path("/run/sshd")


def _why() -> str | None:
    if _SSHD is None or not shutil.which("ssh") or not shutil.which("ssh-keygen"):
        return "not installed: openssh-server and openssh-client"
    if os.geteuid() != 0:
        return "sshd needs root here"
    return why_unavailable()


_reason = _why()
needs_sshd = pytest.mark.skipif(_reason is not None, reason=f"no sshd here: {_reason}")


def _make_key(path: Path) -> str:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True
    )
    return path.with_suffix(".pub").read_text().strip()


class Keys:
    """Keys of a test's hosts and of its user, and the configuration of ssh, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.host_key = _make_key(folder / "host")
        (folder / "authorized").write_text(_make_key(folder / "user") + "\n")
        self.known = folder / "known"
        self.known.touch()
        (folder / "config").write_text(
            f"Host *\n  Port {PORT}\n  User root\n  IdentityFile {folder}/user\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {self.known}\n"
            "  GlobalKnownHostsFile none\n  StrictHostKeyChecking yes\n  IdentityAgent none\n"
        )

    @property
    def command(self) -> str:
        """For --ssh-command."""
        return f"ssh -F {self.folder}/config"

    def trust(self, address: str) -> None:
        with self.known.open("a") as file:
            file.write(f"[{address}]:{PORT} {self.host_key}\n")


class Sshd:
    """sshd on one host, until the context ends."""

    def __init__(self, fabric: Fabric, host: int, keys: Keys) -> None:
        self._fabric, self._host, self._keys = fabric, host, keys
        self._made_folder = False
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Sshd:
        if not _PRIVILEGES.exists():
            _PRIVILEGES.mkdir(mode=0o755)
            self._made_folder = True
        assert _SSHD is not None
        address, folder = self._fabric.address(self._host), self._keys.folder
        options = {
            "HostKey": folder / "host",
            "AuthorizedKeysFile": folder / "authorized",
            "StrictModes": "no",
            "ListenAddress": address,
            "Port": PORT,
            "PidFile": "none",
            "PasswordAuthentication": "no",
            "PermitRootLogin": "prohibit-password",
            "UsePAM": "no",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        self._process = self._fabric.popen(
            self._host, [_SSHD, "-D", "-e", "-f", "/dev/null", *words], stderr=subprocess.DEVNULL
        )
        self._wait(address)
        return self

    def _wait(self, address: str) -> None:
        assert self._process is not None
        deadline = time.monotonic() + 20
        while True:
            with self._fabric.socket(self._host, socket.SOCK_STREAM) as probe:
                if probe.connect_ex((address, PORT)) == 0:
                    return
            assert self._process.poll() is None, "sshd has ended"
            assert time.monotonic() < deadline, "sshd does not listen"
            time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
        if self._made_folder:
            with contextlib.suppress(OSError):
                _PRIVILEGES.rmdir()
