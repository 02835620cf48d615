"""The table of defects has its form, and what it names is there; ``make defect`` reads reports and test files right."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path

from tests.defects.__main__ import PAGE, ROOT, Row, alone, case_of, rows

TEXT = PAGE.read_text(encoding="utf-8")
ROWS = rows(TEXT)

MOST_WORDS = 15


def objects(names: list[str]) -> list[str | None]:
    """The text of each of these objects of git, None for one that is not there. Without git there is none."""
    if shutil.which("git") is None:
        return []
    words = ["git", "cat-file", "--batch"]
    done = subprocess.run(words, cwd=ROOT, input="\n".join(names).encode(), capture_output=True, check=False)
    left, found = done.stdout, list[str | None]()
    while left:
        head, _, left = left.partition(b"\n")
        size = head.split()[-1]
        if size.isdigit():
            found.append(left[: int(size)].decode())
            left = left[int(size) + 1 :]
        else:
            found.append(None)
    return found


def history() -> set[str]:
    """The short names of the revisions that led to this one. A revision that was rewritten is no longer among them.

    Its object may still be there, so ``cat-file`` alone doesn't tell: a clone beside the original copies it, too.
    """
    if shutil.which("git") is None:
        return set()
    done = subprocess.run(["git", "rev-list", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {revision[:7] for revision in done.stdout.split()}


def name_of(test: str) -> str:
    """The function of a test, without its parameters."""
    return test.partition("::")[2].partition("[")[0]


def has(text: str | None, test: str) -> bool:
    """Returns True if a file has a test."""
    return text is not None and re.search(rf"^(?:async )?def {name_of(test)}\(", text, re.MULTILINE) is not None


def test_every_line_of_the_table_is_a_row() -> None:
    lines = TEXT.partition("\n| no. |")[2].partition("\n\n")[0].splitlines()[2:]
    read = [row.number for row in ROWS]
    assert len(read) == len(lines), next(line for place, line in enumerate(lines, 1) if place not in read)
    assert read == list(range(1, len(ROWS) + 1))


def complaint(row: Row, kinds: list[str]) -> str | None:
    """What is wrong with a row."""
    words = len(row.did.split())
    if words > MOST_WORDS or not row.did.endswith("."):
        return f"a sentence of {MOST_WORDS} words at most says what it did, not {words}"
    if row.found not in kinds:
        return f"found by one of {kinds}"
    if not re.fullmatch("[0-9a-f]{7}", row.mended):
        return "mended in a short revision"
    if not (row.why or row.test):
        return "a test shows it, or the row says why none does"
    if row.test and row.of is None and not has(text_of(row.test), row.test):
        return "the test is not there any more: put the revision in front that has it"
    return None


@cache
def read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def text_of(test: str) -> str | None:
    """The file of a test as it is today."""
    return read(ROOT / "tests" / test.partition("::")[0])


def test_each_row_has_its_form() -> None:
    kinds = re.findall(r"^\| \*\*([\w ]+)\*\* \|", TEXT, re.MULTILINE)
    assert {row.number: said for row in ROWS if (said := complaint(row, kinds))} == {}


def test_revisions_and_their_tests_are_in_the_history() -> None:
    """Where there is one: a copy without git, or with a part of the history, has nothing to compare."""
    revisions = history()
    if ROWS[0].mended not in revisions:
        return
    assert [row.number for row in ROWS if row.mended not in revisions] == []
    shown = [(row, row.test) for row in ROWS if row.test]
    files = objects([f"{row.of or row.mended}:tests/{test.partition('::')[0]}" for row, test in shown])
    assert [row.number for (row, test), text in zip(shown, files, strict=True) if not has(text, test)] == []


FILE = '''
"""Tests."""
from shardq import Engine, NewName
from tests.support import thing

ONE, TWO = 1, 2

@pytest.fixture(autouse=True)
def always(name): ...

@pytest.fixture
def engine(): return Engine(ONE)

def test_of_it(engine, other: NewName) -> NewName:
    assert thing(engine)

def test_of_something_else():
    NewName(TWO)
'''


def test_a_file_with_one_of_its_tests() -> None:
    text = alone(FILE, "test_of_it")
    assert "from shardq import Engine\n" in text
    assert "import thing" in text
    assert "def always" in text
    assert "test_of_something_else" not in text


def reported(kind: str, message: str, text: str) -> str:
    """What becomes of a test that pytest reports so."""
    element = ET.Element("testcase", name="test_it")
    ET.SubElement(element, kind, message=message).text = text
    return case_of(element).outcome


ABSENT = "tests/test_it.py:7: in test_it\n    engine.new()\nE   AttributeError: 'Engine' object has no attribute 'new'"


def test_what_a_report_says() -> None:
    assert case_of(ET.Element("testcase", name="test_it")).outcome == "passes"
    assert reported("failure", "assert 1 == 2", "tests/test_it.py:7: in test_it\nE   assert 1 == 2") == "fails"
    assert reported("failure", "AttributeError", ABSENT) == "can't run", "the test asks for what is new"
    crash = f"{ABSENT}\nshardq/engine.py:9: in push\nE   AttributeError: 'NoneType' object has no attribute 'x'"
    assert reported("failure", "AttributeError", crash) == "fails", "the product raises it"
    assert reported("error", "failed on teardown", "E   AssertionError: the test left behind: thread") == "fails"
    assert reported("error", "failed on setup", "E   AssertionError: no server") == "can't run"
    assert reported("skipped", "no browser", "") == "is skipped"
