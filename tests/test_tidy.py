"""The house rules of ARCHITECTURE.md, enforced: who may include whom, lengths, registration."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import files, report, text_of, tracked

SOURCES = (".h", ".cc", ".cu", ".py", ".sh")
MAX_LINE = 100
MAX_FILE = 600
MAX_FUNCTION = 70

# Which rooms a file of a room may include from. Arrows point down only.
MAY_INCLUDE = {
    "base": {"base"},
    "kernels": {"kernels", "base"},
    "harp": {"harp", "kernels", "base"},  # kernels: checksums and sinks, docs/decisions/0001
    "edge": {"edge", "harp", "base"},
    "ext": {"ext", "harp", "base"},  # of harp what programs outside see: OF_HARP_FOR_EXT
    "pg": {"pg", "edge", "harp", "kernels", "base"},
    "remote": {"remote", "edge", "harp", "kernels", "base"},  # edge: its torch/ alone
    "device": {"device", "base"},
    "zerocache": {"zerocache", "device", "edge", "kernels", "base"},  # edge: its torch/ alone
}


def rooms_of(room: str, folders: str) -> set[str]:
    return {f"{room}/{folder}" for folder in folders.split()}


# Inner walls: what these folders may include of their own room. The protocol knows no driver, the
# plans know nothing that executes them; a folder not named here may know all its neighbours.
INNER_WALLS = {
    "harp/matching": {"harp", "harp/matching"},
    "harp/session": {"harp", "harp/session"},
    "harp/shm": {"harp", "harp/shm"},
    "harp/self": {"harp", "harp/self"},
    "harp/stat": {"harp", "harp/stat"},
    "harp/drivers/kernel": {"harp", "harp/drivers/kernel"},
    "harp/drivers/frames": {"harp", "harp/drivers/frames"},
    "harp/drivers/xdp": {"harp", "harp/drivers/kernel", "harp/drivers/frames", "harp/drivers/xdp"},
    "harp/drivers/dpdk": {"harp", "harp/drivers/frames", "harp/drivers/dpdk"},
    "pg/planning": {"pg", "pg/planning"},
    "remote": {"remote"},
    "pg/algorithms": {"pg", "pg/planning", "pg/algorithms"},
    "pg/codecs": {"pg", "pg/codecs"},
    "pg/execution": {"pg", "pg/planning", "pg/execution"},
    "pg/lightcc": {"pg", "pg/codecs", "pg/lightcc"},
    "pg/window": {"pg", "pg/planning", "pg/execution", "pg/window"},
    "pg/group": {"pg", "pg/planning", "pg/algorithms", "pg/execution", "pg/window", "pg/group"},
    "zerocache/pages": {"zerocache/pages"},
    "zerocache/disk": {"zerocache/pages", "zerocache/disk"},
    "zerocache/schedule": {"zerocache/pages", "zerocache/schedule"},
    "zerocache/mover": rooms_of("zerocache", "pages disk schedule mover"),
    "zerocache/steps": rooms_of("zerocache", "pages mover steps"),
    "zerocache/ranks": rooms_of("zerocache", "pages mover steps ranks"),
    "zerocache/ranks/zero1": rooms_of("zerocache", "pages steps ranks ranks/zero1"),
    "zerocache/ranks/zero3": rooms_of(
        "zerocache", "pages schedule steps ranks ranks/zero1 ranks/zero3"
    ),
    "zerocache/checkpoint": rooms_of("zerocache", "pages disk ranks checkpoint"),
}
# All that a program outside this tree may include; they are installed with the library harp.
PUBLIC_HEADERS = {"harp/harp.h", "base/clock.h", "base/status.h"}
# The transport stays behind harp.h; the arguments of its commands are those of ext's.
OF_HARP_FOR_EXT = {"harp/harp.h", "harp/tools/arguments.h"}
# Headers that belong to a few files only: pattern of the header, pattern of those files.
TORCH_FACING = r"csrc/(bindings|edge/\w+|(zerocache|remote)/torch/\w+|pg/c10d/(\w+/)?\w+)\.(cc|h)"
RESERVED = [
    (r"(torch|c10|ATen|pybind11|edge)/", TORCH_FACING),
    (r"rte_", r"csrc/harp/drivers/dpdk/\w+\.(cc|h)"),
    (r"liburing", r"csrc/zerocache/disk/io_queue_uring\.cc"),
    (r"cuda", r"csrc/kernels/cuda/.*"),
    (r"condition_variable", r"csrc/base/condition\.h"),  # which says why
]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
# Folders of one machine, spelled so that this file passes its own test.
MACHINE_PATH = re.compile(r"(?<![\w.~/-])/(?:h[o]me|r[o]ot|w[o]rk|U[s]ers)/\w")


# Functions of torch whose tensors are as the program's defaults say, unless they are told.
FACTORIES = {"empty", "empty_strided", "zeros", "ones", "full", "tensor", "arange", "eye", "rand"}


def is_factory(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "torch"
        and node.attr in FACTORIES
    )


def unsaid_defaults(text: str) -> Iterator[int]:
    """Lines that make tensors whose dtype or device torch.set_default_dtype() and
    torch.set_default_device() would decide."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        said = {keyword.arg for keyword in node.keywords}
        called = [node.func, *node.args[:1]]  # the argument of partial(), say
        if any(map(is_factory, called)) and not said >= {"dtype", "device"}:
            yield node.lineno


def include_problems(name: str, text: str) -> list[str]:
    """Problems with the includes of a file `name` that contains `text`."""
    room = name.split("/")[1] if name.count("/") >= 2 else None
    folder = str(Path(name).parent).removeprefix("csrc/")
    neighbours = INNER_WALLS.get(folder, set())
    problems = []
    for quote, header in INCLUDE.findall(text):
        place = str(Path(header).parent)
        if neighbours and place.startswith(f"{room}/") and place not in neighbours:
            problems.append(f"{name}: {folder} may not know {place} ({header})")
        target = header.split("/")[0]
        rooms = quote == '"' and room in MAY_INCLUDE and target in MAY_INCLUDE
        if rooms and target not in MAY_INCLUDE[str(room)]:
            problems.append(f"{name}: {room} may not know {target} ({header})")
        if room == "ext" and target == "harp" and header not in OF_HARP_FOR_EXT:
            problems.append(f"{name}: {header} is not for ext, which knows harp/harp.h")
        if quote == '"' and "/" not in header:
            problems.append(f'{name}: write "{room}/{header}": includes are relative to csrc')
        for pattern, owners in RESERVED:
            if re.match(pattern, header) and not re.fullmatch(owners, name):
                problems.append(f"{name}: {header} belongs to files like {owners} only")
    return problems


def strip_cpp(text: str) -> str:
    """C++ without comments, literals and preprocessor lines; line numbers kept."""
    text = re.sub(
        r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: "\n" * m[0].count("\n"), text, flags=re.M
    )
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'',
        re.DOTALL,
    )
    return pattern.sub(lambda m: "\n" * m[0].count("\n"), text)


def cpp_functions(text: str) -> Iterator[tuple[int, int]]:
    """(first line, lines) of every function body: a brace that follows a parameter list."""
    code = strip_cpp(text)
    stack: list[tuple[bool, int]] = []
    line, statement_start, since = 1, 1, ""
    for character in code:
        if character == "{":
            inside = any(function for function, _ in stack)
            head = since.strip()
            is_function = (
                not inside
                and ")" in head
                and not re.match(r"(namespace|class|struct|enum|union|extern)\b", head)
                and "="
                not in re.sub(
                    r"operator\S+|[<>=!]=|\[=\]|=\s*(default|delete)", "", head.split("(")[0]
                )
            )
            stack.append((is_function, statement_start))
            since = ""
        elif character == "}":
            if stack:
                function, first = stack.pop()
                if function:
                    yield first, line - first + 1
            since = ""
        elif character == ";":
            since = ""
        else:
            if not since.strip() and not character.isspace():
                statement_start = line
            since += character
        if character == "\n":
            line += 1


CONTROLS = re.compile(r"\b(?:if|for|while)\b|\belse\b(?!\s+if\b)|\bdo\b")
BRACKETS = {"(": ")", "{": "}", "[": "]"}


def after_bracket(code: str, at: int) -> int:
    """The place after the bracket that closes the one at `at`."""
    close, depth = BRACKETS[code[at]], 0
    for place in range(at, len(code)):
        depth += (code[place] == code[at]) - (code[place] == close)
        if depth == 0:
            return place + 1
    return len(code)


def body_of(code: str, at: int) -> int:
    """Where the body begins of the if, else, for, while or do that stands at `at`."""
    keyword = re.compile(r"\w+(\s+constexpr)?\s*").match(code, at)
    assert keyword is not None
    place = keyword.end()
    if code.startswith("(", place) and not keyword[0].startswith(("else", "do")):
        place = after_bracket(code, place)
    likely = re.compile(r"\s*(\[\[\w+\]\])?\s*").match(code, place)
    assert likely is not None
    return likely.end()


def after_statement(code: str, at: int) -> int:
    """The place after the statement that begins at `at`."""
    if code.startswith("{", at):
        return after_bracket(code, at)
    keyword = re.compile(r"(if|for|while|do|switch)\b").match(code, at)
    if keyword:
        end = after_statement(code, body_of(code, at))
        follows = re.compile(r"\s*(else\b|while\b)").match(code, end)
        if keyword[1] == "if" and follows and follows[1] == "else":
            return after_statement(code, body_of(code, follows.start(1)))
        if keyword[1] == "do" and follows:
            return code.find(";", end) + 1
        return end
    while at < len(code) and code[at] != ";":
        at = after_bracket(code, at) if code[at] in BRACKETS else at + 1
    return at + 1


def loose_bodies(text: str) -> Iterator[int]:
    """Lines where a body begins that has several lines and no braces."""
    code = strip_cpp(text)
    for keyword in CONTROLS.finditer(code):
        body = body_of(code, keyword.start())
        braced = code.startswith(("{", ";"), body)
        if not braced and "\n" in code[body : after_statement(code, body)]:
            yield code.count("\n", 0, body) + 1


# How a comment or docstring begins whose subject the reader would have to guess.
SUBJECTLESS = re.compile(r'\s*(?://|#|""") ?(?:Of|What|Whoever)\s')


def subjectless_comments(text: str) -> Iterator[int]:
    """Lines where a comment begins with what it does not name."""
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        goes_on = before.lstrip().startswith(("//", "#"))
        if SUBJECTLESS.match(line) and not goes_on:
            yield number
        before = line


# Things of a process that have a lock or are made when first asked for, but in a PerProcess; and
# those that a forked child keeps as they are: memory that is its own as well, threads of DPDK's,
# Python objects, functions without a state.
SHARED_WITH_CHILDREN = re.compile(r"\bstatic [^;{}()]*(=\s*new\b|\bstd::mutex\b)")
KEPT_BY_CHILDREN = {
    "csrc/edge/exposed_memory.cc",
    "csrc/harp/api/registered_memory.cc",
    "csrc/harp/drivers/dpdk/dpdk_devices.cc",
    "csrc/harp/drivers/dpdk/dpdk_eal.cc",
    "csrc/zerocache/disk/real_file_system.cc",
    "csrc/zerocache/torch/lending.cc",
}
LOCK = re.compile(r"\bstd::(?:lock_guard|unique_lock|scoped_lock)\b")
# A scope is guarded by a lock_guard, what is unlocked on the way or waited on by a unique_lock, and
# several mutexes by one scoped_lock; an argument names the type in full.
GOOD_LOCK = re.compile(r"(?<!const )std::\w+ \w+\(|std::unique_lock<std::mutex>&")


def odd_locks(text: str) -> Iterator[int]:
    code = strip_cpp(text)
    for lock in LOCK.finditer(code):
        if not GOOD_LOCK.match(code, lock.start()):
            yield code.count("\n", 0, lock.start()) + 1


def shared_with_children(text: str) -> Iterator[int]:
    code = strip_cpp(text)
    for found in SHARED_WITH_CHILDREN.finditer(code):
        yield code.count("\n", 0, found.start()) + 1


def python_functions(text: str) -> Iterator[tuple[int, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def test_rooms_include_downward_only() -> None:
    report(
        [
            p
            for name in files(".h", ".cc", under="csrc/")
            for p in include_problems(name, text_of(name))
        ]
    )


def private_includes(text: str) -> list[str]:
    """The headers of this tree that a public one may not include."""
    return [h for quote, h in INCLUDE.findall(text) if quote == '"' and h not in PUBLIC_HEADERS]


def test_public_headers_need_nothing_but_each_other() -> None:
    report(
        [
            f"csrc/{name} is public, and {header} is not"
            for name in sorted(PUBLIC_HEADERS)
            for header in private_includes(text_of(f"csrc/{name}"))
        ]
    )
    assert private_includes('#include "harp/nic.h"\n#include "base/clock.h"\n') == ["harp/nic.h"]


def test_lines_fit_the_page() -> None:
    problems = []
    for name in files(*SOURCES, ".pyi", ".cmake", "CMakeLists.txt", "Makefile"):
        for number, line in enumerate(text_of(name).splitlines(), 1):
            if len(line) > MAX_LINE and "http" not in line:
                problems.append(f"{name}:{number}: {len(line)} columns")
    report(problems)


def test_a_file_holds_one_idea() -> None:
    sources = files(*SOURCES)
    counts = {name: len(text_of(name).splitlines()) for name in sources}
    report([f"{name}: {n} lines" for name, n in counts.items() if n > MAX_FILE])


def test_a_function_fits_the_screen() -> None:
    problems = []
    for name in files(".h", ".cc", ".py"):
        functions = python_functions if name.endswith(".py") else cpp_functions
        for first, lines in functions(text_of(name)):
            if lines > MAX_FUNCTION:
                problems.append(f"{name}:{first}: a function of {lines} lines")
    report(problems)


def test_a_body_of_several_lines_has_braces() -> None:
    report(
        [
            f"{name}:{line}: a body of several lines without braces"
            for name in files(".h", ".cc")
            for line in loose_bodies(text_of(name))
        ]
    )


def test_tensors_of_our_own_do_not_take_the_program_s_defaults() -> None:
    report(
        [
            f"{name}:{line}: say dtype and device"
            for name in files(".py", under="src/taco_torch/")
            for line in unsaid_defaults(text_of(name))
        ]
    )
    code = "torch.empty(3)\ntorch.zeros(3, dtype=a, device=b)\npartial(torch.ones, 3, dtype=a)"
    assert list(unsaid_defaults(code)) == [1, 3]


def test_a_comment_names_its_subject() -> None:
    report(
        [
            f"{name}:{line}: begin with the thing that this speaks of"
            for name in files(*SOURCES, ".pyi", ".sed", ".cmake", "CMakeLists.txt", "Makefile")
            for line in subjectless_comments(text_of(name))
        ]
    )


def test_locks_are_spelled_alike() -> None:
    report(
        [
            f"{name}:{line}: write std::lock_guard lock(mutex)"
            for name in files(".h", ".cc")
            for line in odd_locks(text_of(name))
        ]
    )


def test_what_a_process_has_one_of_is_made_anew_in_a_forked_child() -> None:
    report(
        [
            f"{name}:{line}: a forked child may find its lock locked: use PerProcess"
            for name in files(".h", ".cc", under="csrc/")
            if name not in KEPT_BY_CHILDREN
            for line in shared_with_children(text_of(name))
        ]
    )


def test_every_cpp_test_is_registered() -> None:
    lists = "\n".join(text_of(name) for name in files("CMakeLists.txt", ".cmake", under="tests/"))
    problems = [n for n in files("_test.cc", under="tests/") if Path(n).name not in lists]
    report([f"{name} stands in no CMake list: it never runs" for name in problems])


def test_every_core_source_is_built() -> None:
    names = files("CMakeLists.txt", ".cmake", under="csrc/")
    lists = "\n".join(text_of(name) for name in names)
    report(
        [
            f"{n} is compiled nowhere"
            for n in files(".cc", under="csrc/")
            if Path(n).name not in lists
        ]
    )


def test_nothing_names_a_folder_of_one_machine() -> None:
    problems = []
    for name in tracked():
        for number, line in enumerate(text_of(name).splitlines(), 1):
            if MACHINE_PATH.search(line):
                problems.append(f"{name}:{number}: {line.strip()[:80]}")
    report(problems)


def test_environment_table_is_current() -> None:
    pytest.importorskip("taco_torch", reason="the package is not installed")
    from taco_torch import _C

    assert text_of("docs/environment.md") == _C.environment_markdown(), (
        "run: python -m taco_torch.info --env-markdown > docs/environment.md"
    )


# The rules above are detectors: here each one is seen to fire.


def test_a_forbidden_include_is_found() -> None:
    assert include_problems("csrc/harp/x.cc", '#include "pg/operation.h"\n')
    assert include_problems("csrc/base/x.h", '#include "harp/engine/stack.h"\n')
    assert include_problems("csrc/harp/session/session.cc", "#include <torch/types.h>\n")
    assert include_problems("csrc/pg/execution/executor.cc", "#include <c10/util/Exception.h>\n")
    assert include_problems("csrc/harp/session/loss.cc", '#include "harp/drivers/kernel/udp.h"\n')
    assert include_problems("csrc/pg/planning/x.cc", '#include "pg/execution/executor.h"\n')
    assert include_problems("csrc/harp/nic.cc", "#include <rte_ethdev.h>\n")
    assert include_problems("csrc/base/x.cc", "#include <condition_variable>\n")
    assert include_problems("csrc/harp/nic.cc", '#include "nic.h"\n')
    assert include_problems("csrc/pg/group/group.cc", '#include "edge/errors.h"\n')
    assert include_problems("csrc/ext/nccl/comm.cc", '#include "harp/transport.h"\n')


def test_a_permitted_include_is_let_through() -> None:
    assert not include_problems("csrc/pg/c10d/backend.cc", "#include <torch/types.h>\n")
    assert not include_problems("csrc/pg/c10d/backend_bind.cc", "#include <pybind11/pybind11.h>\n")
    assert not include_problems("csrc/pg/c10d/work.cc", '#include "edge/errors.h"\n')
    assert not include_problems("csrc/harp/crc.cc", '#include "kernels/kernels.h"\n')
    assert not include_problems("csrc/ext/nccl/comm.h", '#include "harp/harp.h"\n')


def test_a_long_function_is_measured() -> None:
    body = "  x();\n" * 80
    method = "class B {\n  int g() { return 1; }\n};\n"
    text = f"namespace a {{\nint f(int x) {{\n{body}}}\n{method}}}\n"
    assert list(cpp_functions(text)) == [(2, 82), (85, 1)]
    assert list(cpp_functions('void f() {\n  puts("}{");  // {\n  for (;;) {\n  }\n}\n')) == [
        (1, 5)
    ]


def test_a_body_without_braces_is_found() -> None:
    loose = [
        "if (a)\n  f(b,\n    c);\n",
        "if (a) {\n} else\n  f(b,\n    c);\n",
        "for (;;)\n  if (a)\n    b();\n",
        "while (a) [[likely]]\n  f([] {\n    b();\n  });\n",
        "do\n  f(b,\n    c);\nwhile (a);\n",
        "if constexpr (a)\n  b();\nelse if (c)\n  d(\n    e);\n",
    ]
    for text in loose:
        assert list(loose_bodies(text)), text
    tight = [
        "if (a)\n  b();\nelse\n  c();\n",
        "if (a &&\n    b)\n  c();\n",
        "for (;;) if (a) b();\nd(\n  e);\n",
        "do {\n  a();\n} while (b &&\n         c);\n",
        "if (a) // f(\n  b();\n#define C(x) \\\n  if (x) \\\n    y(a, \\\n      b);\n",
        "auto f = [](int a) {\n  if (a) return b;\n  return c;\n};\n",
    ]
    for text in tight:
        assert not list(loose_bodies(text)), text


def test_an_odd_lock_is_found() -> None:
    assert list(odd_locks("const std::lock_guard<std::mutex> lock(mutex_);\n")) == [1]
    assert list(odd_locks("\nconst std::lock_guard lock(mutex_);\n")) == [2]
    assert list(odd_locks("std::unique_lock<std::mutex> lock(m);\n")) == [1]
    assert not list(odd_locks("std::lock_guard lock(m);\nstd::unique_lock lock(m);\n"))
    assert not list(odd_locks("void f(std::unique_lock<std::mutex>& lock);\n"))


def test_what_children_would_share_is_found() -> None:
    assert list(shared_with_children("\nstatic std::mutex mutex;\n")) == [2]
    assert list(shared_with_children("static T* const only =\n    new T;\n")) == [1]
    assert not list(shared_with_children("static int f();\nauto* t = new T;\nstd::mutex m_;\n"))


def test_a_comment_without_a_subject_is_found() -> None:
    assert list(subjectless_comments("int a;\n// Of a page.\nint b;\n")) == [2]
    assert list(subjectless_comments("def f():\n    " + '"""What it gives."""\n')) == [2]
    assert not list(subjectless_comments("// The bytes\n// Of a page.\nint b;  // Of it\n"))


def test_a_machine_path_is_found() -> None:
    assert MACHINE_PATH.search("cd /" + "home/me/project")
    assert not MACHINE_PATH.search("import os.path; a/home/b")
