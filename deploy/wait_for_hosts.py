#!/usr/bin/env python3
"""Waits until the hosts of a job can be reached, and then becomes the command that needs them.

    wait_for_hosts.py --hostfile /etc/mpi/hostfile --port 2222 --set-master -- mpirun ...
    wait_for_hosts.py --variable PET_MASTER_ADDR -- torchrun ...

In a cluster the pods of a job start one by one, and the names of those that run reach DNS some
seconds later. A launcher that begins at once fails for it. A host is there once its name resolves
and, with --port, once something accepts a connection at that port. Installed in the image as
taco-wait-for-hosts; needs the standard library alone.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PAUSE_S = 0.5  # between two looks at the hosts that are missing
REPORT_S = 10.0  # between two lines about them
CONNECT_S = 2.0
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9A-Fa-f:.]+")


def hosts_of_file(path: Path) -> list[str]:
    """The hosts of a hostfile of mpirun's, in order: "name slots=2" or "name:2", a line each.

    Raises:
        ValueError: the file cannot be read, names no host, or a line of it begins with none.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise ValueError(f"hostfile {path} cannot be read: {error.strerror}") from None
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        host = re.sub(r":\d+$", "", words[0]) if words[0].count(":") == 1 else words[0]
        if not HOST.fullmatch(host):
            raise ValueError(f"hostfile {path}, line {number}: {words[0]!r} is no name of a host")
        hosts.append(host)
    if not hosts:
        raise ValueError(f"hostfile {path} names no host")
    return list(dict.fromkeys(hosts))


def reach(host: str, port: int | None) -> None:
    """Returns if the host is there.

    Raises:
        OSError: it is not, or not yet; the text says why.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if port is None:
        return
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.settimeout(CONNECT_S)
            try:
                probe.connect(address)
                return
            except OSError as error:
                failure = error
    raise failure


def wait(
    hosts: Sequence[str],
    port: int | None,
    timeout_s: float,
    say: Callable[[str], None],
) -> dict[str, str]:
    """Waits for all hosts, `timeout_s` seconds at most. Returns those that are still missing, with
    the reason of each; none: all are there."""
    start = time.monotonic()
    said = start - REPORT_S
    missing = dict.fromkeys(hosts, "not looked for yet")
    while True:
        for host in list(missing):
            try:
                reach(host, port)
                del missing[host]
            except UnicodeError as error:  # a label that is empty or too long
                missing[host] = f"it is no name of a host ({error})"
            except OSError as error:
                missing[host] = str(error.strerror or error)
        now = time.monotonic()
        if not missing or now - start >= timeout_s:
            return missing
        if now - said >= REPORT_S:
            said = now
            shown = ", ".join(f"{host} ({why})" for host, why in list(missing.items())[:4])
            say(f"{len(hosts) - len(missing)} of {len(hosts)} hosts are there; waiting for {shown}")
        time.sleep(PAUSE_S)


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, and the command behind "--"."""
    parser = argparse.ArgumentParser(
        prog="taco-wait-for-hosts",
        description=(__doc__ or "").splitlines()[0],
        usage="%(prog)s [options] [HOST ...] -- COMMAND ...",
    )
    parser.add_argument("hosts", nargs="*", metavar="HOST")
    parser.add_argument("--hostfile", type=Path, help="hosts, as mpirun's hostfiles name them")
    parser.add_argument("--variable", help="the environment variable that holds a host")
    parser.add_argument("--port", type=int, help="TCP port at which each host has to answer")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds; default: 300")
    parser.add_argument(
        "--set-master", action="store_true", help="MASTER_ADDR of the command is the first host"
    )
    own = list(arguments)
    command = own[own.index("--") + 1 :] if "--" in own else []
    options = parser.parse_args(own[: own.index("--")] if "--" in own else own)
    if not command:
        parser.error("no command: write it behind --")
    if options.port is not None and not 1 <= options.port <= 65535:
        parser.error(f"--port is {options.port}, but must be from 1 to 65535")
    if options.timeout < 0:
        parser.error(f"--timeout is {options.timeout:g}, but must be 0 or more seconds")
    return options, command


def hosts_of(options: argparse.Namespace, environment: Mapping[str, str]) -> list[str]:
    """All hosts that the options name.

    Raises:
        ValueError: they name none, or a variable that is not set.
    """
    hosts = list(options.hosts)
    if options.hostfile is not None:
        hosts += hosts_of_file(options.hostfile)
    if options.variable is not None:
        host = environment.get(options.variable, "")
        if not host:
            raise ValueError(f"--variable {options.variable}: the environment does not set it")
        hosts.append(host)
    if not hosts:
        raise ValueError("no host: name some, or give --hostfile or --variable")
    return hosts


def main(arguments: Sequence[str]) -> int:
    def say(text: str) -> None:
        print(f"taco-wait-for-hosts: {text}", file=sys.stderr, flush=True)

    options, command = parse(arguments)
    try:
        hosts = hosts_of(options, os.environ)
    except ValueError as error:
        say(str(error))
        return 2
    missing = wait(hosts, options.port, options.timeout, say)
    if missing:
        for host, why in missing.items():
            where = f" at port {options.port}" if options.port else ""
            say(f"{host} cannot be reached{where} after {options.timeout:g} s: {why}")
        say("look whether its pod runs and its name is right; --timeout waits longer")
        return 1
    if options.set_master:
        os.environ["MASTER_ADDR"] = hosts[0]
    try:
        os.execvp(command[0], command)
    except OSError as error:
        say(f"{command[0]} cannot be started: {error.strerror}")
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
