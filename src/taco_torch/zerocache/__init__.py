"""ZeroCache: one memory made of device, host and disks, for models larger than any of them.

::

    from taco_torch.zerocache import ZeroCache

    cache = ZeroCache(device="2GiB", host="4GiB", ssd="/data/cache:64GiB")
    model, optimizer = cache.wrap(model, torch.optim.AdamW(model.parameters(), lr=3e-4))

and the training loop stays as it was. docs/zerocache.md takes users of DeepSpeed and FSDP across.
"""

from taco_torch.zerocache.cache import ZeroCache
from taco_torch.zerocache.lion import Lion

__all__ = ["Lion", "ZeroCache"]
