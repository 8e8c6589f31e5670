"""The command tacorun: from what the user says to a job, and from its end to an exit status.

The status is that of the first rank that failed, 128 and the number of a signal where one ended it
or the launcher, 127 for a program that is not there, 2 for flags that make no sense, 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from taco_torch.launch import fixed_job, tuning
from taco_torch.launch.arguments import parse
from taco_torch.launch.elastic_job import ElasticJob, ElasticSettings
from taco_torch.launch.errors import LaunchError
from taco_torch.launch.fixed_job import Failure
from taco_torch.launch.hosts import Host, Slot, assign, parse_hostfile, parse_hosts
from taco_torch.launch.orphans import Orphans
from taco_torch.launch.output import Output, say
from taco_torch.launch.session import Session
from taco_torch.launch.ssh import Ssh
from taco_torch.launch.variables import named, passed_on

_READER_GONE = 141  # as a shell says of a program that SIGPIPE has ended


def _hosts(said: argparse.Namespace) -> list[Host]:
    if said.hosts is not None:
        return parse_hosts(said.hosts)
    if said.hostfile is not None:
        return parse_hostfile(said.hostfile)
    return [Host("localhost", said.ranks)]


def _environment(said: argparse.Namespace) -> dict[str, str]:
    found = passed_on(os.environ)
    if said.interfaces:
        names = ",".join(dict.fromkeys(said.interfaces))
        found |= {"TACO_IFNAME": names, "NCCL_SOCKET_IFNAME": names, "GLOO_SOCKET_IFNAME": names}
    return found | tuning.chosen(said) | named(said.variables, os.environ)


def _elastic_settings(said: argparse.Namespace, hosts: list[Host]) -> ElasticSettings:
    return ElasticSettings(
        ranks=said.ranks,
        least=said.least,
        most=said.most,
        start_timeout_s=said.start_timeout,
        timeout_s=said.elastic_timeout,
        reset_limit=said.reset_limit,
        cooldown=tuple(said.cooldown) if said.cooldown else None,
        script=said.host_discovery_script,
        slots=said.slots,
        hosts=hosts,
    )


def _run_elastic(session: Session, settings: ElasticSettings) -> Failure | None:
    job = ElasticJob(session, settings)
    try:
        return job.run()
    finally:
        job.close()


def _run(said: argparse.Namespace) -> Failure | None:
    """Runs the job; nothing of it is left when this returns or raises."""
    hosts = [] if said.host_discovery_script is not None else _hosts(said)
    slots: list[Slot] = [] if said.elastic else assign(hosts, said.ranks)
    for note in said.notes:
        say(note)
    session = Session(
        command=said.command,
        environment=_environment(said),
        ssh=Ssh(
            command=said.ssh_command,
            port=said.ssh_port,
            identity_file=said.ssh_identity_file,
            python=said.remote_python,
            connect_timeout_s=max(1, min(10, int(said.start_timeout))),
        ),
        output=Output(said.output_filename, said.with_time, said.most or said.ranks),
        interfaces=said.interfaces,
        verbose=said.verbose,
    )
    orphans = Orphans()
    try:
        if said.elastic:
            return _run_elastic(session, _elastic_settings(said, hosts))
        return fixed_job.run(session, slots, said.start_timeout)
    finally:
        session.close()
        orphans.kill()  # of a supervisor that was killed


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments, or with the process's own; its exit status."""
    try:
        failure = _run(parse(sys.argv[1:] if words is None else words))
    except LaunchError as error:
        say(str(error))
        return error.status
    except BrokenPipeError:
        return _READER_GONE
    if failure is None:
        return 0
    say(str(failure))
    return failure.status


if __name__ == "__main__":
    sys.exit(main())
