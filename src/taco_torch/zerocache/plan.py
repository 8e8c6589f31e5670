"""``python -m taco_torch.zerocache.plan``: does a GPT fit, and what will a step of it take?

::

    python -m taco_torch.zerocache.plan --params 7e9 --device 24GiB --host 64GiB --ssd 500GiB \\
        --device-gbs 25 --disk-gbs 3 --fit

Nothing is allocated: the scheduler that a ZeroCache has decides what moves when, and a simulation
carries that out at the speeds that are given. How fast the model computes is taken from
``--flops``. Of a model that exists, ``ZeroCache.plan()`` knows more: it has measured it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from taco_torch._extension import _C
from taco_torch.zerocache.sizes import format_bytes, parse_bytes
from taco_torch.zerocache.step_plan import StepPlan, step_plan

KINDS = {
    "adamw": ["exp_avg", "exp_avg_sq"],
    "adam": ["exp_avg", "exp_avg_sq"],
    "sgd": ["momentum_buffer"],
    "lion": ["exp_avg"],
}
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}
ASPECT = 128  # width : layers, about that of GPT-3's models and of LLaMA's
WIDTH_STEP = 64
MAX_PARAMETERS, MAX_PAGES = 1e13, 1 << 21  # beyond, a plan takes minutes


@dataclass(frozen=True)
class Shape:
    """A GPT with one matrix for the embedding and for the scores of tokens."""

    layers: int
    width: int
    vocabulary: int
    context: int

    def parameters(self) -> int:
        block = 12 * self.width**2 + 13 * self.width
        return (self.vocabulary + self.context + 2) * self.width + self.layers * block


def shape_for(parameters: float, layers: int | None, vocabulary: int, context: int) -> Shape:
    """The shape whose size is closest to ``parameters``, of so many layers, or with a width of
    about 128 times the layers."""

    def closest(shapes: list[Shape]) -> Shape:
        return min(shapes, key=lambda shape: abs(shape.parameters() - parameters))

    def of_layers(count: int) -> Shape:
        width = WIDTH_STEP
        while Shape(count, 2 * width, vocabulary, context).parameters() < parameters:
            width *= 2
        last = 2 * width // WIDTH_STEP
        found = [
            Shape(count, step * WIDTH_STEP, vocabulary, context)
            for step in range(width // WIDTH_STEP, last + 1)
        ]
        return closest(found)

    if layers is not None:
        return of_layers(layers)
    return of_layers(
        closest([Shape(n, ASPECT * n, vocabulary, context) for n in range(1, 512)]).layers
    )


Part = tuple[list[int], float, float]


def modules_of(
    shape: Shape, element_bytes: int, tokens: int, flops: float
) -> tuple[list[tuple[int, int]], list[Part]]:
    """The model's tensors as (bytes, bytes of an element), and modules in their order as (tensors,
    seconds forward, seconds backward)."""
    tensors: list[tuple[int, int]] = []
    modules: list[Part] = []
    width = shape.width

    def tensor(elements: int) -> int:
        tensors.append((elements * element_bytes, element_bytes))
        return len(tensors) - 1

    def module(own: list[int], operations: float, *, read_in_backward: bool = True) -> None:
        forward = operations / flops
        # Each product of the forward pass has two in the backward pass.
        modules.append((own, forward, max(2 * forward, 1e-9) if read_in_backward else 0.0))

    def linear(inputs: int, outputs: int, more: float = 0.0) -> None:
        own = [tensor(inputs * outputs), tensor(outputs)]
        module(own, 2.0 * inputs * outputs * tokens + more)

    embedding = tensor(shape.vocabulary * width)
    module([embedding], 0.0, read_in_backward=False)
    module([tensor(shape.context * width)], 0.0, read_in_backward=False)
    for _ in range(shape.layers):
        module([tensor(width), tensor(width)], 0.0)
        # Scores and sums of attention, each position over those before it.
        linear(width, 3 * width, more=2.0 * tokens * shape.context * width)
        linear(width, width)
        module([tensor(width), tensor(width)], 0.0)
        linear(width, 4 * width)
        linear(4 * width, width)
    module([tensor(width), tensor(width)], 0.0)
    module([embedding], 2.0 * shape.vocabulary * width * tokens)
    return tensors, modules


class Planner:
    """Predicts steps of one program with different memories. Sizes in bytes."""

    def __init__(
        self, program: Any, speeds: Sequence[float], page_bytes: int, disk_in_turns: bool
    ) -> None:
        self.program = program
        self.speeds = list(speeds)
        self.disk_in_turns = disk_in_turns
        self.page_bytes = page_bytes

    def fits(self, device: int, host: int, ssd: int) -> bool:
        try:
            self.program.check(device, host, ssd)
        except ValueError:
            return False
        return True

    def predict(self, device: int, host: int, ssd: int) -> StepPlan:
        """Raises ValueError, with what has to be larger, where that does not fit."""
        return step_plan(self.program.predict(device, host, ssd, self.speeds, self.disk_in_turns))

    def min_host(self, good: Callable[[int], bool], share: float = 0.0) -> int | None:
        """The least host memory that is ``good``, if more of it never makes it worse, or more than
        that by so large a share at most; None where none is, however large."""
        enough = int(self.program.held_bytes) // self.page_bytes + 64
        if not good(enough * self.page_bytes):
            return None
        low, high = 0, enough
        while high - low > max(1, share * high):
            middle = (low + high) // 2
            low, high = (low, middle) if good(middle * self.page_bytes) else (middle, high)
        return high * self.page_bytes


def fit_lines(planner: Planner, device: int, ssd: int, within: float) -> list[str]:
    """The least host memory with which it runs at all, and with which it is about as fast as with
    any."""
    least = planner.min_host(lambda host: planner.fits(device, host, ssd))
    if least is None:
        return [f"no host memory makes it fit a device of {format_bytes(device)}"]
    best = planner.predict(device, planner.program.held_bytes + 64 * planner.page_bytes, ssd)

    def fast(host: int) -> bool:
        if not planner.fits(device, host, ssd):
            return False
        return planner.predict(device, host, ssd).step_s <= within * best.step_s

    slow = planner.predict(device, least, ssd)
    lines = [f"the least host memory: {format_bytes(least)}, with {slow.step_s:.3g} s a step"]
    quick = planner.min_host(fast, share=1 / 256)
    if quick is not None:
        found = planner.predict(device, quick, ssd)
        lines.append(
            f"within {100 * (within - 1):.0f}% of the fastest ({best.step_s:.3g} s): "
            f"{format_bytes(quick)}, with {found.step_s:.3g} s a step"
        )
    return lines


def _size(name: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            return parse_bytes(text, name)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _number(example: str, least: float = 0.0, most: float = float("inf")) -> Callable[[str], float]:
    bounds = f"above {least:g}" + (f", up to {most:g}" if most < float("inf") else "")

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least < value <= most or value == float("inf"):
            raise argparse.ArgumentTypeError(
                f"{text!r} is no number {bounds}: write one such as {example}"
            )
        return value

    return parse


def _count(most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = 0
        if not 1 <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {most}")
        return value

    return parse


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m taco_torch.zerocache.plan",
        description="Predicts whether a GPT fits a ZeroCache, and what a training step takes.",
    )
    add = found.add_argument
    add(
        "--params",
        type=_number("7e9", 1e4, MAX_PARAMETERS),
        required=True,
        help="parameters, such as 7e9",
    )
    add("--device", type=_size("--device"), required=True, help="cap, such as 24GiB")
    add("--host", type=_size("--host"), required=True, help="cap, such as 64GiB")
    add("--ssd", type=_size("--ssd"), help="of all disks together, such as 500GiB (default: none)")
    add(
        "--device-gbs",
        type=_number("25"),
        default=25.0,
        help="10^9 bytes a second between host and device, each way (default: 25)",
    )
    add(
        "--disk-gbs",
        type=_number("3"),
        default=3.0,
        help="10^9 bytes a second of the disks, read and written alike (default: 3)",
    )
    add("--disk-write-gbs", type=_number("2"), help="of writing (default: as --disk-gbs)")
    add(
        "--disk-duplex",
        action="store_true",
        help="the disks read as fast while they write (default: they do one at a time, so that "
        "each has what the other leaves it)",
    )
    add("--optimizer", choices=sorted(KINDS), default="adamw", help="default: adamw")
    add("--dtype", choices=sorted(ELEMENT_BYTES), default="float32", help="default: float32")
    add("--layers", type=_count(10_000), help="default: a 128th of the width")
    add("--vocabulary", type=_count(10**9), default=32_000, help="default: 32000")
    add("--context", type=_count(10**9), default=2_048, help="tokens of a sequence (default: 2048)")
    add("--tokens", type=_count(10**9), default=8_192, help="of a step (default: 8192)")
    add(
        "--flops",
        type=_number("50e12"),
        default=50e12,
        help="operations a second that the model computes with (default: 50e12)",
    )
    add(
        "--optimizer-gbs",
        type=_number("40"),
        default=40.0,
        help="10^9 bytes a second that the optimizer steps (default: 40)",
    )
    add("--page", type=_size("--page"), default=4 << 20, help="default: 4MiB")
    add("--fit", action="store_true", help="also find the least host memory")
    add(
        "--within",
        type=_number("1.05", 1.0),
        default=1.05,
        help="for --fit: as fast as with any host memory, times this (default: 1.05)",
    )
    add("--json", action="store_true", help="the prediction as JSON, and nothing else")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if it fits; 1, with what has to be larger, if not."""
    given = parser().parse_args(arguments)
    shape = shape_for(given.params, given.layers, given.vocabulary, given.context)
    element = ELEMENT_BYTES[given.dtype]
    tensors, modules = modules_of(shape, element, given.tokens, given.flops)
    kinds = KINDS[given.optimizer]
    pages = shape.parameters() * element // given.page
    if pages > MAX_PAGES:
        told = f"plan: {pages:,} pages are too many to plan with: give a larger --page"
        print(told, file=sys.stderr)
        return 1
    try:
        program = _C.zerocache.program_of_model(
            tensors, modules, kinds, given.optimizer_gbs * 1e9, given.page
        )
    except ValueError as error:
        print(f"plan: {error}", file=sys.stderr)
        return 1
    write = given.disk_write_gbs if given.disk_write_gbs is not None else given.disk_gbs
    speeds = [given.device_gbs * 1e9, given.device_gbs * 1e9, given.disk_gbs * 1e9, write * 1e9]
    planner = Planner(program, speeds, given.page, not given.disk_duplex)
    count = shape.parameters()
    state = 4 * (len(kinds) + (element == 2))
    if not given.json:
        print(
            f"a GPT of {count:,} parameters: {shape.layers} layers of width {shape.width}, "
            f"{given.dtype}, {given.optimizer}\n"
            f"parameters {format_bytes(count * element)}, optimizer state "
            f"{format_bytes(count * state)}; besides the caps, gradients "
            f"{format_bytes(count * element)} and activations\n"
        )
    ssd = given.ssd or 0
    status, found = 0, None
    try:
        found = planner.predict(given.device, given.host, ssd)
    except ValueError as error:
        print(f"it does not fit: {error}", file=sys.stderr)
        status = 1
    if found is not None:
        print(json.dumps(asdict(found)) if given.json else found)
    if given.fit and not given.json:
        print()
        print("\n".join(fit_lines(planner, given.device, ssd, given.within)))
    return status


if __name__ == "__main__":
    sys.exit(main())
