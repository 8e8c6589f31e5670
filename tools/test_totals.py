"""How many tests ran, from the JUnit files that ctest and pytest write; the slowest on request.

python3 tools/test_totals.py [--slowest 50] build/logs/results-*.xml
"""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple


class Test(NamedTuple):
    seconds: float
    name: str
    language: str
    outcome: str  # passed, failed or skipped


def outcome_of(case: ElementTree.Element) -> str:
    kinds = {child.tag for child in case}
    if kinds & {"failure", "error"}:
        return "failed"
    # ctest says so of a test that GoogleTest has skipped or that is disabled.
    return "skipped" if "skipped" in kinds or case.get("status") == "notrun" else "passed"


def tests_in(file: Path) -> list[Test]:
    language = "Python" if "pytest" in file.name else "C++"
    tests = []
    for case in ElementTree.parse(file).iter("testcase"):
        place = case.get("classname", "")
        name = case.get("name", "")
        full = name if place in ("", name) else f"{place}::{name}"
        tests.append(Test(float(case.get("time", 0)), full, language, outcome_of(case)))
    return tests


def totals(tests: list[Test]) -> str:
    parts = []
    for language in ("C++", "Python"):
        ran = [test for test in tests if test.language == language]
        counts = [
            f"{number} {outcome}"
            for outcome in ("failed", "skipped")
            if (number := sum(test.outcome == outcome for test in ran))
        ]
        remark = f" ({', '.join(counts)})" if counts else ""
        if ran:
            parts.append(f"{len(ran)} {language} tests{remark}")
    return ", ".join(parts) or "no tests"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--slowest", type=int, default=0)
    parser.add_argument("files", type=Path, nargs="*")
    options = parser.parse_args()
    tests = [test for file in options.files if file.exists() for test in tests_in(file)]
    for test in sorted(tests, reverse=True)[: options.slowest]:
        print(f"{test.seconds:8.2f} s  {test.name}")
    print(totals(tests))


if __name__ == "__main__":
    main()
