"""One row for each question about HARP beside bare sockets, from what `make bench` leaves in out/.

Each function takes the result of the run that it is named after, as run_all.py's program writes it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from launch import show_bytes
from pairs import medians, ratio
from report_cells import judged, line

ONLY = "run_all.py --only"


def bulk_questions(result: Any) -> list[str]:
    rows = {int(size): row for size, row in result["rows"].items() if int(size) >= 256 << 10}
    sizes = ", ".join(show_bytes(size) for size in rows)
    command = f"`{ONLY} bulk`"

    def of(ours: str, theirs: str, name: str, **goal: float) -> str:
        shares = (ratio(row[ours], row[theirs], name)[0] for row in rows.values())
        return ", ".join(judged(share, f"{share:.2f}", **goal) for share in shares)

    def spent(ours: str, theirs: str) -> str:
        both = []
        for row in rows.values():
            mine, other = medians(row[ours]), medians(row[theirs])
            share = (mine["sender"] + mine["receiver"]) / (other["sender"] + other["receiver"])
            both.append(judged(share, f"{share:.2f}", most=1.05))
        return ", ".join(both)

    speed, time = f"one session, {sizes}: speed", "the same, processor time a GB, both ends"
    return [
        line(f"{speed}, of bare", of("harp", "bare", "gbit", least=0.95), ">= 0.95", command),
        line(f"{time}, of bare", spent("harp", "bare"), "<= 1.05", command),
        line(
            "checksums left to the kernel: speed, of bare",
            of("harp, kernel", "bare, no CRC", "gbit", least=0.95),
            ">= 0.95",
            command,
        ),
        line("speed, of one TCP stream", of("harp", "TCP", "gbit"), "", command),
    ]


def small_questions(result: Any) -> list[str]:
    shares = {
        level: ratio(result[f"harp, {level}"], result["TCP, polling"], "us")[0]
        for level in ("auth", "none")
    }
    text = ", ".join(
        f"`{level}` {judged(share, f'{share:.2f}', most=1.0)}" for level, share in shares.items()
    )
    what = "64 B, half a round trip, of TCP that polls"
    return [line(what, text, "<= 1.0", f"`{ONLY} small`")]


def first_message_questions(result: Any) -> list[str]:
    beyond = medians(result["harp"])["beyond"] / 1e3
    trip = medians(result["harp"])["round_trip"] / 1e3
    what = f"first message, beyond 1.5 round trips of {trip:.0f} ms"
    return [
        line(what, judged(beyond, f"{beyond:.1f} ms", most=1), "<= 1 ms", f"`{ONLY} first_message`")
    ]


def security_questions(result: Any) -> list[str]:
    none, auth, encrypt = (result[level] for level in ("none", "auth", "encrypt"))
    speed = auth["gbit"] / none["gbit"]
    more = max(encrypt[end] - none[end] for end in ("sender", "receiver"))
    cost = more / result["openssl"]["seconds"]
    command = f"`{ONLY} security`"
    return [
        line(
            "`auth`, of the speed of `none`, 4 MiB",
            judged(speed, f"{speed:.3f}", least=0.98),
            ">= 0.98",
            command,
        ),
        line(
            "`encrypt`, processor time, of `openssl speed`",
            judged(cost, f"{cost:.2f}", most=1.3),
            "<= 1.3",
            command,
        ),
    ]


def flood_questions(what: str, run: str) -> Callable[[Any], list[str]]:
    def questions(result: Any) -> list[str]:
        base, flooded, rates = (result[name] for name in ("elsewhere", "at it", "rates"))
        speed = flooded["gbit"] / base["gbit"]
        cost = flooded["receiver"] / base["receiver"]
        least, most = (f"{rates[end] / 1e3:.0f}" for end in ("least", "most"))
        text = f"beside {least if least == most else f'{least}-{most}'} thousand {what} a second"
        found = [
            judged(speed, f"{speed:.3f}", least=0.95),
            judged(cost, f"{cost:.3f}", most=1.05),
        ]
        return [
            line(
                f"{text}: speed; processor time a GB",
                "; ".join(found),
                ">= 0.95; <= 1.05",
                f"`{ONLY} {run}`",
            )
        ]

    return questions


def engines_questions(result: Any) -> list[str]:
    one, two = result["rows"]["1"], result["rows"]["2"]
    names = {"8 MiB, GB/s": "8 MiB", "64 KiB, GB/s": "64 KiB", "64 B, million a second": "64 B"}
    gains = {text: ratio(two, one, name)[0] for name, text in names.items()}
    found = ", ".join(judged(gain, f"{gain:.2f}", least=1.8) for gain in gains.values())
    return [line(f"two engines of one: {', '.join(gains)}", found, ">= 1.8", f"`{ONLY} engines`")]


def striped_questions(where: str, run: str) -> Callable[[Any], list[str]]:
    def questions(result: Any) -> list[str]:
        one, two = result["rows"]["1"], result["rows"]["2"]
        names = [f"{size} MiB, ms" for size in (8, 32)]
        found = ", ".join(f"{ratio(two, one, name)[0]:.2f}" for name in names)
        what = f"one all_reduce over two engines, {where}, of one engine's time: 8, 32 MiB"
        return [line(what, found, "", f"`{ONLY} {run}`")]

    return questions


def interface_questions(result: Any) -> list[str]:
    rows = {kind: statistics.median(times) for kind, times in result["rows"].items()}
    found = "; ".join(judged(time, f"{time * 1e6:.0f} us", most=1e-3) for time in rows.values())
    what = f"the engine's processor time, 1,500 addresses: {'; '.join(rows)}"
    return [line(what, found, "<= 1 ms", f"`{ONLY} interface_events`")]


def sessions_questions(result: Any) -> list[str]:
    leave, change = result["leave_s"], result["change_s"]
    found = [
        judged(leave, f"{leave * 1e9:.0f} ns", most=2e-6),
        judged(change, f"{change * 1e3:.0f} ms", most=0.05),
    ]
    what = f"{result['sessions']:,} idle sessions: leaving a `wait()`; a change of addresses"
    return [line(what, "; ".join(found), "<= 2 us; 50 ms", "`sessions_bench`")]


QUESTIONS: dict[str, Callable[[Any], list[str]]] = {
    "bulk": bulk_questions,
    "small": small_questions,
    "first_message": first_message_questions,
    "engines": engines_questions,
    "striped": striped_questions("UDP", "striped"),
    "striped_shm": striped_questions("shared memory", "striped_shm"),
    "security": security_questions,
    "security_forged": flood_questions("forged packets", "security_forged"),
    "security_icmp": flood_questions("ICMP messages about guessed ports", "security_icmp"),
    "security_connects": flood_questions("connects by another user", "security_connects"),
    "interface_events": interface_questions,
    "sessions": sessions_questions,
}
