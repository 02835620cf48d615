"""The addresses of the pages, and the sentences that lead to them: those that say what is wrong are written for
terminals, too, and name commands in backticks. A command that has a page becomes a link to it.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlencode

from markupsafe import Markup

from shardq import Finding
from shardq.core.model.ids import DEFAULT_TOPIC
from shardq.dashboard.formats import lines
from shardq.engine.around import TABLE

PAGES = {
    "/": "Overview",
    "/tasks": "Tasks",
    "/retries": "Retries",
    "/dead": "Dead",
    "/future": "Future",
    "/schedules": "Schedules",
    "/shards": "Shards",
    "/nodes": "Nodes",
    "/topics": "Topics",
    "/fleet": "Fleet",
    "/changes": "Changes",
}
"""The navigation."""


def link_of(path: str, **query: object) -> str:
    """An address within the application; what is empty or None is left out."""
    kept = urlencode({name: value for name, value in query.items() if value not in (None, "")})
    return path + (f"?{kept}" if kept else "")


PAGE_OF: Mapping[str, str] = {
    **dict.fromkeys(("tasks", "epochs", "coverage"), "/shards"),
    **dict.fromkeys(("dispatchers", "workers", "versions", "far"), "/fleet"),
    **dict.fromkeys(("routes", "topics"), "/topics"),
    "deaths": "/dead",
    "schedules": "/schedules",
    **dict.fromkeys(("outbox", "spool"), ""),
}
"""Check → the page on which its findings are seen; "": on none, only commands know more. Those that are not here are
about servers.
"""

_PAGE_OF_COMMAND = {
    "stats": "/",
    "health": "/",
    "forecast": "/future",
    "every": "/schedules",
    "shards": "/shards",
    "topics": "/topics",
    "fleet": "/fleet",
}

_LISTED = ("state", "topic", "tag", "key", "due", "holder")
"""The options of ``shardq list`` that are fields of the page's filter."""

_NAMED = re.compile(r"`([^`]+)`|\b(topic )(\(default\)|'(?:[^'\\]|\\.)+'|\"(?:[^\"\\]|\\.)+\")")
"""A command, or a topic as ``quoted_topic`` writes it."""


def told(root: str, said: str | Finding) -> Markup:
    """The sentence with its links, that of a finding with one to its page. ``root``: the prefix of all addresses.

    >>> told("", "12 tasks died: see `shardq list --state dead --newest`")
    Markup('12 tasks died: see <a href="/dead">dead tasks</a>')
    >>> told("/queue", found("no_dispatcher"))[-54:]
    'start <code>shardq run</code> <a href="/queue/fleet">→ Fleet</a>'
    """
    text, parts, end, leads = str(said), Markup(), 0, False
    for found in _NAMED.finditer(text):
        command, word, quoted = found.groups()
        target = _of_topic(quoted) if command is None else _of_command(command)
        parts += lines(text[end : found.start()]) + (word or "")
        shown = command if quoted is None else quoted
        if target is not None:
            address, title = target
            parts += _link(root + address, title or shown)
            leads = True
        else:
            parts += shown if command is None else Markup("<code>{}</code>").format(lines(shown))
        end = found.end()
    parts += lines(text[end:])
    if isinstance(said, str) or leads:
        return parts
    address = PAGE_OF.get(TABLE[said.name].check, "/nodes")
    return parts + Markup(" {}").format(_link(root + address, f"→ {PAGES[address]}")) if address else parts


def _link(address: str, title: str) -> Markup:
    return Markup('<a href="{}">{}</a>').format(address, lines(title))


def _of_topic(quoted: str) -> tuple[str, str] | None:
    topic = "" if quoted == DEFAULT_TOPIC else None
    with suppress(ValueError, SyntaxError):
        topic = ast.literal_eval(quoted) if topic is None else topic
    return None if topic is None else (link_of("/topics/one", topic=topic), "")


def _of_command(command: str) -> tuple[str, str] | None:
    """The address of the page that answers a command, and its title; None if there is none."""
    try:
        program, name, *words = shlex.split(command)
    except ValueError:
        return None
    if program != "shardq":
        return None
    if name == "list":
        options = {word[2:]: after for word, after in zip(words, [*words[1:], ""], strict=True) if word[:2] == "--"}
        fields = {name: options[name] for name in _LISTED if name in options}
        if fields == {"state": "dead"}:
            return "/dead", "dead tasks"
        if "failed" in options:
            return link_of("/retries", topic=fields.get("topic")), "retries"
        return link_of("/tasks", **fields), f"{fields.get('state', '')} tasks".lstrip()
    address = _PAGE_OF_COMMAND.get(name)
    return None if address is None else (address, PAGES[address])
