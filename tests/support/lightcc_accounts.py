"""Books about what the gradients of a drawn program (lightcc_programs.py) have become."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch


class Account:
    """The account of one parameter, in units of its averaged, unscaled gradient."""

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

    def may_be_kept(self, hosts: list[list[int]]) -> Iterator[torch.Tensor]:
        """The sums that may be owed of each element once a step has been skipped: of each pass
        the gradients of the hosts where they were finite, or none, as where it travelled whole."""
        nothing = torch.zeros_like(self.open)
        choices = []
        for given in self.passes:
            whole = sum(given, nothing)
            without = [whole - sum((given[rank] for rank in host), nothing) for host in hosts]
            choices.append([nothing, whole, *without])
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
