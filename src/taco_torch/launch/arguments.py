"""The flags of tacorun: horovodrun's, and the few that mpirun's users miss there."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

from taco_torch.launch import tuning
from taco_torch.launch.errors import LaunchError
from taco_torch.launch.tuning import at_least
from taco_torch.launch.version import check_build, version

_DESCRIPTION = """Starts the ranks of a job on this host and, by ssh, on others. Each finds its
rank, the number of ranks and where they meet in variables, Horovod's and torch's. The first rank
that fails ends all; so does ^C."""
_POSITIVE = at_least(1, int)

# Flags of horovodrun's that choose what is not there: said so, not passed over.
_WITHOUT_EFFECT = {
    "use_gloo": "--gloo has no effect: there is one controller, taco's own",
    "tcp_flag": "--tcp has no effect: see TACO_TRANSPORT",
    "disable_cache": "--disable-cache has no effect: nothing is cached between two runs",
}
_IMPOSSIBLE = {
    "use_mpi": "--mpi: start the program by mpirun itself, which needs no tacorun",
    "use_jsrun": "--jsrun is not supported",
    "mpi_args": "--mpi-args: start the program by mpirun itself, which needs no tacorun",
    "binding_args": "--binding-args is not supported; see taskset, or TACO_HARP_CORES",
    "config_file": "--config-file is not supported: give the flags themselves",
}


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-v", "--version", action="version", version=f"tacorun {version()}")
    parser.add_argument(
        "-cb", "--check-build", action="store_true", help="says what this installation can do"
    )
    parser.add_argument(
        "-np",
        "--num-proc",
        dest="ranks",
        type=_POSITIVE,
        help="how many ranks; of an elastic job, how many it begins with",
    )
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument("-H", "--hosts", help="hosts and how many ranks each takes: h1:2,h2:2")
    hosts.add_argument(
        "-hostfile", "--hostfile", help="a file with a host in each line: NAME slots=NUMBER"
    )
    hosts.add_argument(
        "--host-discovery-script",
        help="a program that prints the hosts that there are, NAME:SLOTS a line; run every second. "
        "Makes the job elastic",
    )
    parser.add_argument(
        "-x",
        dest="variables",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a variable for all ranks. Those of tacorun's own environment go along anyhow",
    )
    parser.add_argument(
        "--start-timeout",
        type=at_least(1, float),
        default=None,
        help="seconds for all hosts to answer (HOROVOD_START_TIMEOUT, else 30)",
    )
    parser.add_argument(
        "--network-interface",
        "--network-interfaces",
        dest="interfaces",
        action="append",
        default=[],
        help="use these only, separated by commas: eth0,eth1",
    )
    parser.add_argument(
        "--output-filename", help="a folder: files rank.N/stdout and rank.N/stderr there as well"
    )
    parser.add_argument(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        dest="with_time",
        action="store_true",
        help="each line of output begins with the time",
    )
    parser.add_argument("--verbose", action="store_true", help="tells what is done")


def _add_ssh(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("ssh")
    group.add_argument("-p", "--ssh-port", type=_POSITIVE, help="port of sshd on all hosts")
    group.add_argument("-i", "--ssh-identity-file", help="file of the private key")
    group.add_argument(
        "--ssh-command", default="ssh", help='the program, and arguments of its own: "ssh -F FILE"'
    )
    group.add_argument(
        "--remote-python", default=sys.executable, help="the Python on the other hosts"
    )


def _add_elastic(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("elastic jobs", "any of --min-np and the script makes one")
    group.add_argument(
        "--min-np",
        "--min-num-proc",
        dest="least",
        type=_POSITIVE,
        help="with fewer ranks the job waits for hosts (-np unless said)",
    )
    group.add_argument(
        "--max-np",
        "--max-num-proc",
        dest="most",
        type=_POSITIVE,
        help="never more ranks than this (all slots unless said)",
    )
    group.add_argument(
        "--slots-per-host",
        dest="slots",
        type=_POSITIVE,
        help="ranks on a host for which the script names no number",
    )
    group.add_argument(
        "--elastic-timeout",
        type=at_least(1, float),
        default=None,
        help="seconds that it waits for hosts (HOROVOD_ELASTIC_TIMEOUT, else 600)",
    )
    group.add_argument(
        "--reset-limit", type=at_least(0, int), help="how often the ranks may change"
    )
    group.add_argument(
        "--blacklist-cooldown-range",
        dest="cooldown",
        type=_POSITIVE,
        nargs=2,
        metavar=("LEAST", "MOST"),
        help="seconds after which a slot whose rank failed is used again (never unless said)",
    )


def _add_horovodruns(parser: argparse.ArgumentParser) -> None:
    for name, field in (("--gloo", "use_gloo"), ("--mpi", "use_mpi"), ("--jsrun", "use_jsrun")):
        parser.add_argument(name, dest=field, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--tcp", dest="tcp_flag", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--disable-cache", action="store_true", help=argparse.SUPPRESS)
    for name in ("--mpi-args", "--binding-args", "--config-file"):
        parser.add_argument(name, help=argparse.SUPPRESS)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="tacorun",
        description=_DESCRIPTION,
        allow_abbrev=False,
        usage="tacorun -np N [-H h1:2,h2:2 | --hostfile FILE] [flags] COMMAND [arguments]",
    )
    _add_job(made)
    _add_ssh(made)
    _add_elastic(made)
    tuning.add_to(made)
    _add_horovodruns(made)
    made.add_argument("command", nargs=argparse.REMAINDER, help="the program of each rank")
    return made


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The flags, checked against each other; prints and exits where they ask for no job.

    Raises:
        LaunchError: they contradict each other, or ask for what there is not.
    """
    found = parser().parse_args(words)
    if found.check_build:
        print(check_build())
        raise SystemExit(0)
    for field, text in _IMPOSSIBLE.items():
        if getattr(found, field):
            raise LaunchError(text, 2)
    found.notes = [text for field, text in _WITHOUT_EFFECT.items() if getattr(found, field)]
    if found.command[:1] == ["--"]:
        del found.command[0]
    if not found.command:
        raise LaunchError("which program? tacorun -np 2 python train.py", 2)
    if found.ranks is None:
        raise LaunchError("how many ranks? tacorun -np 2 python train.py", 2)
    found.interfaces = [name for text in found.interfaces for name in text.split(",") if name]
    try:
        found.ssh_command = shlex.split(found.ssh_command)
    except ValueError as error:
        raise LaunchError(f"--ssh-command {found.ssh_command}: {error}", 2) from None
    found.elastic = found.host_discovery_script is not None or found.least is not None
    _check_elastic(found)
    found.start_timeout = _seconds(found.start_timeout, "HOROVOD_START_TIMEOUT", 30.0)
    found.elastic_timeout = _seconds(found.elastic_timeout, "HOROVOD_ELASTIC_TIMEOUT", 600.0)
    return found


def _check_elastic(found: argparse.Namespace) -> None:
    if not found.elastic:
        given = [
            name
            for name, value in (
                ("--max-np", found.most),
                ("--slots-per-host", found.slots),
                ("--reset-limit", found.reset_limit),
                ("--blacklist-cooldown-range", found.cooldown),
            )
            if value is not None
        ]
        if given:
            raise LaunchError(
                f"{given[0]} is for elastic jobs: give --min-np or --host-discovery-script too", 2
            )
        return
    found.least = found.ranks if found.least is None else found.least
    most = found.most
    if found.least > found.ranks:
        raise LaunchError(f"--min-np {found.least} is more than -np {found.ranks}", 2)
    if most is not None and most < found.ranks:
        raise LaunchError(f"--max-np {most} is less than -np {found.ranks}", 2)
    if found.cooldown is not None and found.cooldown[0] > found.cooldown[1]:
        least, most = found.cooldown
        raise LaunchError(f"--blacklist-cooldown-range {least} {most}: the first is the least", 2)


def _seconds(said: float | None, variable: str, usual: float) -> float:
    if said is not None:
        return said
    text = os.environ.get(variable)
    if text is None:
        return usual
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value >= 1:
        raise LaunchError(f"{variable}={text}: it must be a number of seconds from 1 on", 2)
    return value
