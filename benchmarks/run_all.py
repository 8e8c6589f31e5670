"""The benchmarks beside gloo and bare sockets, one after the other; figures and plots go to out/.

    python benchmarks/run_all.py [--only one_host,idle] [--backends gloo,taco]

What needs emulated hosts is left out, with the reason, where they cannot be made; so is what needs
programs that are not built (tools/bench.sh builds them, when it is given no arguments).
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from pathlib import Path

from fabric import why_unavailable

HERE = Path(__file__).parent
OUT = HERE.parent / "out"
BARE = HERE.parent / "build/release/benchmarks/cpp"
PERF = HERE.parent / "build/release/csrc/harp/harp-perf"
# Benchmarks of HARP alone, by programs of its own.
PROGRAMS = (
    "bulk.py",
    "small.py",
    "sharing.py",
    "security.py",
    "drivers.py",
    "engines.py",
    "nccl_net.py",
)
BESIDE_BARE = ("bulk.py", "small.py", "cpu_a_byte.py", "nccl_net.py")
# They have nothing to do with --backends.
HARP_ONLY = (
    *PROGRAMS,
    "two_links.py",
    "links.py",
    "striped.py",
    "interface_events.py",
    "zerocache_step.py",
    "horovod_table.py",
)
# Name, whether it needs emulated hosts, script, arguments.
RUNS = [
    ("one_host", False, "collectives.py", "--sizes 8,1K,32K,1M,32M"),
    (
        "one_host_unbound",
        False,
        "collectives.py",
        "--sizes 32M --collective all_reduce --rounds 9 --unbound",
    ),
    ("one_host_udp", False, "collectives.py", "--sizes 8,1K,1M,32M --transport udp"),
    (
        "four_hosts",
        True,
        "collectives.py",
        "--hosts 4 --sizes 8,1K,1M,40M --collective all_reduce,all_gather,all_to_all,barrier",
    ),
    (
        "four_hosts_1gbit",
        True,
        "collectives.py",
        "--hosts 4 --rate 1gbit --sizes 1M,40M --rounds 2",
    ),
    (
        "four_hosts_1gbit_loss",
        True,
        "collectives.py",
        "--hosts 4 --rate 1gbit --loss 0.01 --sizes 40M --collective all_reduce",
    ),
    (
        "two_by_two_1gbit",
        True,
        "collectives.py",
        "--hosts 2 --rate 1gbit --sizes 40M --collective all_reduce,all_gather,all_to_all",
    ),
    ("cpu_a_byte", True, "cpu_a_byte.py", "--turns 3"),
    ("planner", False, "planner.py", ""),
    ("planner_udp", False, "planner.py", "--transport udp"),
    ("idle", False, "idle.py", ""),
    ("idle_four_hosts", True, "idle.py", "--hosts 4"),
    ("init_time", False, "init_time.py", ""),
    ("ddp_step_1gbit", True, "ddp_step.py", "--hosts 4 --rate 1gbit --steps 2"),
    ("fsdp_step_1gbit", True, "fsdp_step.py", "--hosts 4 --rate 1gbit --models resnet50"),
    (
        "scaling_all_reduce",
        True,
        "scaling.py",
        "--measure all_reduce --scale 1 --rate 1gbit --rounds 5",
    ),
    ("scaling_ratios", True, "scaling.py", "--measure ratios --scale 1 --rate 1gbit"),
    ("scaling_vgg16", True, "scaling.py", ""),
    ("scaling_models", True, "scaling.py", "--models resnet50,transformer_xl,bert"),
    ("horovod", True, "horovod_table.py", ""),
    ("two_links", True, "two_links.py", "--turns 4"),
    ("links", True, "links.py", "--times 6"),
    ("loss", True, "loss.py", "--turns 3"),
    ("sharing", True, "sharing.py", "--repeat 1 --seconds 3"),
    ("bulk", False, "bulk.py", "--turns 3"),
    ("small", False, "small.py", "--turns 5"),
    ("first_message", True, "small.py", "--turns 5 --round-trip 10"),
    ("drivers", True, "drivers.py", "--turns 3"),
    ("engines", False, "engines.py", "--turns 5"),
    ("striped", False, "striped.py", "--turns 5"),
    ("striped_shm", False, "striped.py", "--turns 5 --transport shm"),
    ("interface_events", True, "interface_events.py", ""),
    ("nccl_net", True, "nccl_net.py", ""),
    ("nccl_net_one_host", False, "nccl_net.py", "--hosts 1"),
    ("security", False, "security.py", "--repeat 3"),
    ("security_forged", False, "security.py", "--repeat 3 --forged 100000"),
    ("security_icmp", True, "security.py", "--repeat 3 --icmp 100000"),
    ("security_connects", True, "security.py", "--repeat 3 --connects 100000"),
    (
        "zerocache_step",
        False,
        "zerocache_step.py",
        "--directory out/zerocache --steps 3 --only quarter_2048,half_on_disk,half_in_backward",
    ),
]


def commit() -> str:
    """The checkout's, which the installed package is taken to be built from."""
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    said = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    return said.stdout.strip() or "unknown"


def note_build(name: str) -> None:
    """out/builds.json says of each run by which build it was taken, and when."""
    file = OUT / "builds.json"
    builds = json.loads(file.read_text()) if file.exists() else {}
    builds[name] = {"commit": commit(), "day": datetime.date.today().isoformat()}
    file.write_text(json.dumps(builds, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [name for name, *_ in RUNS]
    parser.add_argument("--only", help=f"of {','.join(names)}")
    parser.add_argument("--backends", default="gloo,taco")
    parser.add_argument("--note", help="run nothing: these, by other names, have just been run")
    arguments = parser.parse_args()
    if arguments.note:
        for name in arguments.note.split(","):
            note_build(name)
        return 0
    chosen = arguments.only.split(",") if arguments.only else names
    unknown = set(chosen) - set(names)
    if unknown:
        parser.error(f"--only {','.join(sorted(unknown))}: choose from {','.join(names)}")
    OUT.mkdir(exist_ok=True)
    reason, failed = why_unavailable(), []
    for name, needs_hosts, script, options in RUNS:
        if name not in chosen:
            continue
        if needs_hosts and reason:
            print(f"== {name}: left out: {reason}")
            continue
        if script in PROGRAMS and not (PERF.exists() and BARE.exists()):
            print(f"== {name}: left out: harp-perf and the bare programs are not built")
            continue
        command = [sys.executable, str(HERE / script), *options.split()]
        command += ["--json", str(OUT / f"{name}.json")]
        if script in BESIDE_BARE:
            command += ["--bare", str(BARE)]
        if script not in HARP_ONLY:
            command += ["--backends", arguments.backends]
        if script in ("collectives.py", "scaling.py"):
            command += ["--plot", str(OUT / f"{name}.png")]
        print(f"== {name}: {script} {options}", flush=True)
        began = time.monotonic()
        if subprocess.run(command, check=False).returncode == 0:
            note_build(name)
        else:
            failed.append(name)
        print(f"   {time.monotonic() - began:.0f} s\n", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}")
    print(f"figures and plots: {OUT.name}/")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
