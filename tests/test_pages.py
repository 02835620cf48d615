"""The pages (README and others): links resolve, code is Python, named files exist, and the front page stays short."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import shardq
from tests.support import tiers

ROOT = Path(__file__).parents[1]
FOLDERS = [path for path in ROOT.iterdir() if path.is_dir() and (path.name[0] != "." or path.name == ".github")]
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in folder.rglob("*.md"))])
LONGEST_FRONT_PAGE = 150
WIDEST_CODE = 99
"""The characters of a line of code that a browser shows beside the list of files, without scrolling."""

_LINK = re.compile(r"""\]\(([^)\s]+)\)|(?:href|src)="([^"]+)\"""")
_CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def prose(page: Path) -> str:
    return _CODE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    broken = []
    for link in map("".join, _LINK.findall(prose(page))):
        assert "://" not in link, "pages name no host"
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_is_python(page: Path) -> None:
    for block in _FENCE.findall(page.read_text(encoding="utf-8")):
        compile(block, str(page), "exec")


def test_tests_that_pages_name_are_there() -> None:
    texts = {file: (ROOT / "tests" / file).read_text(encoding="utf-8") for file, _ in tiers.promises()}
    gone = [(file, name) for file, name in tiers.promises() if not re.search(rf"\bdef {name}\(", texts[file])]
    assert gone == []


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= LONGEST_FRONT_PAGE


def test_the_code_of_the_front_page_is_seen_without_scrolling() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    fenced = [line for block in _FENCE.findall(text) for line in block.splitlines()]
    indented = re.findall(r"^    (.+)$", prose(ROOT / "README.md"), re.MULTILINE)
    assert [line for line in fenced + indented if len(line) > WIDEST_CODE] == []


def test_the_newest_version_of_the_changes_is_that_of_the_package() -> None:
    text = (ROOT / "shardq/CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (\d+\.\d+\.\d+)", text, re.MULTILINE)
    assert versions[0] == shardq.__version__.partition(".dev")[0]


def test_modules_named_in_the_architecture_exist() -> None:
    """The trees of one push, one due task and one resize name files from shardq/ on, or from the package above them."""
    text = (ROOT / "shardq/README.md").read_text(encoding="utf-8")
    names = set(re.findall(r"^ {4,}(?:[a-z_]+/)?([a-z_]+\.(?:py|lua)) ", text, re.MULTILINE))
    known = {path.name for path in (ROOT / "shardq").rglob("*") if path.suffix in (".py", ".lua")}
    assert names
    assert names <= known


def test_the_page_of_the_tests_names_each_of_their_folders() -> None:
    named = re.findall(r"`([a-z]+)/`", (ROOT / "tests/README.md").read_text(encoding="utf-8").split("## Rules")[0])
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/__init__.py")}
    assert folders - set(named) == set()
    assert set(named) - folders == {"browser"}


def engines_of(program: str) -> set[str]:
    """The names of the engines that a program makes; empty for one without a name of its own."""
    names = set[str]()
    for call in ast.walk(ast.parse(program)):
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in ("Engine", "AsyncEngine"):
            given = [word.value for word in call.keywords if word.arg == "name"]
            names.add(str(given[0].value) if given and isinstance(given[0], ast.Constant) else "")
    return names


def test_the_programs_of_each_page_and_each_example_have_an_engine_of_their_own() -> None:
    """So that one that was tried leaves nothing for another: no task, no route, no limit."""
    used: dict[str, set[str]] = {}
    for page in PAGES:
        for program in _FENCE.findall(page.read_text(encoding="utf-8")):
            for name in engines_of(program):
                used.setdefault(name, set()).add(str(page.relative_to(ROOT)))
    for example in (ROOT / "tests/examples").glob("*.py"):
        if not example.name.startswith(("_", "test_")):
            for name in engines_of(example.read_text(encoding="utf-8")):
                used.setdefault(name, set()).add(example.name)
    assert len(used) > 20
    assert {name: pages for name, pages in used.items() if len(pages) > 1} == {}
