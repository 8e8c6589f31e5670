"""``python -m taco_torch.info``: what this machine and this build offer.

Options: ``--json`` for machines, ``--env-markdown`` for the table in docs/environment.md.
"""

import argparse
import json
import os
import platform
import signal
import sys
from dataclasses import asdict
from typing import Any

import torch

import taco_torch
from taco_torch._extension import _C
from taco_torch.counters import paths_by_peer


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError as error:
        return f"unknown ({error.strerror})"


def _huge_pages() -> dict[str, str]:
    found = {"transparent": _read("/sys/kernel/mm/transparent_hugepage/enabled")}
    for line in _read("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name in ("HugePages_Total", "HugePages_Free", "Hugepagesize"):
            found[name] = value.strip()
    return found


def _planner_costs() -> dict[str, Any]:
    rows = {row["name"]: row["value"] for row in _C.environment()}
    measured = rows["TACO_TUNE"] not in ("0", "false", "off", "no")
    when = "measured when the default group starts" if measured else "the table"
    return {"in force": when, **_C.planner_costs()}


def _planned_paths() -> dict[str, Any]:
    """The addresses that a rank started here would use; ``error`` says why there are none."""
    try:
        return {**_C.planned_paths(os.environ.get("MASTER_ADDR", "")), "error": ""}
    except ValueError as error:
        return {"ports": 0, "ports_wanted": 0, "from": [], "unused": [], "error": str(error)}


def collect() -> dict[str, Any]:
    """All facts as one dict that can be written as JSON."""
    return {
        "versions": {
            "taco_torch": taco_torch.__version__,
            "built_for_torch": _C.built_for_torch,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "libcrypto": _C.crypto_library(),
            "kernel": platform.release(),
        },
        "cpu": {
            "isa": _C.isa_name(),
            "usable_cores": len(os.sched_getaffinity(0)),
        },
        "transports": _C.transports(),
        "interfaces": _C.interfaces(),
        "planned_paths": _planned_paths(),
        "paths": {
            peer: [asdict(path) for path in paths] for peer, paths in paths_by_peer().items()
        },
        "huge_pages": _huge_pages(),
        "planner_costs": _planner_costs(),
        "limits": {
            "net.core.rmem_max": _read("/proc/sys/net/core/rmem_max"),
            "net.core.wmem_max": _read("/proc/sys/net/core/wmem_max"),
            "kernel.yama.ptrace_scope": _read("/proc/sys/kernel/yama/ptrace_scope"),
        },
        "environment": _C.environment(),
        "environment_error": _C.check_environment(),
    }


def _speed(mbits: int) -> str:
    return f"{mbits / 1000:g} Gbit/s" if mbits else "speed unknown"


def _print_planned_paths(planned: dict[str, Any]) -> None:
    if planned["error"]:
        print(f"paths to other hosts\n  none: {planned['error']}")
        return
    ports, wanted = planned["ports"], planned["ports_wanted"]
    print(
        f"paths to other hosts, each to the peer's address on the same network "
        f"({ports} UDP port{'s' if ports > 1 else ''} at each address: TACO_PATHS)"
    )
    if ports < wanted:
        print(f"  TACO_PATHS asks for {wanted}, but a process opens 16 ports at most")
    if not os.environ.get("MASTER_ADDR"):
        print("  MASTER_ADDR is not set: what the host that holds the store would use")
    for number, entry in enumerate(planned["from"]):
        print(
            f"  {number:<3} from {entry['interface']:12} {entry['address']:40} "
            f"{entry['port']}. port, mtu {entry['mtu']}, {_speed(entry['mbits'])}"
        )
    for entry in planned["unused"]:
        print(f"  no  from {entry['interface']:12} {entry['address']:40} {entry['why']}")


def _print_paths(paths: dict[str, list[dict[str, Any]]]) -> None:
    for peer, ways in paths.items():
        print(f"paths to {peer}")
        for path in ways:
            print(f"  {path['text']}")


def _print(facts: dict[str, Any]) -> None:
    for title in ("versions", "cpu", "transports", "huge_pages", "limits", "planner_costs"):
        print(title.replace("_", " "))
        for name, value in facts[title].items():
            print(f"  {name:26} {value}")
    print("interfaces")
    for entry in facts["interfaces"]:
        state = "up" if entry["up"] else "down"
        print(
            f"  {entry['name']:12} {entry['address']:40} {state}, mtu {entry['mtu']}, "
            f"{_speed(entry['mbits'])}{', loopback' if entry['loopback'] else ''}"
        )
    _print_planned_paths(facts["planned_paths"])
    _print_paths(facts["paths"])
    print("variables in force (* set here)")
    for row in facts["environment"]:
        unit = f" {row['unit']}" if row["value"].lstrip("-").isdigit() else ""
        value = f"{row['value'] or '(none)'}{unit}".rstrip()
        print(f"{'*' if row['is_set'] else ' ':>2}{row['name']:28} {value}")
    if facts["environment_error"]:
        print(f"error: {facts['environment_error']}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status: 1 when a variable is malformed or cannot be met."""
    parser = argparse.ArgumentParser(prog="python -m taco_torch.info", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--env-markdown", action="store_true", help="print the table of environment variables"
    )
    options = parser.parse_args(arguments)
    if options.env_markdown:
        print(_C.environment_markdown(), end="")
        return 0
    facts = collect()
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        _print(facts)
    return 1 if facts["environment_error"] or facts["planned_paths"]["error"] else 0


if __name__ == "__main__":
    # `| head` then ends this program without a traceback, as it ends other tools.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
