"""A process reports its taco groups when torch's debug server asks it; the reports of all processes
together say which ranks are missing.

Each process answers for itself (``_register_handler``: torch's worker servers call it by name).
Python only, but for the reports themselves; nothing here needs a server.
"""

import ctypes
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch._C import _distributed_c10d

from taco_torch._extension import _C

HANDLER = "taco_groups"


@dataclass(frozen=True)
class Answer:
    """The reports of one process, or why it has sent none.

    Attributes:
        groups: as ``_C.group_reports()`` has them.
        silence: why there is no answer, or "".
    """

    groups: Sequence[dict[str, Any]] = field(default_factory=list)
    silence: str = ""


def install() -> None:
    """Lets torch's worker server, if the program starts one, answer for the groups here."""
    register: Any = getattr(_distributed_c10d, "_register_handler", None)
    if register is not None:
        keep_for_good(_answer)
        register(HANDLER, _answer)


def keep_for_good(handler: Any) -> None:
    """For what has been given to ``_register_handler``: torch lets go of it after the interpreter
    has ended, where the last reference would end the process with an error."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handler))


def _answer(request: Any, response: Any) -> None:
    response.set_content(json.dumps(_C.group_reports()), "application/json")
    response.set_status(200)


def describe(answers: Sequence[Answer]) -> str:
    """Names the missing ranks of every group, and tells what each of the others is doing.

    Answers are of processes, which are numbered in the order of the environment's RANK; groups may
    number them otherwise.
    """
    lines = [
        f"process {number} does not answer: {answer.silence}"
        for number, answer in enumerate(answers)
        if answer.silence
    ]
    groups: dict[str, dict[int, dict[str, Any]]] = {}
    for answer in answers:
        for report in answer.groups:
            groups.setdefault(str(report["name"]), {})[int(report["rank"])] = report
    for name, reports in groups.items():
        lines += _describe_group(name, reports)
    return "\n".join(lines) if lines else "no taco groups"


def _describe_group(name: str, reports: dict[int, dict[str, Any]]) -> Iterator[str]:
    world = max(int(report["world"]) for report in reports.values())
    missing = list(_missing(reports, world))
    yield f"group '{name}' of {world} ranks: missing: {'; '.join(missing) if missing else 'none'}"
    for rank, report in sorted(reports.items()):
        doing = [text for _, text in report["open"]]
        if report["error"]:
            doing.insert(0, f"failed: {report['error']}".replace("\n", "\n    "))
        started = f"{report['sequence']} collectives started"
        yield f"  rank {rank}: {started}, {'; '.join(doing) if doing else 'nothing in flight'}"


def _missing(reports: dict[int, dict[str, Any]], world: int) -> Iterator[str]:
    """Ranks that others wait for or have lost, and those of which nobody knows anything."""
    lost = {int(report["lost"]) for report in reports.values()}
    waited = [sequence for report in reports.values() for sequence, _ in report["open"] if sequence]
    for rank in range(world):
        report = reports.get(rank)
        if rank in lost:
            yield f"rank {rank} is lost"
        elif report is None:
            yield f"rank {rank} is in no process that answers"
        elif report["destroyed"]:
            yield f"rank {rank} has left"
        elif not report["answers"]:
            yield f"rank {rank}'s engine does not answer"
        elif waited and report["sequence"] < min(waited):
            yield f"rank {rank} has not come to collective {min(waited)}"
