"""Tests that `make test` leaves out stand there in small: one that is marked `whole` names the test
that stands for it, or says why none does.

    @pytest.mark.whole(instead="test_of_the_same_file")
    @pytest.mark.whole(instead="tests/python/test_leaks.py::test_of_another")
    @pytest.mark.whole(instead="Suite.CaseInCpp")
    @pytest.mark.whole(because="no smaller message has such offsets")
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from checkout import files, report, text_of

CASE = re.compile(r"^(?:TYPED_)?TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)
PROGRAM = re.compile(r"\b\w+_test\(\w+ ([^)]*)\)")
MARK = "pytest.mark.whole"


def is_mark(node: ast.AST) -> bool:
    called = node.func if isinstance(node, ast.Call) else node
    return isinstance(called, ast.Attribute) and ast.unparse(called) == MARK


def marks(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Where a file marks something, and what the mark says."""
    tree = ast.parse(text)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if not is_mark(node) or id(node) in called:
            continue
        said = node.keywords if isinstance(node, ast.Call) else []
        yield (
            node.lineno,
            {str(word.arg): ast.literal_eval(word.value) for word in said},
        )


def named_tests(text: str) -> tuple[set[str], set[str]]:
    """Tests of a file that `make test` runs, and those that it leaves out."""
    body = ast.parse(text).body
    everything = any(
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "pytestmark"
        and any(is_mark(part) for part in ast.walk(node.value))
        for node in body
    )
    small: set[str] = set()
    left_out: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            whole = everything or any(is_mark(mark) for mark in node.decorator_list)
            (left_out if whole else small).add(node.name)
    return small, left_out


def cases_left_out() -> dict[str, str]:
    """C++ files whose cases `make test` leaves out, and the case that stands for them."""
    found = {}
    for name in files("CMakeLists.txt", under="tests/"):
        for said in PROGRAM.findall(text_of(name)):
            words = said.split()
            if "whole" in words and "INSTEAD" in words:
                (source,) = (word for word in words if word.endswith("_test.cc"))
                found[str(Path(name).parent / source)] = words[words.index("INSTEAD") + 1]
    return found


def small_cases() -> set[str]:
    left_out = cases_left_out()
    return {
        f"{suite}.{case}"
        for name in files("_test.cc", under="tests/")
        if name not in left_out
        for suite, case in CASE.findall(text_of(name))
    }


def problem(said: dict[str, str], here: str, cases: set[str]) -> str | None:
    """The error of a mark in the file `here` that says this, if any."""
    if len(said) != 1 or not set(said) <= {"instead", "because"}:
        return "say instead=TEST, or because=REASON"
    if "because" in said:
        return None if len(said["because"].split()) > 2 else "say why in a few words"
    if "." in said["instead"] and "::" not in said["instead"]:
        small, name = cases, said["instead"]
    else:
        file, _, name = said["instead"].rpartition("::")
        file = file or here
        small = named_tests(text_of(file))[0] if file in files(".py", under="tests/") else set()
    return None if name in small else f"{said['instead']} is no test that `make test` runs"


def values_left_out(text: str) -> Iterator[int]:
    """Lines with lists of values of which `make test` would have none."""
    if "from marks import whole" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.List | ast.Tuple) and node.elts:
            calls = [isinstance(value, ast.Call) for value in node.elts]
            heads = [ast.unparse(value).split("(")[0] for value in node.elts]
            if all(calls) and set(heads) == {"whole"}:
                yield node.lineno


def test_what_a_short_run_leaves_out_has_something_in_its_place() -> None:
    cases = small_cases()
    sources = [name for name in files(".py", under="tests/") if name != "tests/support/marks.py"]
    found = [(name, line, said) for name in sources for line, said in marks(text_of(name))]
    assert found
    report(
        [
            f"{name}:{line}: {wrong}"
            for name, line, said in found
            if (wrong := problem(said, name, cases)) is not None
        ]
        + [
            f"{name}:{line}: leave `make test` one of these values"
            for name in sources
            for line in values_left_out(text_of(name))
        ]
        + [
            f"{name}: {case} is no case that `make test` runs"
            for name, case in cases_left_out().items()
            if case not in cases
        ]
    )


def test_a_mark_that_names_nothing_is_found() -> None:
    text = f"@{MARK}\ndef test_a(): ...\n@{MARK}(instead='b')\ndef test_b(): ...\n"
    assert [said for _, said in marks(text)] == [{}, {"instead": "b"}]
    here, name = "tests/test_whole.py", "test_a_mark_that_names_nothing_is_found"
    for wrong in (
        "A.C",
        "test_of_a_former_name",
        "tests/test_no_file.py::test_a",
        f"other::{name}",
    ):
        assert problem({"instead": wrong}, here, {"A.B"}), wrong
    assert problem({}, here, {"A.B"})
    assert problem({"because": "slow"}, here, {"A.B"})
    for right in ("A.B", name, f"{here}::{name}"):
        assert problem({"instead": right}, here, {"A.B"}) is None
    assert problem({"because": "it needs a day"}, here, {"A.B"}) is None


def test_a_test_that_is_left_out_itself_stands_for_none() -> None:
    text = f"@{MARK}(because='')\ndef test_a(): ...\ndef test_b(): ...\n"
    assert named_tests(text) == ({"test_b"}, {"test_a"})
    assert named_tests(f"pytestmark = [x, {MARK}(because='')]\n{text}") == (
        set(),
        {"test_a", "test_b"},
    )
    fat_tree = "tests/harp/session/fat_tree_test.cc"
    assert fat_tree in cases_left_out()
    assert not {case for case in small_cases() if case.startswith("FatTree.")}


def test_values_that_are_all_left_out_are_found() -> None:
    head = "from marks import whole\n"
    assert list(values_left_out(f"{head}WORLDS = [whole(1), whole(2)]\n")) == [2]
    assert not list(values_left_out(f"{head}WORLDS = [1, whole(2)]\nmark = [taco_only]\n"))
