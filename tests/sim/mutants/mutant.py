"""A mutant: one file of the product with one change."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Change:
    """A place in a file, and what is put there."""

    start: int
    end: int
    new: bytes
    line: int
    """From 1, as is the column."""
    column: int
    what: str
    """For people: ``< to <=``, ``deleted``, ``if: never``."""


@dataclass(frozen=True)
class Mutant:
    file: str
    """A script or a part of scripts (``claim``, ``common/guard``), or the path of a module."""
    change: Change
    name: str
    """Names it also when lines have moved: file, code of its line, and what."""

    @property
    def where(self) -> str:
        """As it is asked for: ``claim:45:12 < to <=``."""
        return f"{self.file}:{self.change.line}:{self.change.column} {self.change.what}"

    def applied(self, text: bytes) -> bytes:
        return text[: self.change.start] + self.change.new + text[self.change.end :]


def mutants_of(file: str, text: bytes, changes: Iterable[Change], code_of: dict[int, str]) -> list[Mutant]:
    """The changes as mutants: each other text once, each by a name of its own. ``code_of``: the code of each line."""
    return list(_named(_distinct(file, text, changes), code_of))


def _distinct(file: str, text: bytes, changes: Iterable[Change]) -> Iterator[Mutant]:
    seen = {_squeezed(text)}
    for change in changes:
        mutant = Mutant(file, change, "")
        squeezed = _squeezed(mutant.applied(text))
        if squeezed not in seen:
            seen.add(squeezed)
            yield mutant


def _squeezed(text: bytes) -> bytes:
    return re.sub(rb"\s+", b" ", text)


def _named(mutants: Iterable[Mutant], code_of: dict[int, str]) -> Iterator[Mutant]:
    counted: Counter[str] = Counter()
    for mutant in mutants:
        name = f"{mutant.file}: {code_of[mutant.change.line]}: {mutant.change.what}"
        counted[name] += 1
        yield replace(mutant, name=name + (f" ({counted[name]})" if counted[name] > 1 else ""))
