"""torchft's own tests of its groups, over taco: three ranks as threads, each collective, and again
after a rank has gone and the group has been configured anew."""

from __future__ import annotations

import unittest
from datetime import timedelta
from typing import Any

from torchft import process_group_test
from torchft_group import ProcessGroupTaco


class OverTaco(process_group_test.MultiPgBaseTest):
    WORLD_SIZE = 3

    @classmethod
    def _create_pg(cls, backend: str) -> ProcessGroupTaco:
        return ProcessGroupTaco(timeout=timedelta(seconds=30))

    def assertRaisesRegex(self, kind: Any, pattern: str, *arguments: Any, **options: Any) -> Any:
        """Where other backends time out or lose a connection, taco says who has left."""
        if "Connection closed by peer" in pattern:
            pattern += "|it has left"
        return super().assertRaisesRegex(kind, pattern, *arguments, **options)  # noqa: PT027


def add_tests() -> None:
    for collective in process_group_test._ALL_COLLECTIVES:
        for kind in ("parallel", "with_resiliency"):  # in this order, which is that of their names

            def run(self: Any, kind: str = kind, collective: str = collective) -> None:
                getattr(self, f"_run_{kind}")(collective)

            setattr(OverTaco, f"test_{kind}_{collective}", run)


if __name__ == "__main__":
    add_tests()
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(OverTaco)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    raise SystemExit(not result.wasSuccessful())
