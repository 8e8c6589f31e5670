"""ElasticSampler: a dataset shared out among ranks whose number changes within an epoch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from taco_torch.horovod.basics import rank, size


class ElasticSampler(Sampler[int]):
    """Gives each rank its share of the indices that nobody has processed in this epoch.

    Make it a part of the ``TorchState``, call ``record_batch()`` after each batch and
    ``set_epoch()`` at the end of each epoch.

    Args:
        dataset: anything with a length, which does not change.
        shuffle: whether each epoch has an order of its own.
        seed: of that order; the same on all ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.num_replicas = 0
        self.rank = 0
        self.num_samples = 0
        self.total_size = 0
        self.remaining_indices: list[int] = []
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins another epoch, of which nothing was processed. Call it at the end of one: at the
        beginning, an epoch that was interrupted would be processed again."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Every rank has processed a batch of so many samples."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and how many samples of it all ranks together have processed."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there, with the ranks that there are now."""
        self.epoch = int(state_dict["epoch"])
        self.processed_num = int(state_dict["processed_num"])
        self.reset()

    def reset(self) -> None:
        """Shares what remains of the epoch out among the ranks that there are now."""
        self.num_replicas, self.rank = size(), rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """This rank's indices; some come twice where they do not divide evenly."""
        remaining = self.remaining_indices
        missing = self.total_size - len(remaining)
        # More ranks than samples are left: they go round more than once.
        rounds = remaining + [remaining[at % len(remaining)] for at in range(missing)]
        return iter(rounds[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
