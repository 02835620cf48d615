"""The Lua scripts as values: text, digest, and the contract at the head of each file.

``lua/README.md`` is the contract of them all. A script whose head says ``-- USES: guard, ghosts`` is preceded by
those files of ``lua/common/``; there is no other way of including.
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from importlib import resources

_USES = re.compile(r"^-- USES: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One operation, run by its content's digest, so that two versions of the library can share a server."""

    name: str
    text: str
    sha: str


@functools.cache
def script(name: str) -> Script:
    """The script in ``lua/NAME.lua``."""
    folder = resources.files("shardq") / "lua"
    body = (folder / f"{name}.lua").read_text(encoding="utf-8")
    uses = _USES.search(body)
    parts = [
        (folder / "common" / f"{part.strip()}.lua").read_text(encoding="utf-8")
        for part in (uses.group(1).split(",") if uses else ())
    ]
    text = "".join([*parts, body])
    return Script(name, text, hashlib.sha1(text.encode()).hexdigest())
