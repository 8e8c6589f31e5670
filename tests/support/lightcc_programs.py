"""Training programs drawn from a seed, and books about what their gradients have become.

A program is a loop of passes over one or two models, of DistributedDataParallel, fully_shard or
none, that steps, skips, drops, accumulates, flushes, saves and resumes as the seed has it.
Gradients are whole numbers, the world is a power of two and optimizers have a rate of 1, so all
sums are exact: what has been applied to a parameter and what is owed to it is what its passes that
count have computed, element by element.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightcc_models import Bag
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

import taco_torch

lightcc = taco_torch.lightcc
KINDS = ("ddp", "hsdp", "manual")


class Account:
    """Of one parameter, in units of its averaged, unscaled gradient."""

    def __init__(self, elements: int, adds: bool) -> None:
        self.adds = adds  # results to what is there; or else what is there goes in with the next
        self.computed = torch.zeros(elements)  # of what counts
        self.open = torch.zeros(elements)  # what its gradient would be without compression
        self.local: list[torch.Tensor] = []  # of that, what each rank has kept to itself
        self.passes: list[list[torch.Tensor]] = []  # what each rank has given to each

    def add(self, gradients: list[torch.Tensor], only_here: bool) -> None:
        """One pass; by rank. ``only_here``: nothing has been exchanged yet."""
        world, nothing = len(gradients), torch.zeros_like(self.open)
        mine = [gradient / world for gradient in gradients]
        if self.local:
            mine = [a + b for a, b in zip(mine, self.local, strict=True)]
        exchanged = self.open - sum(self.local, nothing)
        self.open = exchanged + sum(mine, nothing)
        self.local = mine if only_here else []
        if not only_here:
            carried = nothing if self.adds else exchanged / world
            self.passes.append([given.nan_to_num(posinf=0.0) + carried for given in mine])

    def close(self) -> None:
        self.open = torch.zeros_like(self.open)
        self.local, self.passes = [], []

    def may_be_kept(self) -> Iterator[torch.Tensor]:
        """What may be owed once a step has been skipped: of each pass what the ranks had whose
        gradients were finite, or nothing, as where it travelled whole."""
        nothing = torch.zeros_like(self.open)
        choices = [
            [nothing, whole := sum(given, nothing), *(whole - mine for mine in given)]
            for given in self.passes
        ]
        if self.adds:
            for chosen in itertools.product(*choices):
                yield sum(chosen, nothing)
        else:
            yield nothing
            for one in choices:
                yield from one


def local(tensor: torch.Tensor) -> torch.Tensor:
    whole: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach().reshape(-1)


class Loop(nn.Module):
    """A model whose gradients ``all_reduce_gradients()`` averages."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Any) -> torch.Tensor:
        loss: torch.Tensor = self.module(inputs)
        return loss


class Trained:
    """A model, its optimizers and its books."""

    def __init__(self, program: Program, name: str, sizes: list[int]) -> None:
        self.program, self.name, self.sizes = program, name, sizes
        draw = program.draw
        self.may_be_unused = program.kind != "hsdp" and draw.random() < 0.5
        self.view = draw.random() < 0.5
        self.bucket_mb = draw.choice([0.0005, 0.001, 25])
        self.accounts = [Account(n, program.kind == "hsdp") for n in sizes]
        self.model = self.made(Bag(sizes))
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
        fresh = Bag(self.sizes)
        with torch.no_grad():
            for new, old in zip(fresh.parameters(), self.parameters, strict=True):
                new.copy_(local(old))
        self.model = self.made(fresh)
        self.optimize()


class Program:
    """One seed's. ``run()`` returns what went wrong: nothing."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind, self.seed = kind, seed
        self.draw = random.Random(f"{kind} {seed}")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.numbers = 0  # of passes, for their gradients
        self.log: list[str] = []
        if kind == "hsdp":
            self.mesh = init_device_mesh(
                "cpu", (2, self.world // 2), mesh_dim_names=("replicate", "shard")
            )
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
        return [self.draw.choice([4, 30, 100, 250]) for _ in range(self.draw.randrange(1, 5))]

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
            wrong = self.end_step(bad) or (self.chance(0.4) and self.check()) or self.between()
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
        if one.may_be_unused and self.chance(0.6):
            for place in range(len(drawn) - (1 if bad else 0)):
                alike = self.kind == "manual" or self.chance(0.6)
                out = self.chance(0.5)
                for rank in range(self.world):
                    if out if alike else self.chance(0.5):
                        drawn[place][rank] = None
            if all(g is None for by_rank in drawn for g in by_rank):
                drawn[0] = [torch.ones(one.sizes[0]) for _ in range(self.world)]
            for rank in range(self.world):  # a rank has something to do
                if all(by_rank[rank] is None for by_rank in drawn):
                    drawn[0] = [torch.ones(one.sizes[0]) for _ in range(self.world)]
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

    def end_step(self, bad: bool) -> str:
        """What becomes of the gradients of each optimizer."""
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
                    self.step(optimizer)
                    wrong = wrong or self.settle(one, places, found)
                if fate == "drop" or self.scaler is not None or found or self.chance(0.8):
                    self.zero(one, optimizer, places, fate)
                elif fate == "step":
                    self.leave(one, places)
        if stepped and self.scaler is not None:
            self.scaler.update()
        return wrong

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.scaler is None:
            optimizer.step()
            return
        if self.chance(0.5):
            self.scaler.unscale_(optimizer)
        self.scaler.step(optimizer)

    def settle(self, one: Trained, places: list[int], skipped: bool) -> str:
        for place in places:
            account = one.accounts[place]
            if not skipped:
                account.computed += account.open
        if skipped:
            return self.settle_skipped(one, places)
        return ""

    def settle_skipped(self, one: Trained, places: list[int]) -> str:
        """Of what a skipped step was made of, ranks whose gradients were finite may owe theirs."""
        owed = self.owed(one)
        for place in places:
            account, parameter = one.accounts[place], one.parameters[place]
            have = owed[place] - local(parameter) - account.computed
            kept = next((way for way in account.may_be_kept() if torch.equal(way, have)), None)
            if kept is None:
                return f"after a skipped step {one.name}[{place}] is off"
            account.computed += kept
            account.close()
        return ""

    def leave(self, one: Trained, places: list[int]) -> None:
        """What has been applied, and is not zeroed, is part of the next gradient."""
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
        if self.kind == "manual":
            return ""
        if self.chance(0.08):
            self.settings = self.drawn_settings()
            self.note(f"settings {self.settings}")
            self.compress()
        if self.chance(0.08) and not self.contained:
            self.resume()
        return ""

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
    """What went wrong, by program."""
    wrong = []
    for seed in seeds:
        try:
            text = Program(kind, seed).run()
        except Exception as error:
            raise RuntimeError(f"the program {kind} {seed} failed: {error}") from error
        if text:
            wrong.append(text)
    return wrong


def grown(kind: str, steps: int, elements: int) -> float:
    """By how many gradients this process has grown since the first tenth of the steps, of which
    some accumulate, some are thrown away and some are skipped."""
    program = Program(kind, 0)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=50)
    program.kind = kind
    one = Trained(program, "large", [elements, elements // 2])
    if kind != "manual":
        lightcc.compress(one.model, "topk", ratio=0.01, threshold=0, grad_scaler=scaler)
    optimizer = torch.optim.SGD(one.parameters, lr=1e-3)
    gradients = [torch.ones(n) for n in one.sizes]
    first = 0
    for step in range(steps):
        if step == steps // 10:
            first = resident_bytes()
        gradients[0][0] = float("inf") if step % 7 == 3 else 1.0
        scaler.scale(one.model(gradients)).backward()
        if kind == "manual":
            lightcc.all_reduce_gradients(one.parameters, compression="topk", threshold=0)
        if step % 5 == 1:
            continue
        if step % 11 != 2:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
    return (resident_bytes() - first) / (4 * elements)


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
