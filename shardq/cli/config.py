"""config: the command that shows every setting, its value, and where that comes from."""

from __future__ import annotations

from typing import Any

import click

from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import tell
from shardq.cli.settings import Known, Value
from shardq.cli.table import Column, Table
from shardq.engine import Engine

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
