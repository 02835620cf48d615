"""config: the command that shows every setting of the command, its value, and where that comes from. configure: shows
and changes the settings of an engine.
"""

from __future__ import annotations

from typing import Any

import click
import msgspec

from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import say, tell
from shardq.cli.parsers import Whole, read_by, seconds
from shardq.cli.session import opened
from shardq.cli.settings import Known, Value
from shardq.cli.table import Table
from shardq.core.layout.topology import EngineSettings
from shardq.core.model.checks import MAX_ATTEMPTS
from shardq.engine import Engine
from shardq.engine.tables import Column, age, counted

HIDDEN = "(hidden)"


@click.command(
    short_help="Show the settings, and where they come from.",
    epilog="""\b
example:
  shardq config
  shardq config --json
\b
example of pyproject.toml:
  [tool.shardq]
  url = "redis://127.0.0.1:6379/0"
  name = "orders"
  shards = 32                       (of a new name)
\b
  [tool.shardq.work]
  processes = 4
  topics = ["mail", "invoice"]""",
)
@shared
@pass_given
def config(given: Given) -> None:
    """Show each setting of this command, its value, and where it comes from. Passwords and tokens are
    hidden.

    A flag counts most, then the environment ($SHARDQ_URL, $SHARDQ_RUN_PROCESSES), then [tool.shardq] of the nearest
    pyproject.toml, from the current directory upwards. The library does not read that file: an Engine() of your program
    takes its URL from $SHARDQ_URL, and the rest from its arguments.
    """
    rows = [_row(given, known) for known in given.settings.known]
    if given.json:
        for known, value, origin in rows:
            tell({"setting": known.title, "value": value, "from": origin, "variable": known.variable})
        return
    table = Table[tuple[Known, Any, str]](
        Column("setting", lambda row: row[0].title, text=True),
        Column("value", lambda row: _shown(row[0], row[1]), text=True),
        Column("from", lambda row: row[2], text=True),
    )
    table.print(rows)


@click.command(
    short_help="Show or change the settings of an engine.",
    epilog="""\b
example:
  shardq configure
  shardq configure --max-attempts 10
  shardq configure --dead-age 7d --dead-count 1000000""",
)
@click.option(
    "--max-attempts",
    type=Whole(1, MAX_ATTEMPTS),
    metavar="N",
    help="The attempts of a task that brings no limit of its own, and whose handler has none.",
)
@click.option("--dead-age", metavar="TIME", callback=read_by(seconds), help="How long dead tasks are kept.")
@click.option("--dead-count", type=Whole(0, 10**9), metavar="N", help="How many dead tasks are kept, at most.")
@shared
@pass_given
def configure(given: Given, max_attempts: int | None, dead_age: float | None, dead_count: int | None) -> None:
    """Change settings of the engine, at once and for all of its processes. Without options it shows them. What an
    `Engine(…)` of a program names counts only when its engine is new.

    Dead tasks that are older, or more, are removed by whoever dispatches, within five minutes.
    """
    changes = {"max_attempts": max_attempts, "dead_age": dead_age, "dead_count": dead_count}
    with opened(given) as engine:
        if any(value is not None for value in changes.values()):
            engine.configure(max_attempts=max_attempts, dead_age=dead_age, dead_count=dead_count)
        settings = engine.topology.settings
    if given.json:
        tell(msgspec.to_builtins(settings))
    else:
        say(settings_shown(settings))


def settings_shown(settings: EngineSettings) -> str:
    """The settings of an engine in a line."""
    kept = f"dead tasks are kept for {age(settings.dead_age)}, {settings.dead_count:,} at most"
    return f"{counted(settings.max_attempts, 'attempt')} a task; {kept}"


def _row(given: Given, known: Known) -> tuple[Known, Any, str]:
    typed = {"url": given.url, "name": given.name}.get(known.title)
    found = Value(typed, f"--{known.name}") if typed else given.settings.values.get((known.section, known.name))
    if found is None:
        return known, None, "default"
    value = found.value
    if known.title == "url":
        value = Engine(value).options.safe_url
    elif known.is_secret:
        value = HIDDEN
    return known, value, found.origin


def _shown(known: Known, value: Any) -> str:
    if value is None:
        return known.default
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
