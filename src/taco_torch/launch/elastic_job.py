"""A job whose ranks come and go.

A rank that has started, or that has lost another, enters (member.py) and waits. A world is made of
all that wait once no rank of the last world still runs: survivors go on at once, and do not wait
for those that are being started in place of the dead. When newcomers wait, the running ranks are
told, enter at their next commit, and the next world has all. Rank 0 is one that was in the last
world, as Horovod's states are broadcast from there.

Called by the command's thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from taco_torch.launch.discovery import Discovery
from taco_torch.launch.elastic_hosts import ElasticHosts
from taco_torch.launch.errors import HostError, HostGone, LaunchError
from taco_torch.launch.fixed_job import Failure, failure_of
from taco_torch.launch.hosts import Host, slots_of
from taco_torch.launch.link import Link
from taco_torch.launch.meeting import Meeting
from taco_torch.launch.member import ADDED, REMOVED
from taco_torch.launch.messages import Message
from taco_torch.launch.output import say
from taco_torch.launch.session import Event, Running, Session
from taco_torch.launch.variables import as_strings, of_a_slot

_NEWCOMERS_S = 1.0  # how long the first newcomer waits for others before the running are told
_STRAGGLERS_S = 5.0  # how long a first world that is large enough waits for more


@dataclass(frozen=True)
class ElasticSettings:
    """``ranks`` are needed to begin, ``least`` to go on; there are never more than ``most``."""

    ranks: int
    least: int
    most: int | None
    start_timeout_s: float
    timeout_s: float
    reset_limit: int | None
    cooldown: tuple[int, int] | None
    script: str | None  # of the user's, which names the hosts
    slots: int | None  # of a host for which the script names none
    hosts: list[Host]  # where there is no script


@dataclass
class Worker:
    """A process. ``world`` is the last that it was in, 0 before its first."""

    running: Running
    host: str
    waits: bool = False  # it has entered
    world: int = 0
    leaves: bool = False  # its host was taken away, or has fewer slots

    def is_in(self, world: int) -> bool:
        return not self.waits and self.world == world and world > 0


class ElasticJob:
    """run() is the whole of it; close() before the session is closed."""

    def __init__(self, session: Session, settings: ElasticSettings) -> None:
        self._session = session
        self._settings = settings
        self._hosts = ElasticHosts(settings.cooldown)
        self._meeting = Meeting(session.events)
        self._meeting_address: dict[str, str] = {}  # by host; those that can be reached
        self._workers: dict[int, Worker] = {}
        self._connecting: dict[str, float] = {}  # hosts, and until when they have time
        self._world = 0
        self._broken_since: float | None = None  # some of the world have entered or ended
        self._told = False  # the running ranks know of newcomers, or that some must leave
        self._short_since: float | None = time.monotonic()
        self._newcomers_since: float | None = None
        self._finished = False
        self._last_failure: Failure | None = None
        self._discovery: Discovery | None = None
        if settings.script is not None:
            self._discovery = Discovery(settings.script, settings.slots, session.events)
        else:
            self._hosts.replace(settings.hosts)

    def close(self) -> None:
        self._meeting.close()
        if self._discovery is not None:
            self._discovery.close()

    def run(self) -> Failure | None:
        """Runs the job to its end; why it failed, if it did.

        Raises:
            LaunchError: there are too few hosts, or it was changed too often.
        """
        while True:
            if not self._finished:
                self._fill()
                self._make_a_world()
                self._tell_of_newcomers()
            elif not self._workers:
                return None
            over = self._check_times()
            if over is not None:
                return over
            event = self._session.next(self._next_time())
            if event is not None:
                failure = self._take(event)
                if failure is not None:
                    return failure

    # Events

    def _take(self, event: Event) -> Failure | None:
        message = event.message
        match message["is"]:
            case "hosts":
                self._take_hosts(message["hosts"])
            case "undiscovered":
                raise LaunchError(message["text"])
            case "ready":
                assert event.link is not None
                self._connecting.pop(event.link.host, None)
                self._find_the_way(event.link)
            case "gone":
                assert event.link is not None
                self._lose_host(event.link.host, message["text"])
            case "entered":
                self._enter(int(message["worker"]))
            case "exit":
                return self._take_exit(message)
        return None

    def _take_hosts(self, hosts: list[Host]) -> None:
        fewer, more = self._hosts.replace(hosts)
        self._session.verbosely(
            "hosts: " + (", ".join(f"{host.name}:{host.slots}" for host in hosts) or "none")
        )
        if fewer:
            for name in {worker.host for worker in self._workers.values()}:
                for worker in self._staying_on(name)[self._hosts.slots(name, time.monotonic()) :]:
                    self._dismiss(worker)
            if any(worker.leaves for worker in self._workers.values()):
                self._tell(REMOVED | (ADDED if more else 0))

    def _dismiss(self, worker: Worker) -> None:
        worker.leaves = True
        if worker.waits:
            self._meeting.send(worker.running.key, {"is": "leave"})
        elif not worker.is_in(self._world):
            self._session.end(worker.running)

    def _find_the_way(self, link: Link) -> None:
        """How ranks of a host find this launcher."""
        if link.is_local:
            self._meeting_address[link.host] = "127.0.0.1"
            return
        assert link.ready is not None
        candidates = self._session.own_addresses(link)
        question: Message = {"do": "reach", "addresses": candidates}
        question |= {"port": self._meeting.port, "token": self._meeting.token}
        try:
            found = self._session.ask(link, question, "reached")["addresses"]
        except HostError as error:
            self._lose_host(link.host, str(error))
            return
        except HostGone:  # which is the next event
            return
        if found:
            self._meeting_address[link.host] = found[0]
        else:
            text = f"{link.host} reaches this launcher at none of {', '.join(candidates)}, port "
            self._lose_host(link.host, f"{text}{self._meeting.port}: a firewall?")

    def _lose_host(self, host: str, text: str) -> None:
        self._connecting.pop(host, None)
        self._meeting_address.pop(host, None)
        link = self._session.links.pop(host, None)
        if link is not None:
            link.close()
        lost = [key for key, worker in self._workers.items() if worker.host == host]
        in_the_world = any(self._workers[key].is_in(self._world) for key in lost)
        for key in lost:
            del self._workers[key]
            self._session.running.pop(key, None)
        if host not in self._hosts.names() and not lost:
            return
        wait = self._hosts.lost(host, time.monotonic())
        say(f"{text}\n  {host} is not used any more{_for(wait)}")
        self._last_failure = Failure(f"{host} was lost", 1)
        if in_the_world:
            self._break(f"{host} was lost")

    def _enter(self, key: int) -> None:
        worker = self._workers.get(key)
        if worker is None or worker.waits:
            return
        was_in = worker.is_in(self._world)
        worker.waits = True
        if was_in:
            label, host = worker.running.label, worker.host
            self._break(f"rank {label} on {host} has left this world for the next")
        if worker.leaves or self._finished:
            self._meeting.send(key, {"is": "leave", "finished": not worker.leaves})
        elif not was_in and self._newcomers_since is None:
            self._newcomers_since = time.monotonic()

    def _take_exit(self, message: Message) -> Failure | None:
        running = self._session.running.pop(message["key"], None)
        worker = self._workers.pop(message["key"], None)
        if running is None or worker is None:
            return None
        failure = failure_of(self._session, running, message)
        ended = f"rank {running.label} on {worker.host} has ended"
        if worker.leaves or (self._finished and worker.waits and failure is None):
            if worker.is_in(self._world):
                self._break(ended)
            return None
        if failure is None:
            self._tell_of_the_loss(ended)  # to those that are still in init()
            self._finish()
            return None
        if self._finished:  # those that are left cannot meet again
            return failure
        self._last_failure = failure
        wait = self._hosts.failed(worker.host, time.monotonic())
        say(f"{failure.text}. Its slot is not used any more{_for(wait)}")
        if worker.is_in(self._world):
            self._break(failure.text)
        return None

    def _finish(self) -> None:
        """A rank has come to the end of its program: so do the others, and nobody comes now."""
        self._finished = True
        for worker in self._workers.values():
            if worker.waits:
                self._meeting.send(worker.running.key, {"is": "leave", "finished": True})
            elif not worker.is_in(self._world) and self._world > 0:
                worker.leaves = True
                self._session.end(worker.running)

    def _break(self, why: str) -> None:
        """The world has lost a rank: the others come for the next one. Those that train notice by
        themselves; who is still in init() would wait for the one that is lost."""
        if self._broken_since is None:
            self._broken_since = time.monotonic()
            self._tell_of_the_loss(why)

    def _tell_of_the_loss(self, why: str) -> None:
        for worker in self._running():
            self._meeting.send(worker.running.key, {"is": "broken", "text": why})

    # Consequences

    def _fill(self) -> None:
        """Starts a rank in every slot that is free, and a supervisor where there is none."""
        now, most = time.monotonic(), self._settings.most
        for host in self._hosts.names():
            free = self._hosts.slots(host, now) - len(self._staying_on(host))
            if most is not None:
                free = min(free, most - self._staying())
            if free <= 0:
                continue
            if host not in self._session.links:
                self._session.begin(host)
                self._connecting[host] = now + self._settings.start_timeout_s
            elif host in self._meeting_address:
                for _ in range(free):
                    self._start(host)

    def _staying(self) -> int:
        return sum(not worker.leaves for worker in self._workers.values())

    def _staying_on(self, host: str) -> list[Worker]:
        return [w for w in self._workers.values() if w.host == host and not w.leaves]

    def _needed(self) -> int:
        """How many ranks the next world has at least."""
        return self._settings.least if self._world else self._settings.ranks

    def _start(self, host: str) -> None:
        variables = {
            "HOROVOD_ELASTIC": "1",
            "TACORUN_MEETING": f"{self._meeting_address[host]} {self._meeting.port}",
            "TACORUN_KEY": self._meeting.key,
            # All members of a world have entered: who does not come to init() now has died.
            "HOROVOD_START_TIMEOUT": f"{self._settings.start_timeout_s:g}",
        }
        labels = {worker.running.label for worker in self._workers.values()}
        label = next(each for each in range(len(labels) + 1) if each not in labels)
        self._session.output.forget(label)
        running = self._session.start(host, label, variables)
        self._workers[running.key] = Worker(running, host)

    def _waiting(self) -> list[Worker]:
        """Those that may be in the next world: first the ones that have been in a world, and of
        these the ones that have lived longest."""
        found = [w for w in self._workers.values() if w.waits and not w.leaves]
        return sorted(found, key=lambda each: (-each.world, each.running.key))

    def _running(self) -> list[Worker]:
        return [w for w in self._workers.values() if w.is_in(self._world)]

    def _make_a_world(self) -> None:
        waiting, now = self._waiting(), time.monotonic()
        if len(waiting) < self._needed() or self._running() or self._session.has_more():
            return
        starting = any(not worker.waits for worker in self._workers.values())
        since = self._newcomers_since
        if not self._world and starting and since is not None and now < since + _STRAGGLERS_S:
            return
        if self._world and not any(worker.world for worker in waiting):
            return  # nobody of these knows what was trained; _check_times() says so
        limit = self._settings.reset_limit
        if limit is not None and self._world > limit:
            raise LaunchError(
                f"the job was changed {self._world} times, more than --reset-limit {limit} allows"
            )
        self._send_places(waiting)

    def _can_go_on(self) -> bool:
        """Whether time alone, while newcomers wait, leads to another world."""
        if self._world:
            return self._broken_since is None and bool(self._running())
        return len(self._waiting()) >= self._settings.ranks

    def _send_places(self, members: list[Worker]) -> None:
        hosts = list(dict.fromkeys(worker.host for worker in members))
        if not self._world:  # as they are listed, whichever was ready first
            listed = {name: at for at, name in enumerate(self._hosts.names())}
            hosts.sort(key=lambda host: listed.get(host, len(listed)))
        by_host = [[w for w in members if w.host == host] for host in hosts]
        members = [worker for there in by_host for worker in there]
        try:
            address, port = self._session.meeting_point(hosts[0], hosts)
        except HostError as error:
            self._lose_host(error.host, str(error))
            return
        except HostGone:
            return  # which is the next event
        if self._session.has_more():
            return  # one of these may have ended in the meantime
        self._world += 1
        has_newcomers = any(not worker.world for worker in members)
        counts = {host: len(there) for host, there in zip(hosts, by_host, strict=True)}
        for worker, slot in zip(members, slots_of(counts), strict=True):
            worker.waits, worker.world = False, self._world
            if worker.running.label != slot.rank:
                self._session.output.forget(slot.rank)
            worker.running.label = slot.rank
            own = {"TACORUN_WORLD": self._world, "TACORUN_HAS_NEWCOMERS": int(has_newcomers)}
            variables = as_strings({**of_a_slot(slot, address, port), **own})
            place = {"is": "assigned", "variables": variables}
            self._meeting.send(worker.running.key, place)
        self._broken_since = self._newcomers_since = None
        self._told = False
        say(f"world {self._world}: {len(members)} ranks on {', '.join(hosts)}")

    def _tell_of_newcomers(self) -> None:
        since = self._newcomers_since
        if since is None or self._told or self._broken_since is not None or not self._running():
            return
        starting = any(not w.waits and w.world == 0 for w in self._workers.values())
        if not starting or time.monotonic() >= since + _NEWCOMERS_S:
            self._tell(ADDED)

    def _tell(self, what: int) -> None:
        self._told = True
        for worker in self._running():
            self._meeting.send(worker.running.key, {"is": "updated", "what": what})

    # Time

    def _check_times(self) -> Failure | None:
        """Ends what has taken too long. The failure of a job that cannot go on."""
        now = time.monotonic()
        for host, end in list(self._connecting.items()):
            if now >= end:
                seconds = f"{self._settings.start_timeout_s:g} s (--start-timeout)"
                link = self._session.links.get(host)
                if link is not None:
                    link.kill()
                self._lose_host(host, f"{host}: no supervisor answered within {seconds}")
        if self._finished:
            return None
        if self._world and not any(worker.world for worker in self._workers.values()):
            return self._last_failure or Failure("all ranks are gone", 1)
        if self._broken_since is not None and now >= self._broken_since + self._settings.timeout_s:
            for worker in self._running():
                say(f"rank {worker.running.label} on {worker.host} does not come: it is ended")
                self._session.end(worker.running)
            self._broken_since = now
        self._check_shortage(now)
        return None

    def _check_shortage(self, now: float) -> None:
        needed = self._needed()
        there = self._staying()
        if there >= needed:
            self._short_since = None
            return
        if self._short_since is None:
            self._short_since = now
            if self._world:
                say(f"{there} ranks are left, {needed} are needed (--min-np): waiting for hosts")
        hopeless = (
            self._discovery is None
            and self._settings.cooldown is None
            and self._hosts.total(now) < needed
        )
        if not hopeless and now < self._short_since + self._settings.timeout_s:
            return
        last = f"\nThe last failure: {self._last_failure}" if self._last_failure else ""
        which = "--min-np" if self._world else "-np"
        waited = "" if hopeless else f" within {self._settings.timeout_s:g} s (--elastic-timeout)"
        raise LaunchError(
            f"{there} ranks are there, {needed} are needed ({which}), and no more hosts or slots "
            f"came{waited}{last}"
        )

    def _next_time(self) -> float | None:
        """Seconds until something happens although no event comes."""
        times = [*self._connecting.values()]
        if not self._finished:
            slot = self._hosts.next_change()
            times += [] if slot is None else [slot + 0.01]
            for since in (self._short_since, self._broken_since):
                times += [] if since is None else [since + self._settings.timeout_s]
            if self._newcomers_since is not None and not self._told and self._can_go_on():
                wait = _NEWCOMERS_S if self._world else _STRAGGLERS_S
                times.append(self._newcomers_since + wait)
        return max(0.0, min(times) - time.monotonic()) if times else None


def _for(seconds: float | None) -> str:
    return "" if seconds is None else f" for {seconds:g} s"
