"""Whether there is memory for a copy of what a cache holds."""

from pathlib import Path

from taco_torch.zerocache.sizes import format_bytes


def available_bytes() -> int:
    """Bytes that this machine can still give without swapping; a large number if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 1 << 62
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else 1 << 62


def check_memory_for(count: int, what: str) -> None:
    """Raises MemoryError where copies of ``count`` bytes do not fit into this machine's memory."""
    free = available_bytes()
    if count > free:
        raise MemoryError(
            f"{what} is {format_bytes(count)}, and this machine has {format_bytes(free)} of memory "
            f"left: use ZeroCache.save(directory), which writes it to disk page by page"
        )
