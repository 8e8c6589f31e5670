"""Training programs drawn from a seed, and books about what their gradients have become.

A program is a loop of passes over one or two models, of DistributedDataParallel, fully_shard or
none, whose parameters lie in any order, that steps, skips, drops, accumulates, freezes, flushes,
saves, resumes and has ranks run out of inputs as the seed has it.
Gradients are whole numbers, the world is a power of two and optimizers have a rate of 1, so all
sums are exact: what has been applied to a parameter and what is owed to it is what its passes that
count have computed, element by element.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import random
from collections import deque
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightcc_accounts import Account, local
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

import taco_torch

lightcc = taco_torch.lightcc
# Programs of two ranks, each on a host of its own, and of two on each of two hosts.
KINDS_OF_TWO = ("ddp", "manual")
KINDS_OF_FOUR = ("hosts", "hsdp")  # "hosts" is DistributedDataParallel, too
SHAPES = {4: (1, 2, 1, 2), 30: (5, 3, 2, 1), 100: (5, 5, 2, 2), 250: (10, 5, 5, 1)}


class Loop(nn.Module):
    """A model whose gradients ``all_reduce_gradients()`` averages."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Any) -> torch.Tensor:
        loss: torch.Tensor = self.module(inputs)
        return loss


class Shaped(nn.Module):
    """Parameters whose gradients are the inputs, and whose elements lie as ``order`` says: in a
    row, row by row of several dimensions, channels last, or transposed."""

    def __init__(self, sizes: list[int], orders: list[str]) -> None:
        super().__init__()
        made = [self.lying(n, order) for n, order in zip(sizes, orders, strict=True)]
        self.weights = nn.ParameterList(nn.Parameter(one) for one in made)

    @staticmethod
    def lying(elements: int, order: str) -> torch.Tensor:
        if order == "row":
            return torch.zeros(elements)
        shape = SHAPES.get(elements, (elements // 4, 2, 1, 2))
        if order == "channels last":
            return torch.zeros(shape).contiguous(memory_format=torch.channels_last)
        if order == "transposed":
            return torch.zeros(shape[2] * shape[3], shape[0] * shape[1]).t()
        return torch.zeros(shape)

    def forward(self, gradients: list[torch.Tensor | None]) -> torch.Tensor:
        terms = [
            (weight * gradient.view(weight.shape)).sum()
            for weight, gradient in zip(self.weights, gradients, strict=True)
            if gradient is not None
        ]
        return torch.stack(terms).sum()


class Trained:
    """A model, its optimizers and its books."""

    def __init__(self, program: Program, name: str, sizes: list[int]) -> None:
        self.program, self.name, self.sizes = program, name, sizes
        draw = program.draw
        self.may_be_unused = program.kind != "hsdp" and draw.random() < 0.5
        self.view = draw.random() < 0.5
        self.bucket_mb = draw.choice([0.0005, 0.001, 25])
        self.accounts = [Account(n, program.kind == "hsdp") for n in sizes]
        orders = ["row", "rows"]
        if program.kind != "hsdp":  # fully_shard takes no others
            orders += ["channels last", "transposed"]
        self.orders = [draw.choice(orders) for _ in sizes]
        self.frozen: set[int] = set()
        self.model = self.made(Shaped(sizes, self.orders))
        self.optimize()

    def made(self, bag: nn.Module) -> nn.Module:
        if self.program.kind == "manual":
            return Loop(bag)
        if self.program.kind == "hsdp":
            fully_shard(bag, mesh=self.program.mesh)
            return bag
        return DistributedDataParallel(
            bag,
            find_unused_parameters=self.may_be_unused,
            gradient_as_bucket_view=self.view,
            bucket_cap_mb=self.bucket_mb,
        )

    def optimize(self) -> None:
        parameters = list(self.model.parameters())
        two = len(parameters) > 1 and self.program.draw.random() < 0.5
        cut = self.program.draw.randrange(1, len(parameters)) if two else len(parameters)
        parts = [range(cut), range(cut, len(parameters))]
        self.optimizers = [
            (torch.optim.SGD([parameters[i] for i in part], lr=1.0), list(part))
            for part in parts
            if part
        ]

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def replace(self) -> None:
        """By a model that goes on from a checkpoint."""
        fresh = Shaped(self.sizes, self.orders)
        with torch.no_grad():
            for new, old in zip(fresh.parameters(), self.parameters, strict=True):
                new.copy_(local(old).view(new.shape))
        self.model = self.made(fresh)
        self.optimize()


@functools.cache
def mesh_of(shape: tuple[int, int]) -> DeviceMesh:
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))


class Program:
    """One seed's. ``run()`` returns what went wrong: nothing."""

    def __init__(self, kind: str, seed: int, larger: int = 1) -> None:
        self.kind, self.seed, self.larger = kind, seed, larger
        self.draw = random.Random(f"{kind} {seed}")
        self.copying = random.Random(f"copies of {kind} {seed}")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.numbers = 0  # of passes, for their gradients
        self.log: deque[str] = deque(maxlen=2000)
        self.hosts = [[rank] for rank in range(self.world)]
        if kind in KINDS_OF_FOUR:
            self.hosts = [[0, 1], [2, 3]]
        if kind == "hsdp":
            self.mesh = mesh_of(self.draw.choice([(2, 2), (4, 1)]))
        self.scaler: Any = None
        if self.chance(0.5):
            self.scaler = torch.amp.GradScaler(
                "cpu", init_scale=2.0 ** self.draw.randrange(0, 8), growth_interval=3
            )
        names = ["one", "two"] if self.chance(0.6) else ["one"]
        self.trained = [Trained(self, name, self.sizes()) for name in names]
        self.contained = kind == "hsdp" and self.chance(0.4)
        self.container = nn.ModuleList(one.model for one in self.trained)
        self.settings = self.drawn_settings()
        if kind != "manual":
            self.compress()

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def sizes(self) -> list[int]:
        some = range(self.draw.randrange(1, 5))
        return [self.draw.choice(list(SHAPES)) * self.larger for _ in some]

    def drawn_settings(self) -> dict[str, Any]:
        if self.chance(0.15):
            return {"compression": "none"}
        return {
            "compression": "topk",
            "ratio": self.draw.choice([0.02, 0.1, 0.3]),
            "values": self.draw.choice(["float32", "float16"]),
            "threshold": self.draw.choice([0, 0, 500]),
        }

    def compress(self) -> None:
        named = {} if self.kind == "manual" or self.chance(0.5) else {"grad_scaler": self.scaler}
        models = [one.model for one in self.trained]
        for model in [self.container] if self.contained else models:
            lightcc.compress(model, **self.settings, **named)

    # -- what may happen

    def run(self, steps: int = 14) -> str:
        for step in range(steps):
            self.note(f"-- {step}")
            passes = 1 + self.draw.choice([0, 0, 0, 1, 2])
            taking_part = [one for one in self.trained if self.chance(0.7)] or self.trained
            bad = self.scaler is not None and self.chance(0.2)
            for number in range(passes):
                last = number == passes - 1
                self.backward(taking_part, not last and self.chance(0.4), bad and last)
            if self.chance(0.1):
                self.flush(taking_part)
            wrong = self.end_step() or (self.chance(0.4) and self.check()) or self.between()
            if wrong:
                return f"{self.kind} {self.seed}: {wrong}\n" + "\n".join(self.log)
        wrong = self.check()
        return f"{self.kind} {self.seed}: {wrong}\n" + "\n".join(self.log) if wrong else ""

    def note(self, text: str) -> None:
        self.log.append(text)

    def backward(self, models: list[Trained], only_here: bool, bad: bool) -> None:
        """Through all of them. ``only_here``: nothing is exchanged yet."""
        losses = []
        with contextlib.ExitStack() as stack:
            for one in models:
                gradients = self.gradients(one, bad and one is models[-1])
                self.keep_to_itself(one, only_here, stack)
                losses.append(one.model([mine[self.rank] for mine in gradients]))
                for account, by_rank in zip(one.accounts, gradients, strict=True):
                    used = [torch.zeros_like(account.open) if g is None else g for g in by_rank]
                    account.add(used, only_here)
            loss = torch.stack(losses).sum()
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        self.note(f"backward {[m.name for m in models]} only here {only_here} bad {bad}")
        if self.kind == "manual" and not only_here:
            for one in models:
                lightcc.all_reduce_gradients(one.parameters, fusion_bytes=600, **self.settings)
        if self.copying.random() < 0.2:
            self.copy_gradients(models)

    def copy_gradients(self, models: list[Trained]) -> None:
        """As programs do that clip or scale them by hand."""
        self.note("  copies of gradients")
        for one in models:
            for parameter in one.parameters:
                if parameter.grad is not None:
                    parameter.grad = parameter.grad.clone()

    def gradients(self, one: Trained, bad: bool) -> list[list[torch.Tensor | None]]:
        """By parameter and rank; None: not used."""
        self.numbers += 1
        generator = torch.Generator().manual_seed(1000 * self.seed + self.numbers)
        drawn: list[list[torch.Tensor | None]] = []
        for n in one.sizes:
            whole = torch.randint(-50, 51, (self.world, n), generator=generator).float()
            drawn.append(list(whole))
        if bad:
            infinite = drawn[-1][self.draw.randrange(self.world)]
            assert infinite is not None
            infinite[0] = float("inf")
        for place in one.frozen:
            drawn[place] = [None] * self.world
        if one.may_be_unused and self.chance(0.6):
            for place in set(range(len(drawn) - (1 if bad else 0))) - one.frozen:
                alike = self.kind == "manual" or self.chance(0.6)
                out = self.chance(0.5)
                for rank in range(self.world):
                    if out if alike else self.chance(0.5):
                        drawn[place][rank] = None
            for rank in range(self.world):  # a rank has something to do
                if all(by_rank[rank] is None for by_rank in drawn):
                    drawn[-1] = [torch.ones(one.sizes[-1]) for _ in range(self.world)]
        self.note(f"  {one.name} used {[[g is not None for g in by_rank] for by_rank in drawn]}")
        return drawn

    def keep_to_itself(self, one: Trained, only_here: bool, stack: contextlib.ExitStack) -> None:
        if isinstance(one.model, DistributedDataParallel) and only_here:
            stack.enter_context(one.model.no_sync())
        if isinstance(one.model, FSDPModule):
            one.model.set_requires_gradient_sync(not only_here)

    def flush(self, models: list[Trained]) -> None:
        if self.kind == "manual" or self.contained:
            return
        self.note(f"flush {[m.name for m in models]}")
        for one in models:
            lightcc.flush(one.model)

    def end_step(self) -> str:
        """Steps, drops or leaves the gradients of each optimizer. Returns an error, or nothing."""
        stepped, wrong = False, ""
        for one in self.trained:
            for optimizer, places in one.optimizers:
                fate = self.draw.choice(["step", "step", "step", "drop", "leave"])
                if self.scaler is not None and fate == "leave":
                    fate = "drop"  # what is left would have another scale
                found = any(not bool(torch.isfinite(one.accounts[i].open).all()) for i in places)
                if found and fate == "leave":
                    fate = "drop"
                has = any(one.parameters[i].grad is not None for i in places)
                self.note(f"{one.name} {places}: {fate} found {found} has {has}")
                if fate == "step" and has:
                    stepped = True
                    self.step(optimizer, self.chance(0.5))
                    wrong = wrong or self.close_accounts(one, places, found)
                if fate == "drop" or self.scaler is not None or found or self.chance(0.8):
                    self.zero(one, optimizer, places, fate)
                elif fate == "step":
                    self.leave(one, places)
        if stepped and self.scaler is not None:
            self.scaler.update()
        return wrong

    def step(self, optimizer: torch.optim.Optimizer, unscales: bool) -> None:
        if self.scaler is None:
            optimizer.step()
            return
        if unscales:
            self.scaler.unscale_(optimizer)
        self.scaler.step(optimizer)

    def close_accounts(self, one: Trained, places: list[int], skipped: bool) -> str:
        for place in places:
            account = one.accounts[place]
            if not skipped:
                account.computed += account.open
        if skipped:
            return self.close_skipped(one, places)
        return ""

    def close_skipped(self, one: Trained, places: list[int]) -> str:
        """Ranks whose gradients were finite may owe what a skipped step was made of."""
        owed = self.owed(one)
        for place in places:
            account, parameter = one.accounts[place], one.parameters[place]
            have = owed[place] - local(parameter) - account.computed
            known = torch.zeros_like(have, dtype=torch.bool)
            for way in account.may_be_kept(self.hosts):
                known |= way == have
            if not bool(known.all()):
                return f"after a skipped step {one.name}[{place}] is off"
            account.computed += have
            account.close()
        return ""

    def leave(self, one: Trained, places: list[int]) -> None:
        """Gradients that were applied and are not zeroed become part of the next."""
        for place in places:
            gradient, account = one.parameters[place].grad, one.accounts[place]
            account.close()
            if gradient is not None:
                account.open = local(gradient).clone()

    def zero(
        self, one: Trained, optimizer: torch.optim.Optimizer, places: list[int], fate: str
    ) -> None:
        """In one of the ways in which programs do."""
        how = self.draw.choice(["optimizer", "in place", "none", "by hand"])
        self.note(f"  zero {how}")
        if how == "by hand" and fate != "step":
            how = "none"
        if how in ("optimizer", "in place"):
            optimizer.zero_grad(set_to_none=how == "optimizer")
        for place in places:
            gradient = one.parameters[place].grad
            if how == "by hand" and gradient is not None:
                gradient.zero_()
            elif how == "none":
                one.parameters[place].grad = None
            one.accounts[place].close()

    def between(self) -> str:
        """Steps."""
        for one in self.trained:
            if self.chance(0.1) and (one.may_be_unused or self.kind == "hsdp"):
                self.freeze(one)
        if self.kind == "manual":
            return ""
        if isinstance(self.trained[0].model, DistributedDataParallel) and self.chance(0.1):
            wrong = self.run_out(self.draw.choice(self.trained))
            if wrong:
                return wrong
        if self.chance(0.08):
            self.settings = self.drawn_settings()
            self.note(f"settings {self.settings}")
            self.compress()
        if self.chance(0.08) and not self.contained:
            self.resume()
        return ""

    def freeze(self, one: Trained) -> None:
        """Other parameters than until now; never the last one, which passes always use."""
        before, some = one.frozen, range(len(one.sizes) - 1)
        one.frozen = {place for place in some if self.chance(0.4)}
        self.note(f"freeze of {one.name} {sorted(one.frozen)}")
        for place in one.frozen ^ before:
            one.parameters[place].requires_grad_(place not in one.frozen)
            one.parameters[place].grad = None
            one.accounts[place].close()

    def run_out(self, one: Trained) -> str:
        """Inputs end, on some ranks earlier than on others."""
        for optimizer, _ in one.optimizers:
            optimizer.zero_grad()
        for account in one.accounts:
            account.close()
        counts = [self.draw.randrange(1, 5) for _ in range(self.world)]
        self.note(f"join of {one.name}: {counts}")
        with one.model.join():
            for number in range(max(counts)):
                self.step_in_join(one, number, counts)
        self.note("joined")
        self.even_out(one, counts)
        return self.check()

    def step_in_join(self, one: Trained, number: int, counts: list[int]) -> None:
        """A pass, and what becomes of it; without the model on ranks that have run out."""
        has_inputs = [number < count for count in counts]
        mine = has_inputs[self.rank]
        # A step skipped while all have inputs may be owed or not, and no rank could find out which.
        bad = self.scaler is not None and not all(has_inputs) and self.chance(0.3)
        gradients = self.gradients(one, False)
        last = gradients[-1][has_inputs.index(True)]
        if bad and last is not None:
            last[0] = float("inf")
        for account, by_rank in zip(one.accounts, gradients, strict=True):
            nothing = torch.zeros_like(account.open)
            used = [
                g if has and g is not None else nothing
                for g, has in zip(by_rank, has_inputs, strict=True)
            ]
            account.add(used, False)
        if mine:
            loss = one.model([by_rank[self.rank] for by_rank in gradients])
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        stepped = False
        for optimizer, places in one.optimizers:
            found = any(not bool(torch.isfinite(one.accounts[i].open).all()) for i in places)
            steps = number == 0 or self.chance(0.7)
            self.note(f"  {number} {places}: step {steps} found {found} of {has_inputs}")
            if mine and steps and any(one.parameters[i].grad is not None for i in places):
                stepped = True
                self.step(optimizer, number % 2 == 0)
            if mine:
                optimizer.zero_grad()
            for place in places:
                if steps and not found:
                    one.accounts[place].computed += one.accounts[place].open
                one.accounts[place].close()
        if stepped and self.scaler is not None:
            self.scaler.update()

    def even_out(self, one: Trained, counts: list[int]) -> None:
        """The scale of the loss, as programs have to."""
        if self.scaler is None:
            return
        told = [self.scaler.state_dict()]
        dist.broadcast_object_list(told, counts.index(max(counts)))
        self.scaler.load_state_dict(told[0])

    def resume(self) -> None:
        self.note("resume")
        for one in self.trained:
            state = lightcc.state_dict(one.model)
            if self.chance(0.5):
                state["exact"] = {}
            one.replace()
            for account in one.accounts:
                account.close()
            self.compress_resumed(one, state)

    def compress_resumed(self, one: Trained, state: dict[str, Any]) -> None:
        lightcc.compress(one.model, **self.settings)
        lightcc.load_state_dict(state, one.model)
        for place in one.frozen:  # not before: DDP would never reduce them
            one.parameters[place].requires_grad_(False)

    # -- the books

    def owed(self, one: Trained) -> list[torch.Tensor]:
        if self.kind == "manual":
            return self.owed_by_loops(one)
        model = self.container if self.contained else one.model
        residuals = lightcc.state_dict(model)["residuals"]
        prefix = f"{self.trained.index(one)}." if self.contained else ""
        return [local(residuals[f"{prefix}weights.{i}"]) for i in range(len(one.sizes))]

    def owed_by_loops(self, one: Trained) -> list[torch.Tensor]:
        from taco_torch.lightcc import manual

        total = [torch.zeros(n) for n in one.sizes]
        for loop in manual._loops.get(one.parameters[0], ()):
            scale = loop.native.scale
            for place in range(len(one.sizes)):
                owed = loop.native.owed(place, place + 1, as_saved=True) / scale
                loop.native.average_exactly(owed).wait()
                total[place] += owed
        return total

    def check(self) -> str:
        for one in self.trained:
            for place, (owed, account) in enumerate(zip(self.owed(one), one.accounts, strict=True)):
                off = owed - local(one.parameters[place]) - account.computed
                if bool((off != 0).any()):
                    return (
                        f"{one.name}[{place}]: mass off {float(off.abs().sum())} of "
                        f"{float(account.computed.abs().sum())}, {int((off != 0).sum())} elements"
                    )
        return ""


def run_programs(kind: str, seeds: range) -> list[str]:
    """The errors of these programs."""
    wrong = []
    for seed in seeds:
        try:
            text = Program(kind, seed).run()
        except Exception as error:
            raise RuntimeError(f"the program {kind} {seed} failed: {error}") from error
        if text:
            wrong.append(text)
    return wrong


def grown(kind: str, seed: int) -> int:
    """By how many bytes this process has grown after 500 steps, since it had done 50."""
    program = Program(kind, seed, larger=400)
    assert not program.run(50)
    first = resident_bytes()
    assert not program.run(450)
    return resident_bytes() - first


def resident_bytes() -> int:
    """Without what nobody has any more."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
