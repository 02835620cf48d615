"""The branches of the scripts, and scripts that tell which of them they took.

A branch is each block of a script: after ``then`` and ``else``, the ``else`` that is not written, the body of a loop
and of a function, and what stands behind an ``and`` or an ``or``. ``reached[NUMBER]`` is put into each of them, on its
line, so that lines keep their numbers. The model of a server has that table while ``server.reached`` is set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tree_sitter import Node

from shardq.core.scripts import Script, script
from tests.sim.branches.scripts import Source, assembled, edited, nodes, sources
from tests.sim.search.kinds import KEYED


@dataclass(frozen=True)
class Point:
    """One branch."""

    number: int
    file: str
    line: int
    what: str
    """``then``, ``else``, ``loop``, ``function``, or ``and …`` and ``or …`` with the operand."""
    name: str
    """Names it also when lines have moved: file, what, and its line's code."""
    start: int
    end: int
    """Where it is in the file; of an ``else`` that is not written both are the same."""

    def __str__(self) -> str:
        return f"{self.file}.lua:{self.line}: {self.name.partition(': ')[2]}"


@dataclass(frozen=True)
class _Place:
    """Where a branch begins."""

    what: str
    line: int
    edits: list[tuple[int, int, str]]
    """What is put where; ``#`` stands for the number."""
    start: int
    end: int


def _places(source: Source) -> Iterator[_Place]:
    for node in nodes(source.root):
        line = node.start_point[0] + 1
        if node.type in ("if_statement", "elseif_statement"):
            end = node.child_by_field_name("alternative") or node
            last = end.start_byte if end is not node else node.end_byte
            yield _Place("then", line, *_behind(_token(node, "then"), last))
        elif node.type == "else_statement":
            assert node.parent is not None
            yield _Place("else", node.parent.start_point[0] + 1, *_behind(_token(node, "else"), node.end_byte))
        elif node.type in ("for_statement", "while_statement"):
            yield _Place("loop", line, *_behind(_token(node, "do"), node.end_byte))
        elif node.type == "repeat_statement":
            yield _Place("loop", line, *_behind(_token(node, "repeat"), node.end_byte))
        elif node.type in ("function_declaration", "function_definition"):
            parameters = node.child_by_field_name("parameters")
            assert parameters is not None
            yield _Place("function", line, *_behind(parameters, node.end_byte))
        elif node.type == "binary_expression" and node.children[1].type in ("and", "or"):
            right = node.children[2]
            start, end_byte = right.start_byte, right.end_byte
            what = f"{node.children[1].type} {' '.join(source.of(right).split())}"
            marks = [(start, start, "(reached[#] and "), (end_byte, end_byte, ")")]
            yield _Place(what, right.start_point[0] + 1, marks, start, end_byte)
        if node.type == "if_statement" and not any(child.type == "else_statement" for child in node.children):
            at = _token(node, "end").start_byte
            yield _Place("else", line, [(at, at, " else reached[#] = true ")], at, at)


def _token(node: Node, kind: str) -> Node:
    return next(child for child in node.children if child.type == kind)


def _behind(node: Node, last: int) -> tuple[list[tuple[int, int, str]], int, int]:
    at = node.end_byte
    return [(at, at, " reached[#] = true; ")], at, last


@cache
def _found() -> tuple[list[Point], dict[str, bytes]]:
    points: list[Point] = []
    files: dict[str, bytes] = {}
    for source in sources().values():
        edits: list[tuple[int, int, bytes]] = []
        counted: Counter[str] = Counter()
        for place in _places(source):
            name = f"{source.name}: {place.what}: {source.line(place.line)}"
            counted[name] += 1
            if counted[name] > 1:
                name = f"{name} ({counted[name]})"
            number = len(points)
            points.append(Point(number, source.name, place.line, place.what, name, place.start, place.end))
            edits += [(start, end, new.replace("#", str(number)).encode()) for start, end, new in place.edits]
        files[source.name] = edited(source.text, edits)
    return points, files


def points() -> list[Point]:
    """All branches of all scripts. A point's number is its place."""
    return _found()[0]


@cache
def instrumented(*, keyed: bool = KEYED > 0) -> dict[str, Script]:
    """The scripts that tell their branches, by name: to be run in place of ours."""
    return assembled(_found()[1], keyed=keyed)


@cache
def instead_of_ours() -> dict[str, Script]:
    """The same by the texts of ours, of engines with keys and without: a run may have both."""
    both = (False, True)
    return {script(name, keyed).text: each for keyed in both for name, each in instrumented(keyed=keyed).items()}
