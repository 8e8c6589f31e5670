"""Several hosts on one machine: network namespaces joined by a bridge, with rates and losses.

    with Fabric(hosts=4, rate="1gbit", loss=0.01) as fabric:
        fabric.run(2, ["ping", "-c1", fabric.address(0)])
        ranks = fabric.launch([sys.executable, "train.py"], ranks_per_host=2)

    python benchmarks/fabric.py --hosts 4 --rate 1gbit --loss 0.01 -- python train.py

The namespaces have no names: they live as long as this process holds their descriptors, so even
kill -9 leaves nothing behind. Every host has its own sysfs, as a machine would. The rate is held by
a token bucket at both ends of each cable; a loss drops what arrives at a host. A sender that hands
the kernel super-packets (GSO) loses a whole one, up to 64 KB, at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any

CLONE_NEWNET = 0x40000000
OPEN_NAMESPACE = os.O_RDONLY | os.O_CLOEXEC
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING, ETH_P_ALL = 263, 15, 23, 3
TOOLS = ("ip", "tc", "nft", "nsenter", "unshare")
MASTER_PORT = 29500  # free by construction: the namespace is new
# Runs a command with the namespace's own /sys, so that interface speeds and statistics are right.
OWN_SYSFS = 'umount -l /sys 2>/dev/null; mount -t sysfs none /sys 2>/dev/null; exec "$@"'


class FabricUnavailable(RuntimeError):
    """This machine or user cannot make network namespaces; the text says why."""


def parse_rate(rate: str) -> float:
    """Bits a second of "1gbit", "250mbit", "9.4gbit"."""
    match = re.fullmatch(r"([0-9.]+)\s*(k|m|g)bit", rate.lower())
    if not match:
        raise ValueError(f"rate {rate!r}: write it like 1gbit, 250mbit or 800kbit")
    return float(match[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[match[2]]


def _environment() -> dict[str, str]:
    """The environment with the folders that hold ip, tc and nft, which users' PATHs leave out."""
    environment = dict(os.environ)
    environment["PATH"] = environment.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
    return environment


def why_unavailable() -> str | None:
    """Why no fabric can be made here, or None when one can. Makes one namespace to find out."""
    path = _environment()["PATH"]
    missing = [tool for tool in TOOLS if not shutil.which(tool, path=path)]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: iproute2 nftables util-linux)"
    try:
        os.close(_new_namespace())
    except OSError as error:
        return f"no right to make a network namespace ({error.strerror}): needs root"
    return None


def _elsewhere(enter: str, argument: int, act: Callable[[], Any]) -> Any:
    """Returns what `act` does in a short-lived thread that has called libc's `enter` first."""
    result: list[Any] = []

    def run() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        arguments = (argument,) if enter == "unshare" else (argument, CLONE_NEWNET)
        try:
            if getattr(libc, enter)(*arguments) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
            result.append(act())
        except OSError as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(result[0], OSError):
        raise result[0]
    return result[0]


def _new_namespace() -> int:
    """A descriptor of a new network namespace. Only a short-lived thread ever stands in it."""
    here = "/proc/thread-self/ns/net"
    made: int = _elsewhere("unshare", CLONE_NEWNET, lambda: os.open(here, OPEN_NAMESPACE))
    return made


class Fabric:
    """Hosts 0..hosts-1, each with `links` interfaces eth0, eth1, ... What joins them, `between`:
    "bridges", one network a link; "bridge", one network for all of them; or "routers", one a link,
    with no host in another one's network."""

    def __init__(
        self,
        hosts: int = 2,
        rate: str | None = None,
        loss: float = 0.0,
        links: int = 1,
        mtu: int = 1500,
        tcp: str | None = None,
        between: str = "bridges",
        strict_arp: bool = False,
    ) -> None:
        """`loss` is a probability; `tcp` pins the congestion control (None: the machine's). With
        `strict_arp` each interface speaks for its own address alone, not for all of the host."""
        if not 1 <= hosts <= 250:
            raise ValueError(f"hosts must be 1 to 250, not {hosts}")
        if not 0.0 <= loss < 1.0:
            raise ValueError(f"loss is a probability below 1, not {loss}")
        if between not in ("bridges", "bridge", "routers"):
            raise ValueError(f"between is bridges, bridge or routers, not {between!r}")
        self.hosts = hosts
        self.between = between
        self.strict_arp = strict_arp
        self.links = links
        self.rate = rate
        self.bits_per_second = parse_rate(rate) if rate else None
        self.loss = loss
        self.mtu = mtu
        self.tcp = tcp
        self._namespaces: list[int] = []  # hosts, then the bridges' one
        self._children: list[subprocess.Popen[Any]] = []
        self._restore: list[Callable[[], None]] = []

    # -- life

    def __enter__(self) -> Fabric:
        reason = why_unavailable()
        if reason:
            raise FabricUnavailable(reason)
        self._catch_termination()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process in the hosts and gives the namespaces back. Idempotent."""
        for child in self._children:
            if child.poll() is None:
                child.kill()
        inodes = {os.fstat(namespace).st_ino for namespace in self._namespaces}
        deadline = time.monotonic() + 5
        while (pids := list(_processes_in(inodes))) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for child in self._children:
                child.poll()
            time.sleep(0.01)
        for child in self._children:
            child.wait()
        for namespace in self._namespaces:
            os.close(namespace)
        self._children.clear()
        self._namespaces.clear()
        while self._restore:
            self._restore.pop()()

    def _catch_termination(self) -> None:
        """Turns SIGTERM and SIGHUP into an exit that passes through __exit__."""
        if threading.current_thread() is not threading.main_thread():
            return

        def leave(number: int, frame: FrameType | None) -> None:
            sys.exit(128 + number)

        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, leave)

                def restore(number: int = number) -> None:
                    signal.signal(number, signal.SIG_DFL)

                self._restore.append(restore)

    # -- names and addresses

    def address(self, host: int, link: int = 0) -> str:
        """IPv4 address of a host's interface."""
        return f"10.77.{link}.{host + 1}"

    def address6(self, host: int, link: int = 0) -> str:
        """IPv6 address of a host's interface."""
        return f"fd77:{link + 1:x}::{host + 1:x}"

    def namespace(self, host: int) -> str:
        """Path of the host's network namespace, as nsenter takes it."""
        return self._path(self._namespaces[host])

    def congestion_control(self) -> str:
        """The TCP congestion control in force in the hosts."""
        text = self.output(0, ["cat", "/proc/sys/net/ipv4/tcp_congestion_control"])
        return text.strip()

    # -- running

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """The argv that runs `command` inside the host; same pid throughout."""
        enter = ["nsenter", f"--net={self.namespace(host)}", "unshare", "--mount"]
        shell = ["--propagation", "slave", "sh", "-c", OWN_SYSFS, "sh"]
        return [*enter, *shell, *command]

    def popen(self, host: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a command in a host. It is ended when the fabric closes, if not before."""
        argv = self.command(host, command)
        if threading.current_thread() is threading.main_thread():
            argv = ["setpriv", "--pdeathsig", "KILL", *argv]
        options.setdefault("env", _environment())
        child = subprocess.Popen(argv, **options)
        self._children.append(child)
        return child

    def run(self, host: int, command: Sequence[str], **options: Any) -> int:
        """Runs a command in a host and returns its exit status."""
        return self.popen(host, command, **options).wait()

    def output(self, host: int, command: Sequence[str]) -> str:
        """The standard output of a command; raises when it fails."""
        argv = self.command(host, command)
        return subprocess.run(
            argv, env=_environment(), check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def rank_environment(self, rank: int, ranks_per_host: int = 1) -> dict[str, str]:
        """The variables that torchrun would set for this rank."""
        world = self.hosts * ranks_per_host
        return {
            "MASTER_ADDR": self.address(0),
            "MASTER_PORT": str(MASTER_PORT),
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": str(rank % ranks_per_host),
            "LOCAL_WORLD_SIZE": str(ranks_per_host),
            "GROUP_RANK": str(rank // ranks_per_host),
            "GROUP_WORLD_SIZE": str(self.hosts),
            "GLOO_SOCKET_IFNAME": "eth0",  # gloo would look for the machine's own name otherwise
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }

    def launch(
        self,
        command: Sequence[str],
        ranks_per_host: int = 1,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> list[subprocess.Popen[Any]]:
        """Starts `command` once a rank, ranks in host order, and returns the processes."""
        ranks = []
        for rank in range(self.hosts * ranks_per_host):
            variables = _environment() | self.rank_environment(rank, ranks_per_host)
            variables |= dict(environment or {})
            ranks.append(self.popen(rank // ranks_per_host, command, env=variables, **options))
        return ranks

    def socket(self, host: int, kind: socket.SocketKind, port: int = 0) -> socket.socket:
        """An IPv4 socket that stands in the host, though its owner does not."""
        found: socket.socket = _elsewhere(
            "setns", self._namespaces[host], lambda: socket.socket(socket.AF_INET, kind)
        )
        found.bind((self.address(host), port))
        return found

    def tap_cables(self, link: int = 0) -> list[socket.socket]:
        """Takes hosts' cables out of their bridge. The far end of each is a packet socket instead,
        whose frames begin with a virtio header (10 bytes), to be passed on with them."""
        ports = [f"p{link}h{host}" for host in range(self.hosts)]
        self._ip(self._namespaces[-1], [f"link set {port} nomaster" for port in ports])

        def tap(port: str) -> socket.socket:
            found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            found.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
            found.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            found.bind((port, ETH_P_ALL))
            return found

        bridges = self._namespaces[-1]
        return [_elsewhere("setns", bridges, functools.partial(tap, port)) for port in ports]

    # -- faults

    def set_loss(self, loss: float, host: int | None = None) -> None:
        """Drops this share of what arrives at a host (at every host: None)."""
        self.loss = loss
        for one in range(self.hosts) if host is None else [host]:
            for link in range(self.links):
                self._set_filter(self._namespaces[one], f"eth{link}", loss)

    def set_super_packets(self, allowed: bool) -> None:
        """Whether hosts hand their cables super-packets of up to 64 KB, of which a loss takes the
        whole, or every datagram and TCP segment by itself."""
        most = 65_535 if allowed else 1
        for host in range(self.hosts):
            lines = [f"link set eth{link} gso_max_segs {most}" for link in range(self.links)]
            self._ip(self._namespaces[host], lines)

    def cut(self, host: int, link: int = 0) -> None:
        """The cable goes dead both ways, without losing its carrier."""
        self._set_filter(self._namespaces[host], f"eth{link}", 1.0)
        self._set_filter(self._namespaces[-1], f"p{link}h{host}", 1.0)

    def mend(self, host: int, link: int = 0) -> None:
        """Undoes cut(); the host's loss, if any, is as before."""
        self._set_filter(self._namespaces[host], f"eth{link}", self.loss)
        self._set_filter(self._namespaces[-1], f"p{link}h{host}", 0.0)

    def cut_from(self, host: int, link: int = 0) -> None:
        """Loses what leaves a host by this link; what comes to it arrives. mend() undoes it."""
        self._set_filter(self._namespaces[-1], f"p{link}h{host}", 1.0)

    def set_rate(self, host: int, rate: str, link: int = 0) -> None:
        """Another one than that of a fabric with a rate, for one cable, both ways, in mid-run."""
        self._limit(self._namespaces[host], [f"eth{link}"], parse_rate(rate), "change")
        self._limit(self._namespaces[-1], [f"p{link}h{host}"], parse_rate(rate), "change")

    def set_mtu(self, host: int, mtu: int, link: int = 0) -> None:
        """Sets the MTU of the host's own interface."""
        self._ip(self._namespaces[host], [f"link set eth{link} mtu {mtu}"])

    def set_carrier(self, host: int, up: bool, link: int = 0) -> None:
        """Takes the bridge's port down (the host sees its carrier go) or up again."""
        state = "up" if up else "down"
        self._ip(self._namespaces[-1], [f"link set p{link}h{host} {state}"])

    def set_switch_mtu(self, mtu: int) -> None:
        """Sets what the bridges carry; the hosts' own interfaces know nothing of it. Larger frames
        vanish without a word, as in a switch."""
        for host in range(self.hosts):
            for link in range(self.links):
                # Bridges let super-packets pass unmeasured: every frame leaves its host by itself.
                self._ip(self._namespaces[host], [f"link set eth{link} gso_max_segs 1"])
                self._ip(self._namespaces[-1], [f"link set p{link}h{host} mtu {mtu}"])

    def narrow(self, host: int, mtu: int, link: int = 0) -> None:
        """Puts a second bridge between a host and the others', over a cable that carries `mtu`. A
        larger frame has left its sender by then, so that no error tells of it: it is lost."""
        port, far, near, bridge = (f"{name}{link}h{host}" for name in ("p", "f", "n", "b"))
        lines = [
            f"link add {bridge} type bridge",
            f"link set {bridge} mtu {self.mtu} up",
            f"link add {near} mtu {mtu} type veth peer name {far} mtu {mtu}",
            f"link set {near} master br{link} up",
            f"link set {far} master {bridge} up",
            f"link set {port} master {bridge}",
        ]
        self._ip(self._namespaces[host], [f"link set eth{link} gso_max_segs 1"])
        self._ip(self._namespaces[-1], lines)

    # -- building

    def _path(self, namespace: int) -> str:
        return f"/proc/{os.getpid()}/fd/{namespace}"

    def _feed(self, namespace: int, tool: Sequence[str], text: str) -> None:
        argv = ["nsenter", f"--net={self._path(namespace)}", *tool]
        done = subprocess.run(
            argv, env=_environment(), input=text, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            message = f"{' '.join(tool)} failed: {done.stderr.strip()}\n{text}"
            raise FabricUnavailable(message)

    def _ip(self, namespace: int, lines: Sequence[str]) -> None:
        self._feed(namespace, ["ip", "-batch", "-"], "\n".join(lines) + "\n")

    def _build(self) -> None:
        self._namespaces = [_new_namespace() for _ in range(self.hosts + 1)]
        bridges = self._namespaces[-1]
        lines = []
        for link in range(self.links):
            bridge = f"br{0 if self.between == 'bridge' else link}"
            if self.between != "routers" and (link == 0 or self.between == "bridges"):
                lines += [f"link add {bridge} type bridge", f"link set {bridge} mtu {self.mtu} up"]
            for host in range(self.hosts):
                port = f"p{link}h{host}"
                peer = f"name eth{link} mtu {self.mtu} netns {self.namespace(host)}"
                lines.append(f"link add {port} mtu {self.mtu} type veth peer {peer}")
                joins = "" if self.between == "routers" else f"master {bridge}"
                lines.append(f"link set {port} {joins} up")
        self._ip(bridges, lines)
        for host in range(self.hosts):
            self._build_host(host)
        if self.between == "routers":
            self._build_routers()
        if self.bits_per_second:
            ports = [f"p{link}h{h}" for link in range(self.links) for h in range(self.hosts)]
            self._limit(bridges, ports, self.bits_per_second)
        self._pin_tcp()
        if self.loss:
            self.set_loss(self.loss)

    def _build_host(self, host: int) -> None:
        prefixes = {"bridges": (24, 64), "bridge": (16, 16), "routers": (32, 64)}
        bits, bits6 = prefixes[self.between]
        lines = ["link set lo up"]
        for link in range(self.links):
            lines.append(f"addr add {self.address(host, link)}/{bits} dev eth{link}")
            lines.append(f"addr add {self.address6(host, link)}/{bits6} dev eth{link} nodad")
            lines.append(f"link set eth{link} up")
        self._ip(self._namespaces[host], lines)
        if self.strict_arp:
            settings = "cd /proc/sys/net/ipv4/conf/all; echo 1 > arp_ignore; echo 2 > arp_announce"
            self._feed(self._namespaces[host], ["sh"], settings)
        if self.bits_per_second:
            devices = [f"eth{link}" for link in range(self.links)]
            self._limit(self._namespaces[host], devices, self.bits_per_second)

    def _build_routers(self) -> None:
        """IPv4 only. The routers' addresses are 10.78.0.1, 10.78.1.1, ..."""
        own = self._namespaces[-1]
        self._feed(own, ["sh"], "echo 1 > /proc/sys/net/ipv4/ip_forward")
        lines = ["link set lo up"]
        for link in range(self.links):
            router = f"10.78.{link}.1"
            lines.append(f"addr add {router}/32 dev lo")
            for host in range(self.hosts):
                lines.append(f"route add {self.address(host, link)}/32 dev p{link}h{host}")
                to_router = f"route add {router}/32 dev eth{link}"
                onwards = f"route add 10.77.{link}.0/24 via {router} dev eth{link}"
                self._ip(self._namespaces[host], [to_router, onwards])
        self._ip(own, lines)

    def _limit(
        self, namespace: int, devices: Sequence[str], bits_per_second: float, verb: str = "add"
    ) -> None:
        # A bucket of 2 ms: enough for the timer's grain, little enough not to hide the rate.
        burst = max(32_768, int(bits_per_second / 8 * 0.002))
        bucket = f"root tbf rate {int(bits_per_second)}bit burst {burst}b latency 20ms"
        lines = [f"qdisc {verb} dev {device} {bucket}" for device in devices]
        self._feed(namespace, ["tc", "-batch", "-"], "\n".join(lines) + "\n")

    def _set_filter(self, namespace: int, device: str, share: float) -> None:
        rule = "drop" if share >= 1.0 else f"numgen random mod 100000 < {round(share * 1e5)} drop"
        chain = f"type filter hook ingress device {device} priority 0;"
        text = f"table netdev {device} {{}}\ndelete table netdev {device}\n"
        if share > 0:
            text += f"table netdev {device} {{ chain c {{ {chain} {rule}; }}; }}\n"
        self._feed(namespace, ["nft", "-f", "-"], text)

    def _pin_tcp(self) -> None:
        if not self.tcp:
            return
        allowed = "/proc/sys/net/ipv4/tcp_allowed_congestion_control"
        with open(allowed) as file:
            before = file.read().strip()
        if self.tcp not in before.split():
            # Other namespaces than the first may only take what this list allows.
            _write(allowed, f"{before} {self.tcp}")
            self._restore.append(lambda: _write(allowed, before))
        for host in range(self.hosts):
            control = "/proc/sys/net/ipv4/tcp_congestion_control"
            self.output(host, ["sh", "-c", f"echo {self.tcp} > {control}"])


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _processes_in(namespaces: set[int]) -> Iterator[int]:
    """Pids that stand in one of these network namespaces."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{entry}/ns/net").st_ino in namespaces:
                    yield int(entry)


def wait_all(ranks: Sequence[subprocess.Popen[Any]], timeout: float | None = None) -> int:
    """Waits for every rank; when one fails, ends the others. The first failure's status, or 0."""
    deadline = time.monotonic() + timeout if timeout else None
    try:
        while True:
            states = [rank.poll() for rank in ranks]
            failed = [state for state in states if state]
            if failed:
                return failed[0]
            if all(state == 0 for state in states):
                return 0
            if deadline and time.monotonic() > deadline:
                raise TimeoutError(f"ranks {[r for r, s in enumerate(states) if s is None]} run on")
            time.sleep(0.02)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.terminate()
        for rank in ranks:
            try:
                rank.wait(5)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()


def _become_root_of_own_namespace() -> None:
    """An ordinary user starts again inside a user namespace, where making networks is allowed."""
    if os.geteuid() == 0 or os.environ.get("FABRIC_INSIDE"):
        return
    os.environ["FABRIC_INSIDE"] = "1"
    argv = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, *sys.argv]
    os.execvp(argv[0], argv)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Run a command on every host of an emulated network, as torchrun would."
    )
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--rate", help="like 1gbit; default: unlimited")
    parser.add_argument("--loss", type=float, default=0.0, help="probability, e.g. 0.01")
    parser.add_argument("--links", type=int, default=1, help="interfaces a host")
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--tcp", help="TCP congestion control to pin, e.g. cubic")
    parser.add_argument("--timeout", type=float, help="seconds, then everything is ended")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD")
    arguments = parser.parse_args()
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        parser.error("no command: write it after --")
    _become_root_of_own_namespace()
    try:
        with Fabric(
            hosts=arguments.hosts,
            rate=arguments.rate,
            loss=arguments.loss,
            links=arguments.links,
            mtu=arguments.mtu,
            tcp=arguments.tcp,
        ) as fabric:
            ranks = fabric.launch(command, ranks_per_host=arguments.ranks_per_host)
            return wait_all(ranks, arguments.timeout)
    except FabricUnavailable as reason:
        print(f"no fabric here: {reason}", file=sys.stderr)
        return 2
    except TimeoutError as reason:
        print(f"timeout: {reason}", file=sys.stderr)
        return 124
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
