"""The Lua scripts as values: text, digest, and the contract at the head of each file.

``lua/README.md`` is the contract of them all. A script whose head says ``-- USES: guard, ghosts`` is preceded by
those files of ``lua/common/``; there is no other way of including.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from operator import attrgetter
from typing import Any

_USES = re.compile(r"^-- USES: (.+)$", re.MULTILINE)
_NOW = re.compile(r"^-- ARGV (\d+) now_us or ''$", re.MULTILINE)
_KEYS = re.compile(r"^-- KEYS \S+ (?!.*(?:not ours|ends? (?:is|are) kept))(\w+) ", re.MULTILINE)
_WITHOUT_LANES = {"lane": "local LANES\n", "kept": "", "changes": ""}
"""Parts as they are in an engine that has no keys."""
_OF_LANES = re.compile(r"^-- KEYS .*, where the engine has keys\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One operation, run by its content's digest, so that two versions of the library can share a server."""

    name: str
    text: str
    sha: str
    named: Callable[[Any], Sequence[Any]]
    """Picks the KEYS of the script's head out of ``ShardKeys`` or ``ControlKeys``, in their order: names, and of keys
    that are one for each topic the function that names them.
    """

    place_of_now: int | None
    """The place of now_us in ARGV, counted from 0, as its head says. None: it takes none."""

    @classmethod
    def of(cls, name: str, text: str) -> Script:
        """The script of a text. One that is not in ``lua/`` is for keys of another system."""
        now = _NOW.search(text)
        place = int(now[1]) - 1 if now else None
        return cls(name, text, hashlib.sha1(text.encode()).hexdigest(), _named(_KEYS.findall(text)), place)


@functools.cache
def script(name: str, keyed: bool = False) -> Script:
    """The script in ``lua/NAME.lua``. ``keyed``: for an engine that has keys, which the others pay nothing for."""
    files = _files()
    body = files[name]
    uses = _USES.search(body)
    named = [part.strip() for part in (uses.group(1).split(",") if uses else ())]
    texts = [*((part, files[f"common/{part}"]) for part in named), (name, body)]
    return Script.of(name, "".join(text if keyed else without_lanes(file, text) for file, text in texts))


def without_lanes(name: str, text: str) -> str:
    """A file as it is run in an engine that has no keys."""
    return _WITHOUT_LANES[name] if name in _WITHOUT_LANES else _OF_LANES.sub("", text)


def _named(names: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    # attrgetter runs no Python, and makes a tuple of two or more
    return attrgetter(*names) if len(names) > 1 else lambda keys: [getattr(keys, name) for name in names]


@functools.cache
def _files() -> dict[str, str]:
    """All of them, read together: later there may be no file descriptor left."""
    folder = resources.files("shardq") / "lua"
    places = {"": folder, "common/": folder / "common"}
    return {
        prefix + file.name.removesuffix(".lua"): file.read_text(encoding="utf-8")
        for prefix, place in places.items()
        for file in place.iterdir()
        if file.name.endswith(".lua")
    }
