"""Puts the engine's errors, which name arguments of Python, in the words of the command line or of a JSON line.

Called by ``app``, ``stats`` and ``push``.

>>> in_options("dedup=5.0 was given without id=")
'--dedup 5.0 was given without --id'
>>> in_options("pushes with durability= are refused")
'pushes with --durability are refused'
>>> in_fields("dedup=5.0 was given without id=")
'"dedup": 5.0 was given without "id"'
"""

from __future__ import annotations

import re

_ARGUMENT = re.compile(
    r"""\b(delay|at|topic|id|on_conflict|dedup|headers|max_attempts|expires|window|throttle|tags|durability|to|rate|concurrency|shards|name|
     cron|interval|tz|jitter|catch_up|max_late|max_ready_age|max_dead|maxlen|dead_age|dead_count)
    =("[^"]*"|'[^']*'|[\w.+-]+)?""",
    re.VERBOSE,
)

_PHRASES = (
    (re.compile(r" \(timeout=\)"), ""),
    (re.compile(r"open the engine with the codec= that wrote it"), "a program that has the codec can read it"),
    (re.compile(r"\b(expand|shrink)\((\d+)\)"), r"`shardq \1 \2`"),
    (re.compile(r"\bengine\.schedules\(\) and `shardq every` list"), "`shardq every` lists"),
    (re.compile(r"\bNone for no limit"), "--off for no limits"),
    (re.compile(r"\bNone to stop"), "--off to stop"),
)


def in_options(text: str) -> str:
    """The text with arguments as options of a command."""

    def option(found: re.Match[str]) -> str:
        name, value = found.groups()
        name = {"headers": "header", "tags": "tag"}.get(name, name.replace("_", "-"))
        return f"--{name} {value.strip(chr(34))}" if value else f"--{name}"

    text = _ARGUMENT.sub(option, text)
    for pattern, words in _PHRASES:
        text = pattern.sub(words, text)
    return text


def in_fields(text: str) -> str:
    """The text with arguments as fields of a JSON line."""
    return _ARGUMENT.sub(lambda found: f'"{found[1]}": {found[2]}' if found[2] else f'"{found[1]}"', text)
