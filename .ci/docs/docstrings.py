"""An extension of griffe, which reads the code for the reference.

In a docstring an example stands as in a session, ``>>> engine.open()``, which Markdown would take for a quotation: it
becomes a block of code. The first sentence gets a line of its own. A default that is a constant of a module is shown by
its value.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import griffe
from texts import sentence_first, with_blocks


def everything(thing: griffe.Object) -> Iterator[griffe.Object]:
    """It, and all that is defined within it."""
    yield thing
    for member in thing.members.values():
        if not isinstance(member, griffe.Alias):
            yield from everything(member)


def value_of(default: griffe.Expr, known: griffe.ModulesCollection) -> str | griffe.Expr:
    """A default as it is shown: the value of the constant that it names, if that has no names itself."""
    try:
        constant = known[default.canonical_path]
        if isinstance(constant, griffe.Alias):
            constant = constant.final_target
    except (KeyError, griffe.AliasResolutionError):
        return default
    value = str(constant.value) if isinstance(constant, griffe.Attribute) else ""
    if not value or any(isinstance(node, ast.Name) for node in ast.walk(ast.parse(value))):
        return default
    return value


class Shown(griffe.Extension):
    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        for thing in everything(pkg):
            if thing.docstring is not None:
                thing.docstring.value = sentence_first(with_blocks(thing.docstring.value))
            if isinstance(thing, griffe.Function):
                for parameter in thing.parameters:
                    if isinstance(parameter.default, griffe.ExprName | griffe.ExprAttribute):
                        parameter.default = value_of(parameter.default, loader.modules_collection)
