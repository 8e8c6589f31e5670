"""The standard error of a rank's native code, for tests that read it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def stderr_into(path: str) -> Iterator[None]:
    """Appends to the file what this process writes to its standard error, by whatever means."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    saved = os.dup(2)
    os.dup2(log, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(log)
        os.close(saved)
