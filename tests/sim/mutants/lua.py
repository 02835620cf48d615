"""The mutants of the scripts: every statement deleted or bent, one at a time.

| of | mutants |
| --- | --- |
| a statement | deleted; of a declaration, its values; of a function, its body |
| a condition of ``if`` | always, never |
| a condition of a loop | negated |
| ``< <= > >= == ~=`` | by one: ``<`` and ``<=``, ``==`` and ``~=`` |
| ``+ - * / %`` | ``+`` and ``-``, ``*`` and ``/``; ``%`` becomes ``*`` |
| ``and`` ``or`` ``not`` | each other; none |
| a number | one more |
| ``true`` ``false`` ``nil`` | ``false``, ``true``, ``true`` |
| ``math.min`` ``math.ceil`` | ``math.max``, ``math.floor``, and back |
| ``redis.pcall`` | ``redis.call``: a refusal ends the script |

Left out is what is another one again, or dies when others do: a negated ``if``; a deleted one without an
``else``, or the one statement in it, which is one that is never true.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tree_sitter import Node

from tests.sim.branches.scripts import Source, nodes, sources
from tests.sim.mutants.mutant import Change, Mutant, mutants_of

_BENT = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "~=", "~=": "==",
    "+": "-", "-": "+", "*": "/", "/": "*", "%": "*", "and": "or", "or": "and",
}  # fmt: skip
_OTHERS = {
    "math.min": "math.max", "math.max": "math.min", "math.ceil": "math.floor", "math.floor": "math.ceil",
    "redis.pcall": "redis.call",
}  # fmt: skip
_LITERALS = {"true": "false", "false": "true", "nil": "true"}

_DELETED = {"function_call", "assignment_statement", "return_statement", "break_statement", "for_statement"}


@cache
def scripts_mutants() -> dict[str, list[Mutant]]:
    """All mutants of the scripts, by file."""
    return {
        source.name: mutants_of(
            source.name,
            source.text,
            _changes(source),
            {number: source.line(number) for number in range(1, len(source.text.splitlines()) + 1)},
        )
        for source in sources().values()
    }


def _changes(source: Source) -> Iterator[Change]:
    for node in nodes(source.root):
        yield from _of_statement(source, node)
        yield from _of_condition(source, node)
        yield from _of_expression(source, node)


def _of_statement(source: Source, node: Node) -> Iterator[Change]:
    if node.parent is None or node.parent.type not in ("block", "chunk"):
        return
    has_an_else = any(child.type in ("else_statement", "elseif_statement") for child in node.children)
    if (node.type in _DELETED and not _is_all_of_an_if(node)) or (node.type == "if_statement" and has_an_else):
        yield _change(node, "", "deleted")
    elif node.type == "variable_declaration":
        assignment = node.children[1]
        if assignment.type == "assignment_statement":
            names = source.of(assignment.children[0])
            yield _change(assignment, names, "no value")
    elif node.type == "function_declaration":
        body = node.child_by_field_name("body")
        if body is not None:
            yield _change(body, "", "no body")


def _is_all_of_an_if(node: Node) -> bool:
    """True if without it the ``if`` around it does nothing: that is one that is never true."""
    block = node.parent
    assert block is not None
    holder = block.parent
    return (
        holder is not None
        and holder.type == "if_statement"
        and block.named_child_count == 1
        and not any(child.type in ("else_statement", "elseif_statement") for child in holder.children)
    )


def _of_condition(source: Source, node: Node) -> Iterator[Change]:
    if node.type not in ("if_statement", "elseif_statement", "while_statement", "repeat_statement"):
        return
    condition = node.child_by_field_name("condition")
    assert condition is not None
    kind = node.type.removesuffix("_statement")
    if kind in ("if", "elseif"):
        yield _change(condition, "true", f"{kind}: always")
        yield _change(condition, "false", f"{kind}: never")
    else:
        yield _change(condition, f"not ({source.of(condition)})", f"{kind}: negated")


def _of_expression(source: Source, node: Node) -> Iterator[Change]:
    if node.type == "binary_expression":
        sign = node.children[1]
        if sign.type in _BENT:
            yield _change(sign, _BENT[sign.type], f"{sign.type} to {_BENT[sign.type]}")
    elif node.type == "unary_expression":
        sign, operand = node.children
        is_condition = node.parent is not None and node.parent.child_by_field_name("condition") == node
        if sign.type == "-" or (sign.type == "not" and not is_condition):
            yield _change(node, f"({source.of(operand)})", f"no {sign.type}")
    elif node.type == "number":
        number = source.of(node)
        yield _change(node, str((int(number) if number.isdigit() else float(number)) + 1), f"{number} and one")
    elif node.type in _LITERALS:
        yield _change(node, _LITERALS[node.type], f"{node.type} to {_LITERALS[node.type]}")
    elif node.type == "dot_index_expression" and (other := _OTHERS.get(source.of(node))):
        yield _change(node, other, f"{source.of(node)} to {other}")


def _change(node: Node, new: str, what: str) -> Change:
    row, column = node.start_point
    return Change(node.start_byte, node.end_byte, new.encode(), row + 1, column + 1, what)
