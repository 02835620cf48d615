"""The mutants of the operations: functions of modules, of which a sample is tried.

| of | mutants |
| --- | --- |
| a statement | deleted; of an assignment to a name, its value; of a ``return``, what it returns |
| a condition of ``if`` | always, never |
| a condition of ``while``, of an expression | negated |
| comparisons | by one: ``<`` and ``<=``, ``==`` and ``!=``, ``is`` and ``is not``, ``in`` and ``not in`` |
| ``+ - * / //`` | ``+`` and ``-``, ``*`` and ``/`` |
| ``and`` ``or`` ``not`` | each other; none |
| a number, ``True``, ``False`` | one more, ``False``, ``True`` |
| ``min`` ``max`` | each other |
| ``break`` ``continue`` | each other |

What stands in no function is left out, as it was run long ago where a mutant is put in place; so are texts, log lines,
assertions and ``repr``. Of twins that are written by ``.ci/unasync.py`` the one for threads is taken.
"""

from __future__ import annotations

import ast
import inspect
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType

from tests.sim.branches.reached import ROOT
from tests.sim.mutants.mutant import Change, Mutant, mutants_of

FOLDERS = ("calls", "resharding", "producer", "consumer", "dispatcher")

_COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
}  # fmt: skip
_NAMES = {"min": "max", "max": "min"}

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def modules() -> list[str]:
    """The modules of the operations, by their paths."""
    core = ROOT / "shardq" / "core"
    files = [*core.glob("*.py"), *(file for folder in FOLDERS for file in (core / folder).glob("*.py"))]
    return sorted(file.relative_to(ROOT).as_posix() for file in files if _is_taken(file))


def _is_taken(file: Path) -> bool:
    if file.name.removesuffix(".py").endswith("aio"):
        return False
    if file.parent.name == "core":
        return file.stem in ("operation", "recovery", "replicas", "subscriber", "topology_cache", "upkeep")
    return file.name not in ("__init__.py", "handle_sync.py")


@cache
def operations_mutants() -> dict[str, list[Mutant]]:
    """All mutants of these modules, by path."""
    return {module: _mutants(module) for module in modules()}


def sampled(count: int, seed: int) -> list[Mutant]:
    """So many of all, the same for the same seed and the same sources."""
    every = [mutant for some in operations_mutants().values() for mutant in some]
    chosen = random.Random(seed).sample(every, min(count, len(every)))
    return sorted(filter(can_be_put_in_place, chosen), key=every.index)


def can_be_put_in_place(mutant: Mutant) -> bool:
    """False for the few that take a name of an outer scope away: such a function can't have another code."""
    text = (ROOT / mutant.file).read_bytes()
    before, after = functions_of(text, mutant.file), functions_of(mutant.applied(text), mutant.file)
    return before != after and all(code.co_freevars == after[name].co_freevars for name, code in before.items())


def functions_of(text: bytes, file: str) -> dict[str, CodeType]:
    """The code of all functions that are not within others."""
    return dict(_functions(compile(text, file, "exec")))


def _functions(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_flags & inspect.CO_OPTIMIZED:
                yield key_of(each), each
            else:
                yield from _functions(each)


def key_of(code: CodeType) -> str:
    return f"{code.co_qualname}@{code.co_firstlineno}"


def _mutants(module: str) -> list[Mutant]:
    text = (ROOT / module).read_bytes()
    lines = text.decode().splitlines()
    code_of = {number: " ".join(line.partition("  # ")[0].split()).rstrip(":") for number, line in enumerate(lines, 1)}
    return mutants_of(module, text, _Changes(text).all(), code_of)


class _Changes:
    def __init__(self, text: bytes) -> None:
        self._text = text
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def all(self) -> Iterator[Change]:
        for node in ast.walk(ast.parse(self._text)):
            if isinstance(node, _FUNCTIONS) and node.name not in ("__repr__", "__str__"):
                for statement in node.body:
                    if not isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):  # they are met by themselves
                        yield from self._within(statement)

    def _within(self, node: ast.AST) -> Iterator[Change]:
        if self._is_left_out(node):
            return
        yield from self._of_statement(node)
        yield from self._of_condition(node)
        yield from self._of_expression(node)
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                is_other = isinstance(child, (*_FUNCTIONS, ast.ClassDef)) or field in ("annotation", "returns")
                if isinstance(child, ast.AST) and not is_other:
                    yield from self._within(child)

    def _is_left_out(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Assert | ast.JoinedStr | ast.Global | ast.Nonlocal | ast.Import | ast.ImportFrom):
            return True
        if isinstance(node, ast.Expr):
            called = node.value.func if isinstance(node.value, ast.Call) else node.value
            return isinstance(called, ast.Constant) or ast.unparse(called).startswith(("_log.", "log.", "logger."))
        return False

    # ---- kinds

    def _of_statement(self, node: ast.AST) -> Iterator[Change]:
        if isinstance(node, ast.Expr | ast.AugAssign | ast.Delete | ast.Raise):
            yield self._change(node, "pass", "deleted")
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
                yield self._change(node, "pass", "deleted")
            elif all(isinstance(target, ast.Name) for target in targets) and not _is_none(node.value):
                yield self._change(node.value, "None", "no value")
        elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
            yield self._change(node.value, "None", "returns nothing")
        elif isinstance(node, ast.Break):
            yield self._change(node, "continue", "break to continue")
        elif isinstance(node, ast.Continue):
            yield self._change(node, "break", "continue to break")

    def _of_condition(self, node: ast.AST) -> Iterator[Change]:
        if isinstance(node, ast.If):
            yield self._change(node.test, "True", "if: always")
            yield self._change(node.test, "False", "if: never")
        elif isinstance(node, ast.While | ast.IfExp) and not isinstance(node.test, ast.Constant):
            kind = "while" if isinstance(node, ast.While) else "if"
            yield self._change(node.test, f"(not ({self._said(node.test)}))", f"{kind}: negated")
        elif isinstance(node, ast.comprehension):
            for test in node.ifs:
                yield self._change(test, "True", "if: always")

    def _of_expression(self, node: ast.AST) -> Iterator[Change]:
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for place, operator in enumerate(node.ops):
                ours, theirs = _COMPARED[type(operator)]
                yield self._between(sides[place], sides[place + 1], ours, theirs)
        elif isinstance(node, ast.BinOp) and (found := _COMPUTED.get(type(node.op))):
            if not any(
                isinstance(side, ast.Constant) and isinstance(side.value, str) for side in (node.left, node.right)
            ):
                yield self._between(node.left, node.right, *found)
        elif isinstance(node, ast.BoolOp):
            ours, theirs = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            new = f" {theirs} ".join(f"({self._said(value)})" for value in node.values)
            yield self._change(node, f"({new})", f"{ours} to {theirs}")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield self._change(node, f"({self._said(node.operand)})", "no not")
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, bool):
                yield self._change(node, str(not node.value), f"{node.value} to {not node.value}")
            elif isinstance(node.value, int | float):
                yield self._change(node, str(node.value + 1), f"{node.value} and one")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _NAMES:
            yield self._change(node.func, _NAMES[node.func.id], f"{node.func.id} to {_NAMES[node.func.id]}")

    # ---- places

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.stmt | ast.expr)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _said(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._text[start:end].decode()

    def _change(self, node: ast.AST, new: str, what: str) -> Change:
        """What is put there has as many lines as what was there: a function is known by its first line."""
        assert isinstance(node, ast.stmt | ast.expr)
        start, end = self._span(node)
        lines = "\n" * (self._text[start:end].count(b"\n") - new.count("\n"))
        if lines:
            new = f"({new}{lines})" if isinstance(node, ast.expr) else f"{new}{lines}"
        return Change(start, end, new.encode(), node.lineno, node.col_offset + 1, what)

    def _between(self, left: ast.expr, right: ast.expr, ours: str, theirs: str) -> Change:
        """An operator: it has no place of its own in the tree."""
        start, end = self._span(left)[1], self._span(right)[0]
        between = self._text[start:end].decode()
        at = between.index(ours)
        line = left.end_lineno or left.lineno
        new = between[:at] + theirs + between[at + len(ours) :]
        return Change(start, end, new.encode(), line, (left.end_col_offset or 0) + 1, f"{ours} to {theirs}")


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
