"""The pages keep their word: every file, folder, link, target and variable they name exists."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from checkout import TOP, files, report, text_of, tracked

# Where a path on a page or in a comment may start.
ROOTS = ("", "csrc", "src", "docs", "tests")
# Made by a build or a run; and where torch's headers lie.
ELSEWHERE = ("out/", "build/", ".venv/", "torch/", "c10/")
ENDING = r"(?:h|cc|py|pyi|md|sh|txt|cmake)"
# A path below a folder of ours, wherever it stands: in backquotes, bare, or in a command.
ROOMS = "docs|tests|benchmarks|examples|tools|csrc|base|kernels|device|harp|edge|pg|zerocache|src"
PATH = re.compile(rf"(?<![\w./-])((?:{ROOMS})/[\w./-]*\.{ENDING})\b")
QUOTED_PATH = re.compile(rf"`([\w./-]+/[\w.-]+\.{ENDING})`")
# A file's name without its folder.
BARE_NAME = re.compile(rf"(?<![\w./-])([\w-]+\.{ENDING})\b(?![/-])")
QUOTED_FOLDER = re.compile(r"`([\w.-]+(?:/[\w.-]+)*)/`")
LINK = re.compile(r"\]\(([^)#\s]+)")
LINK_WITHIN = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
CODE = re.compile(r"^```$(.*?)^```$|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
TARGET = re.compile(r"(?:^|&& )make ([a-z-]+)", re.MULTILINE)
VARIABLE = re.compile(r"\bTACO_[A-Z_]*[A-Z]\b")
# A test of the core's, as docs/harp.md names those that show what it says.
CPP_TEST = re.compile(r"`([A-Z]\w+\.\w+)`")


def exists(name: str, folder: str = "") -> bool:
    places = [*ROOTS, folder]
    return f"{name}/".startswith(ELSEWHERE) or any((TOP / p / name).exists() for p in places)


def unknown_paths(text: str, folder: str = "") -> set[str]:
    """Those that exist neither where paths start nor below `folder`."""
    named = {*PATH.findall(text), *QUOTED_PATH.findall(text)}
    return {name for name in named if not exists(name, folder)}


def unclear_names(text: str, folder: str = "") -> set[str]:
    """Names without a folder that no file has, or several; one at the top or beside is clear."""
    count = Counter(Path(name).name for name in tracked())
    named = set(BARE_NAME.findall(text))
    beside = {name for name in named if any((TOP / p / name).exists() for p in ("", folder))}
    return {name for name in named - beside if count[name] != 1}


def unknown_folders(text: str) -> set[str]:
    return {name for name in QUOTED_FOLDER.findall(text) if not exists(name)}


def dead_links(page: str, text: str) -> set[str]:
    links = {link for link in LINK.findall(text) if not link.startswith(("http:", "https:"))}
    return {link for link in links if not (TOP / page).parent.joinpath(link).exists()}


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = HEADING.findall(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return {re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-") for name in headings}


def links_to_no_heading(page: str, text: str) -> set[str]:
    def leads(file: str, anchor: str) -> bool:
        target = (TOP / page).parent.joinpath(file) if file else TOP / page
        return not target.exists() or anchor in anchors(target.read_text())

    links = [found for found in LINK_WITHIN.findall(text) if not found[0].startswith("http")]
    return {f"{file}#{anchor}" for file, anchor in links if not leads(file, anchor)}


def unknown_targets(text: str) -> set[str]:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    named = {name for code in CODE.findall(text) for name in TARGET.findall("\n".join(code))}
    return named - targets


def unknown_tests(text: str) -> set[str]:
    start = re.compile(r"^TEST\w*\((\w+), (\w+)\)", re.MULTILINE)
    sources = [text_of(name) for name in files(".cc", under="tests/")]
    return set(CPP_TEST.findall(text)) - {
        f"{suite}.{case}" for source in sources for suite, case in start.findall(source)
    }


def known_variables() -> set[str]:
    """Users' variables are in the table; options of the build and of the tests stand where used."""
    build = [name for name in tracked() if name.endswith(("CMakeLists.txt", ".sh"))]
    tables = "".join(text_of(name) for name in ["csrc/base/env_table.cc", *build])
    return set(VARIABLE.findall(tables))


def test_pages_name_files_and_folders_that_exist() -> None:
    problems = []
    for page in files(".md"):
        text = text_of(page)
        missing = unknown_paths(text) | unknown_folders(text) | dead_links(page, text)
        missing |= links_to_no_heading(page, text)
        problems += [f"{page}: {name} does not exist" for name in sorted(missing)]
    report(problems)


def test_what_protects_has_a_test_that_exists() -> None:
    text = text_of("docs/harp.md")
    assert len(set(CPP_TEST.findall(text))) > 20
    report(sorted(f"docs/harp.md: there is no {name}" for name in unknown_tests(text)))


def test_pages_name_targets_and_variables_that_exist() -> None:
    known = known_variables()
    problems = []
    for page in files(".md"):
        text = text_of(page)
        problems += [f"{page}: there is no make {name}" for name in unknown_targets(text)]
        problems += [f"{page}: nothing reads {v}" for v in set(VARIABLE.findall(text)) - known]
    report(problems)


def test_pages_name_a_file_without_its_folder_only_where_one_has_that_name() -> None:
    problems = []
    for page in ["ARCHITECTURE.md", *files(".md", under="docs/")]:
        unclear = sorted(unclear_names(text_of(page), str(Path(page).parent)))
        problems += [f"{page}: {name} does not exist, or in several places" for name in unclear]
    report(problems)


def test_comments_name_files_that_exist() -> None:
    problems = []
    for name in files(".h", ".cc", ".py", ".pyi", ".sh", ".cmake", "CMakeLists.txt", "Makefile"):
        if name.startswith("tests/test_"):  # these name files that must not exist
            continue
        missing = unknown_paths(text_of(name), str(Path(name).parent))
        problems += [f"{name}: {path} does not exist" for path in missing]
    report(problems)


def test_every_step_of_the_gradient_leads_to_its_file() -> None:
    text = text_of("ARCHITECTURE.md")
    steps = re.split(r"^\*\*(?=\d+\. )", text, flags=re.MULTILINE)[1:]
    assert [int(step.split(".")[0]) for step in steps] == list(range(1, 11))
    last = steps.pop().split("\n\n")[0]
    report([f"step {step[:30]!r} names no file" for step in [*steps, last] if "`" not in step])


def test_every_page_is_reachable_from_the_readme() -> None:
    linked, pending = set(), ["README.md"]
    while pending:
        page = pending.pop()
        if page in linked:
            continue
        linked.add(page)
        text = text_of(page)
        for name in {*LINK.findall(text), *PATH.findall(text), *QUOTED_PATH.findall(text)}:
            for start in (TOP / page).parent, TOP, TOP / "docs":
                if name.endswith(".md") and (start / name).exists():
                    pending.append(str((start / name).resolve().relative_to(TOP)))
    apart = [p for p in files(".md") if p not in linked and not p.startswith("docs/decisions/")]
    report([f"{page}: no page leads there from README.md" for page in apart])


# The rules above are detectors: here each one is seen to fire.


def test_what_does_not_exist_is_found() -> None:
    assert unknown_paths("see `pg/nothing.h`") == {"pg/nothing.h"}
    assert unknown_paths("// as docs/nothing.md says") == {"docs/nothing.md"}
    assert unknown_paths("python benchmarks/nothing.py --full") == {"benchmarks/nothing.py"}
    assert unknown_tests("`Stranger.OpensEverything`") == {"Stranger.OpensEverything"}
    assert unclear_names("`nothing.h`, bare nothing.cc") == {"nothing.h", "nothing.cc"}
    assert unclear_names("`link.h` is a name of several") == {"link.h"}
    assert unclear_names("[sessions](harp.md)", "docs/decisions") == {"harp.md"}
    assert unknown_folders("lies under `pg/nothing/`") == {"pg/nothing"}
    assert dead_links("docs/wire.md", "[wire](../csrc/harp/wire.c)") == {"../csrc/harp/wire.c"}
    assert links_to_no_heading(
        "README.md", "[a](docs/harp.md#paths), [b](docs/harp.md#nothing)"
    ) == {"docs/harp.md#nothing"}
    assert links_to_no_heading("docs/wire.md", "[a](#handshake), [b](#nothing)") == {"#nothing"}
    assert unknown_targets("`make nothing`\n```\nmake demos\n```\n") == {"nothing", "demos"}
    assert "TACO_NOTHING" not in known_variables()


def test_what_exists_is_let_through() -> None:
    assert not unclear_names(
        "`conftest.py`, `CMakeLists.txt` at the top, `harp/link.h`, trace.json"
    )
    assert not unclear_names("[sessions](harp.md)", "docs")
    assert not unknown_paths("`pg/c10d/work.h`, docs/wire.md, `build/release/x.cc`")
    assert not unknown_folders("`pg/algorithms/`, `build/logs/`")
    assert not dead_links(
        "docs/wire.md", "[wire](../csrc/harp/session/wire.h) [torch](https://pytorch.org)"
    )
    assert not unknown_targets("```\ncd it && make demo\n```\nmake their day; `make test`")
    assert {"TACO_TRANSPORT", "TACO_SIM_SEEDS", "TACO_PYTHON"} <= known_variables()
