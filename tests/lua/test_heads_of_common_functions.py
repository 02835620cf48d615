"""The head of each function in ``lua/common/`` names its parameters and says what it returns."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.lua.contract import FOLDER, without_comments
from tests.support.rows import each_row

FILES = sorted(file.name for file in (FOLDER / "common").iterdir())

DEFINED = re.compile(
    r"((?:^--[^\n]*\n)*)^local function (\w+)\(([^)]*)\)([^\n]* end$|.*?^end$)", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Function:
    name: str
    parameters: list[str]
    head: str
    body: str


def functions(text: str) -> list[Function]:
    """Every function at the top of a file: in one line, or up to an ``end`` at the start of a line."""
    return [
        Function(name, re.findall(r"\w+", parameters), head, without_comments(body))
        for head, name, parameters, body in DEFINED.findall(text)
    ]


FUNCTIONS = [
    (file, function) for file in FILES for function in functions((FOLDER / "common" / file).read_text(encoding="utf-8"))
]


OF_EACH_FUNCTION = each_row("function", {f"{file}-{each.name}": each for file, each in FUNCTIONS})


def test_no_function_is_overlooked() -> None:
    for file in FILES:
        text = without_comments((FOLDER / "common" / file).read_text(encoding="utf-8"))
        assert text.count("function") == sum(of == file for of, _ in FUNCTIONS), file


@OF_EACH_FUNCTION
def test_the_head_names_the_parameters(function: Function) -> None:
    titles = re.findall(r"^-- (\w+\([^)]*\)): \S", function.head, re.MULTILINE)
    assert titles == [f"{function.name}({', '.join(function.parameters)})"]


@OF_EACH_FUNCTION
def test_the_head_says_what_is_returned(function: Function) -> None:
    said = re.findall(r"^-- RETURNS (.+)$", function.head, re.MULTILINE)
    assert len(said) == 1
    returned = [value for value in re.findall(r"\breturn\b[ \t]*([^\n]*)", function.body) if value != "end"]
    assert (said[0] != "nothing") == bool(returned), returned
