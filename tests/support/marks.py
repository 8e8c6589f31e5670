"""Marks that several files give."""

from __future__ import annotations

from typing import Any

import pytest


def whole(*values: object) -> Any:
    """One value of a parametrised test, of which `make test` has others and `make test-all` all."""
    return pytest.param(*values, marks=pytest.mark.whole(instead="the other values"))
