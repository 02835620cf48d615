"""The scripts as syntax trees: each file of ``shardq/lua`` by itself, and what is made of changed files.

Parsed by tree-sitter's grammar of Lua, so that a place in a tree is a place in the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import tree_sitter_lua
from tree_sitter import Language, Node, Parser

from shardq.core.scripts import Script, without_lanes
from tests.lua.contract import FOLDER, NAMES, contract
from tests.sim.search.kinds import KEYED

COMMON = "common/"


@dataclass(frozen=True)
class Source:
    """One file: a script, or a part of several."""

    name: str
    """``claim``, ``common/guard``."""
    text: bytes
    root: Node

    def of(self, node: Node) -> str:
        """The text of a node."""
        return self.text[node.start_byte : node.end_byte].decode()

    def line(self, number: int) -> str:
        """A line, counted from 1, without what is around its code: by that a place is known when lines move."""
        return " ".join(self.text.splitlines()[number - 1].decode().partition(" --")[0].split())


@cache
def sources() -> dict[str, Source]:
    """All files by name, parts first."""
    parts = sorted(file.name.removesuffix(".lua") for file in (FOLDER / "common").iterdir())
    names = [*(COMMON + part for part in parts), *NAMES]
    return {name: parsed(name, (FOLDER / f"{name}.lua").read_bytes()) for name in names}


def parsed(name: str, text: bytes) -> Source:
    root = Parser(Language(tree_sitter_lua.language())).parse(text).root_node
    assert not root.has_error, f"{name}.lua is no Lua, or the grammar does not know it"
    return Source(name, text, root)


@cache
def files_of(name: str) -> list[str]:
    """The files that make a script, in their order."""
    return [*(COMMON + part for part in contract(name).uses), name]


def users_of(file: str) -> list[str]:
    """The scripts that a file is in."""
    return [name for name in NAMES if file in files_of(name)]


def is_of_lanes(file: str) -> bool:
    """True for a part that no script has in an engine without keys."""
    return file.startswith(COMMON) and without_lanes(file.removeprefix(COMMON), "anything") != "anything"


def assembled(changed: Mapping[str, bytes], *, keyed: bool = KEYED > 0) -> dict[str, Script]:
    """The scripts that are others when these files are, by name; ``keyed``: as they are in an engine that has keys."""
    scripts = {}
    for name in NAMES:
        files = files_of(name)
        if not changed.keys().isdisjoint(files):
            texts = [(file.removeprefix(COMMON), changed.get(file, sources()[file].text).decode()) for file in files]
            whole = "".join(text if keyed else without_lanes(file, text) for file, text in texts)
            scripts[name] = Script.of(name, whole)
    return scripts


def nodes(root: Node) -> Iterator[Node]:
    """A node and all below it, in the order of the text."""
    yield root
    for child in root.children:
        yield from nodes(child)


def edited(text: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """A text with parts in place of others: from, to, what. Of two at one place the one named first comes first."""
    whole, at = [], 0
    for start, end, new in sorted(edits, key=lambda edit: edit[0]):
        whole += [text[at:start], new]
        at = end
    return b"".join([*whole, text[at:]])
