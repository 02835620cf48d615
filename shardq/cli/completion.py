"""Completion of the names that only a server knows: topics and engines. A shell asks for them at a press of Tab, so
they come within moments, or not at all. Nothing is created: no engine, and no embedded server. Called by ``app`` when a
shell asks; commands, options and states click completes by itself.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import CompletionItem

from shardq import Engine
from shardq.cli.engines import names
from shardq.cli.options import Given
from shardq.cli.session import opened
from shardq.engine.around import EngineAccess, connected

WITHIN_S = 1.5
"""For connecting, for each request, and for the search for engines."""

MOST = 200
"""Names that are offered: nobody reads more."""

_PLAIN = re.compile(r"[\w.-]+", re.ASCII)
"""The names of topics and engines. A key of another program may look like one of an engine with any name."""


class _Named(click.types.StringParamType):
    """Text that may be a name which the server knows."""

    def __init__(self, find: Callable[[Given], Iterable[str]]) -> None:
        self._find = find

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        given = ctx.ensure_object(Given)
        found: list[str] = []
        if given.engine_url and not given.engine_url.startswith("embedded"):
            logging.disable()  # a line of the log would stand in the one that is typed
            with suppress(Exception):  # the same holds for errors
                found = [each for each in self._find(given) if each.startswith(incomplete) and _PLAIN.fullmatch(each)]
        return [CompletionItem(each) for each in sorted(found)[:MOST]]


def _topics(given: Given) -> Iterable[str]:
    with opened(given, timeout=WITHIN_S) as engine:
        return engine.stats(shards=False).topics


def _engines(given: Given) -> Iterable[str]:
    with connected(
        EngineAccess(Engine(given.engine_url, timeout=WITHIN_S, connect_timeout=WITHIN_S)).options
    ) as driver:
        return names(driver, until=time.monotonic() + WITHIN_S)


_OF = {"topic": _topics, "name": _engines, "remove": _engines}
"""Parameter → the names for it. The flag ``--remove`` of other commands takes no text."""


def teach(command: click.Command) -> click.Command:
    """Lets a command, and those within it, complete names."""
    for param in command.params:
        if param.name in _OF and isinstance(param.type, click.types.StringParamType):
            param.type = _Named(_OF[param.name])
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        teach(each)
    return command
