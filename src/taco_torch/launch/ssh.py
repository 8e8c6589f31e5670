"""The way to another host: the command line of ssh, and what its failures mean.

ssh is never asked to trust a key that nobody has looked at, and never asks for a password: nobody
sits at the other end of a job. Functions without a state.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# The supervisor without torch, which the package would import (see _taco_torch_commands.py).
SUPERVISOR = "from _taco_torch_commands import tacorun_host; tacorun_host()"


@dataclass(frozen=True)
class Ssh:
    """How the user wants hosts to be reached."""

    command: Sequence[str] = ("ssh",)
    port: int | None = None
    identity_file: str | None = None
    python: str = sys.executable  # on the other host
    connect_timeout_s: int = 10

    def line(self, host: str, environment: Mapping[str, str]) -> list[str]:
        """The command that starts a supervisor there. What Python needs to find the package stands
        in it; all else, secrets for one, goes by its stdin."""
        options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={self.connect_timeout_s}"]
        options += ["-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3", "-T"]
        if self.port is not None:
            options += ["-p", str(self.port)]
        if self.identity_file is not None:
            options += ["-i", self.identity_file]
        there = [self.python, "-c", SUPERVISOR]
        if "PYTHONPATH" in environment:
            there = ["env", f"PYTHONPATH={environment['PYTHONPATH']}", *there]
        return [*self.command, *options, host, "exec " + shlex.join(there)]

    def explain(self, host: str, status: int | None, lines: Sequence[str]) -> str:
        """Says what went wrong on the way to a host, and what to do, by what ssh or the other
        side has written."""
        text = "\n".join(lines)
        known = [meaning for pattern, meaning in self._meanings(host) if pattern in text]
        if not known and status == 127:
            known = [self._no_python(host)]
        meaning = known[0] if known else f"the connection to {host} ended (status {status})"
        said = "".join(f"\n  {host}: {line}" for line in lines[-5:])
        return meaning + said

    def _no_python(self, host: str) -> str:
        return (
            f"{host} has no {self.python}: install the same Python there, or say by "
            "--remote-python PATH which one has taco_torch"
        )

    def _meanings(self, host: str) -> list[tuple[str, str]]:
        log_in = shlex.join([*self.command, host])
        return [
            (
                "No module named '_taco_torch_commands'",
                f"{host} has no taco_torch in {self.python}: install it there, in the same version "
                "as here, or say by --remote-python PATH which Python has it",
            ),
            (
                "REMOTE HOST IDENTIFICATION HAS CHANGED",
                f"{host} has another key than it had: find out why before anything else",
            ),
            (
                "Host key verification failed",
                f"the key of {host} is not known here. Log in once by hand (`{log_in}`) and "
                "compare its fingerprint, or add the key to ~/.ssh/known_hosts",
            ),
            (
                "Permission denied",
                f"{host} does not let this user in without a password. Put the public key there "
                f"(ssh-copy-id {host}), or name another one by --ssh-identity-file",
            ),
            (
                "Could not resolve hostname",
                f"{host} cannot be found: neither DNS nor ssh's configuration knows the name",
            ),
            ("Connection refused", f"no sshd answers on {host}: start it, or see --ssh-port"),
            ("timed out", f"{host} does not answer: it is down, or a firewall is between"),
            ("No route to host", f"{host} cannot be reached from here: no route"),
            ("Network is unreachable", f"{host} cannot be reached from here: no route"),
            ("No such file or directory", self._no_python(host)),
        ]
