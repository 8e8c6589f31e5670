"""How much of linear scaling is left when gradients cross a slow network, by ways to send less.

    python benchmarks/scaling.py                                    VGG16 as in TACO's table
    python benchmarks/scaling.py --models vgg16,resnet50,transformer_xl,bert
    python benchmarks/scaling.py --measure all_reduce --scale 1 --rate 1gbit
    python benchmarks/scaling.py --measure ratios --scale 1 --rate 1gbit

Several hosts are emulated on this machine (fabric.py), and so is the computation: a third of
--emulate-compute passes before the backward pass, the rest during it, layer by layer. Gradients
have the layout of real models (emulated.py), and DDP itself fills and averages its buckets.
--scale makes gradients, buckets and the network's rate so many times smaller than they are said to
be, and leaves the time of computation: so the step takes as long as it would at full size, and two
cores can play all ranks.

Linear scaling is the time of a step without any communication, taken by one rank while the others
wait, over that of a step with it. Beside it stand two limits by arithmetic: "plain", where all that
a host must send follows the computation, and "overlap", where each bucket travels once it is ready.
Ratios to gloo are medians over rounds of that within a round.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from choices import CHOICES, Offer, make_offer
from emulated import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    FORWARD,
    MODELS,
    Bucket,
    Compute,
    Emulated,
    Layer,
    buckets,
    even,
    step_limit,
)
from fabric import parse_rate
from launch import TCP_FRAMING, add_fabric_arguments, deliver, machine, parse_bytes, run

SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")
# Milliseconds of computation on one V100: VGG16 and ResNet50 with batches of 128 as measured (TACO;
# 360 images a second); the others by 6 operations a weight and token at VGG16's 11.5 Tflop/s, with
# 32 sequences of 128 (BERT), 60 of 150 (Transformer-XL), 8 of 1,024 (GPT-2).
COMPUTE_MS = {
    "vgg16": 518.0,
    "resnet50": 355.0,
    "bert": 182.0,
    "transformer_xl": 200.0,
    "gpt2": 530.0,
    "even": 500.0,
}
RATIOS = "3.67,1.4,0.64"  # communication to computation: TCP, HARP, the bare wire in TACO's table


class Place:
    """Where this runs, as the arithmetic needs to know it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.hosts, self.world, self.ratio = arguments.hosts, arguments.ranks, arguments.ratio
        self.seconds_per_byte = (
            8 * TCP_FRAMING / parse_rate(arguments.rate) if arguments.rate else 0.0
        )

    def share(self, name: str) -> float | None:
        """Bytes that leave a host in those of the gradients."""
        return CHOICES[name].wire_share(self.hosts, self.world, self.ratio)

    def wire_s(self, name: str, count: int) -> float | None:
        """Seconds for which a host's cable is busy with `count` bytes of gradients."""
        share = self.share(name)
        return None if share is None else share * count * self.seconds_per_byte


def timed(step: Callable[[], None], reset: Callable[[], None], count: int, gate: Any) -> Any:
    """(the slowest rank's times of `count` steps from common starts, bytes that left rank 0's host
    in a step, or None where its interface is not its own)"""
    times = [0.0] * count
    dist.barrier(group=gate)
    counted = int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1
    before = int(SENT.read_text()) if counted else 0
    for index in range(count):
        dist.barrier(group=gate)
        start = time.perf_counter()
        step()
        times[index] = time.perf_counter() - start
        reset()
    dist.barrier(group=gate)  # the other ranks of rank 0's host have sent theirs too
    sent = (int(SENT.read_text()) - before) / count if counted else None
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.tolist(), sent


class Turns:
    """Choices take turns, a round each; figures of each by round."""

    def __init__(self, offer: Offer, rounds: int) -> None:
        self._offer = offer
        self._rounds = rounds
        self.seconds: dict[str, list[float]] = {name: [] for name in offer.groups}
        self.sent: dict[str, list[float]] = {name: [] for name in offer.groups}

    def run(self, measure: Callable[[str], Any]) -> None:
        """`measure` has a choice timed; what timed() returns."""
        for number in range(self._rounds):
            names = list(self._offer.groups)
            for name in names if number % 2 == 0 else reversed(names):
                if dist.get_rank() == 0:
                    label = f"round {number + 1} of {self._rounds}, {CHOICES[name].title}"
                    print(f"\r{label:<60}", end="", file=sys.stderr, flush=True)
                times, sent = measure(name)
                self.seconds[name].append(statistics.median(times))
                if sent is not None:
                    self.sent[name].append(sent)
        if dist.get_rank() == 0:
            print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)

    def result(self, name: str) -> dict[str, Any]:
        row: dict[str, Any] = {
            "seconds": statistics.median(self.seconds[name]),
            "rounds_s": self.seconds[name],
            "host_bytes": statistics.median(self.sent[name]) if self.sent[name] else None,
        }
        if "gloo" in self.seconds:
            pairs = zip(self.seconds[name], self.seconds["gloo"], strict=True)
            row["of_gloo"] = statistics.median(mine / theirs for mine, theirs in pairs)
        return row


def measure_all_reduce(arguments: argparse.Namespace, offer: Offer, place: Place) -> dict[str, Any]:
    """One gradient of --gradients bytes."""
    count = round(parse_bytes(arguments.gradients) / arguments.scale)
    turns = Turns(offer, arguments.rounds)
    parameter = torch.nn.Parameter(torch.zeros(count // 4))
    generator = torch.Generator().manual_seed(dist.get_rank())
    gradient = torch.randn(count // 4, generator=generator)
    parameter.grad = gradient.clone()

    def reset() -> None:
        parameter.grad.copy_(gradient)  # the sum of sums would overflow

    def turn(name: str) -> Any:
        def step() -> None:
            offer.all_reduce(name, parameter)

        timed(step, reset, CHOICES[name].warm, offer.gate)
        return timed(step, reset, arguments.steps, offer.gate)

    turns.run(turn)
    row: dict[str, Any] = {"gradient_bytes": count, "choices": {}}
    for name in offer.groups:
        one = turns.result(name)
        one["limit_s"] = place.wire_s(name, count)
        share = place.share(name)
        one["host_bytes_limit"] = None if share is None else share * count
        row["choices"][name] = one
    return row


def one_rank_alone(model: torch.nn.Module, step: Callable[[], None], count: int, gate: Any) -> Any:
    """The median time of rank 0's steps without communication, while the others wait."""
    alone = torch.zeros(1, dtype=torch.float64)
    dist.barrier(group=gate)
    if dist.get_rank() == 0:
        times = []
        with model.no_sync():
            for _ in range(count):
                start = time.perf_counter()
                step()
                times.append(time.perf_counter() - start)
                model.zero_grad(set_to_none=True)
        alone[0] = statistics.median(times)
    dist.barrier(group=gate)
    dist.broadcast(alone, 0)
    return alone.item()


def ready_buckets(layers: Sequence[Layer], arguments: argparse.Namespace) -> list[Bucket]:
    size = arguments.bucket or BUCKET_BYTES
    return buckets(layers, size, arguments.bucket or FIRST_BUCKET_BYTES)


def measure_steps(
    layers: Sequence[Layer], seconds: float, arguments: argparse.Namespace, offer: Offer
) -> tuple[Turns, float]:
    """DDP steps with `seconds` of computation by each choice, and the time of one rank alone."""
    turns, alone = Turns(offer, arguments.rounds), []
    compute = Compute(arguments.compute_by)
    one = torch.ones(1, requires_grad=True)

    def turn(name: str) -> Any:
        gc.collect()  # models of earlier turns lie in cycles
        forward = FORWARD * seconds
        module = Emulated(layers, seconds - forward, forward, compute, dist.get_rank())
        model = offer.parallel(name, module)

        # TopK can take back sent gradients that an optimizer has not applied.
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

        def step() -> None:
            model(one).backward()

        def reset() -> None:
            optimizer.step()
            model.zero_grad(set_to_none=True)

        timed(step, reset, CHOICES[name].warm, offer.gate)
        found = timed(step, reset, arguments.steps, offer.gate)
        if CHOICES[name].compression is None:
            alone.append(one_rank_alone(model, step, 2, offer.gate))
        return found

    turns.run(turn)
    return turns, statistics.median(alone)


def scaling_row(
    layers: Sequence[Layer], seconds: float, arguments: argparse.Namespace, offer: Offer
) -> dict[str, Any]:
    place = Place(arguments)
    turns, alone = measure_steps(layers, seconds, arguments, offer)
    ready = ready_buckets(layers, arguments)
    count = sum(bucket.bytes for bucket in ready)
    row: dict[str, Any] = {
        "gradient_bytes": count,
        "compute_s": seconds,
        "single_s": alone,
        "choices": {},
    }
    for name in offer.groups:
        one = turns.result(name)
        one["scaling"] = alone / one["seconds"]
        wire = place.wire_s(name, count)
        if wire is not None:
            forward = FORWARD * seconds
            limit = step_limit(ready, forward, seconds - forward, wire / count)
            one["scaling_overlap"] = seconds / limit
            one["scaling_plain"] = seconds / (seconds + wire)
            one["host_bytes_limit"] = place.share(name) * count
        row["choices"][name] = one
    return row


def measure_models(arguments: argparse.Namespace, offer: Offer, place: Place) -> dict[str, Any]:
    rows = []
    for name in arguments.models.split(","):
        layers = [layer.scaled(arguments.scale) for layer in MODELS[name]()]
        milliseconds = arguments.emulate_compute or COMPUTE_MS[name]
        if dist.get_rank() == 0:
            print(f"{name} ...", file=sys.stderr, flush=True)
        row = scaling_row(layers, milliseconds / 1e3, arguments, offer)
        rows.append({"model": name, **row})
    return {"models": rows}


def compute_for(ratio: float, ready: Sequence[Bucket], seconds_per_byte: float) -> float:
    """Seconds of computation at which what it does not hide of the communication, all of it at
    `seconds_per_byte`, is `ratio` times as long."""
    low, high = 0.0, 2 * sum(bucket.bytes for bucket in ready) * seconds_per_byte / ratio
    for _ in range(60):
        seconds = (low + high) / 2
        forward = FORWARD * seconds
        step = step_limit(ready, forward, seconds - forward, seconds_per_byte)
        low, high = (seconds, high) if step - seconds > ratio * seconds else (low, seconds)
    return high


def measure_ratios(arguments: argparse.Namespace, offer: Offer, place: Place) -> dict[str, Any]:
    """Steps of an even model in which gloo's exposed communication is a given multiple of the
    computation; beside each choice the speed-up that the bytes it saves would give."""
    layers = [layer.scaled(arguments.scale) for layer in even(parse_bytes(arguments.gradients))]
    ready = ready_buckets(layers, arguments)
    gloo = CHOICES["gloo"].wire_share(place.hosts, place.world, place.ratio) or 0.0
    if not gloo or not place.seconds_per_byte:
        raise SystemExit("--measure ratios needs --hosts 2 or more and a --rate")
    rows = []
    for ratio in (float(text) for text in arguments.ratios.split(",")):
        seconds = compute_for(ratio, ready, gloo * place.seconds_per_byte)
        row = scaling_row(layers, seconds, arguments, offer)
        for name, one in row["choices"].items():
            one["speedup"] = 1 / one["of_gloo"] if "of_gloo" in one else None
            share = place.share(name)
            if share is not None:
                one["speedup_limit"] = (1 + ratio) / (1 + ratio * share / gloo)
        rows.append({"ratio": ratio, **row})
    return {"ratios": rows}


MEASURES = {
    "models": measure_models,
    "ratios": measure_ratios,
    "all_reduce": measure_all_reduce,
}


def rank_main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    # 2.13 renames the *_tensor forms; the old names work from 2.11 on.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    names = arguments.choices.split(",")
    offer = make_offer(names, arguments.hosts, arguments.ratio, arguments.scale, arguments.bucket)
    found = MEASURES[arguments.measure](arguments, offer, Place(arguments))
    if dist.get_rank() == 0:
        deliver({"machine": machine(), "left_out": offer.left_out, **found})
    dist.barrier()
    dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_fabric_arguments(parser)
    parser.set_defaults(hosts=2, rate="25gbit")
    parser.add_argument("--measure", choices=list(MEASURES), default="models")
    parser.add_argument("--choices", default=",".join(CHOICES), help=f"of {','.join(CHOICES)}")
    parser.add_argument("--models", default="vgg16", help=f"of {','.join(MODELS)}")
    parser.add_argument(
        "--emulate-compute", type=float, metavar="MS", help="of a step; default: as the model's"
    )
    parser.add_argument("--compute-by", choices=["sleep", "spin"], default="sleep")
    parser.add_argument(
        "--scale", type=float, default=25.0, help="gradients and rate are so many times smaller"
    )
    parser.add_argument(
        "--bucket", type=parse_bytes, help="of DDP, scaled like gradients; default: its own sizes"
    )
    parser.add_argument("--ratio", type=float, default=0.01, help="of elements that TopK sends")
    parser.add_argument("--gradients", default="40M", help="bytes, for all_reduce and ratios")
    parser.add_argument("--ratios", default=RATIOS, help="communication to computation over gloo")
    parser.add_argument("--steps", type=int, default=5, help="a round and choice")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plot", type=Path, help="save a plot here")
    parser.add_argument("--backends", help="taken for the sake of run_all.py; see --choices")
    arguments = parser.parse_args()
    for option, known in (("choices", CHOICES), ("models", MODELS)):
        unknown = set(getattr(arguments, option).split(",")) - set(known)
        if unknown:
            parser.error(f"--{option}: unknown: {', '.join(sorted(unknown))}; of {','.join(known)}")
    if arguments.scale < 1:
        parser.error(f"--scale must be 1 or more, not {arguments.scale:g}")
    if not 0 < arguments.ratio <= 1:
        parser.error(f"--ratio must be above 0 and at most 1, not {arguments.ratio:g}")
    if arguments.bucket or arguments.scale > 1:
        arguments.bucket = (arguments.bucket or BUCKET_BYTES) / arguments.scale
    if arguments.hosts == 1:
        arguments.rate = None
    if arguments.rate:
        arguments.rate = f"{parse_rate(arguments.rate) / arguments.scale / 1e6:g}mbit"
    return arguments


def main() -> int:
    arguments = parse_arguments()
    from scaling_view import plot, show

    result = run(__file__, arguments, rank_main, show)
    if result and arguments.plot:
        plot(result, arguments.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
