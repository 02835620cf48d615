"""The engine's errors in the words of who typed a command or wrote a line, not of who calls Python.

>>> in_options("dedup=5.0 was given without id=")
'--dedup 5.0 was given without --id'
>>> in_fields("dedup=5.0 was given without id=")
'"dedup": 5.0 was given without "id"'
"""

from __future__ import annotations

import re

_ARGUMENT = re.compile(
    r"""\b(delay|at|topic|id|on_conflict|dedup|headers|max_attempts|expires|durability|to|rate|concurrency|shards|name)
    =("[^"]*"|'[^']*'|[\w.+-]+)?""",
    re.VERBOSE,
)

_PHRASES = (
    (re.compile(r" \(timeout=\)"), ""),
    (re.compile(r"\bmax_attempts\b"), "--max-attempts"),
    (re.compile(r"\b(expand|shrink)\((\d+)\)"), r"`shardq \1 \2`"),
    (re.compile(r"\bNone for no limit"), "--off for no limits"),
    (re.compile(r"\bNone to stop"), "--off to stop"),
    (re.compile(r"\ban int\b"), "a whole number"),
)


def in_options(text: str) -> str:
    """Arguments as the options of a command."""

    def option(found: re.Match[str]) -> str:
        name, value = found.groups()
        name = "header" if name == "headers" else name.replace("_", "-")
        return f"--{name} {value.strip(chr(34))}" if value else f"--{name}"

    text = _ARGUMENT.sub(option, text)
    for pattern, words in _PHRASES:
        text = pattern.sub(words, text)
    return text


def in_fields(text: str) -> str:
    """Arguments as the fields of a JSON line."""
    return _ARGUMENT.sub(lambda found: f'"{found[1]}": {found[2]}' if found[2] else f'"{found[1]}"', text)
