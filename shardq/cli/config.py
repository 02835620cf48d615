"""config: the command that shows every setting of the command, its value, and where that comes from. configure: shows
and changes the settings of an engine.

Settings are values for options. click reads them from the environment, and from its default map, which is
``[tool.shardq]`` of the nearest pyproject.toml that has one, from the current directory upwards.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from shardq import Engine
from shardq.cli.options import TIME, Given, Whole, command, shared
from shardq.cli.output import say, tell
from shardq.cli.session import opened
from shardq.cli.table import show
from shardq.core.layout.topology import EngineSettings, TopicSettings
from shardq.core.model.checks import MAX_ATTEMPTS, check_name
from shardq.core.model.ids import shown_topic
from shardq.engine.around import (
    DEFAULT_NAME,
    DEFAULT_SHARDS,
    Column,
    EngineAccess,
    View,
    age,
    counted,
    topic_settings,
    topics_given,
)
from shardq.errors import BadInput

FILE = "pyproject.toml"
TABLE = "tool.shardq"

WITH_SETTINGS = ("run", "work", "serve")
"""The commands that have settings of their own, besides those of the group: every option with ``show_envvar``."""

DEFAULTS = {
    "url": "an embedded server of this user",
    "name": DEFAULT_NAME,
    "far": "none: all tasks wait in Redis",
    "shards": f"{DEFAULT_SHARDS}, of a new name",
}


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    value: Any
    """None: it has its default."""
    default: Any
    origin: str
    """Where the value comes from."""
    variable: str

    @property
    def shown(self) -> str:
        value = self.default if self.value is None else self.value
        return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


Load = Callable[[str], click.Command]
"""Loads a command by its name; "" is the group."""


# ---- the file


def read_file(load: Load) -> tuple[Path, dict[str, Any]]:
    """The nearest file with settings, and these as click's default map. Raises BadInput for what is unknown there, or
    impossible. Loads only the commands that have a table in it.
    """
    path, table = _nearest()
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in WITH_SETTINGS:
            option, found = _checked(load(""), key, value, f"{path} [{TABLE}]", WITH_SETTINGS)
            values[option] = found
        elif isinstance(value, dict):
            where = f"{path} [{TABLE}.{key}]"
            values[key] = dict(_checked(load(key), name, inner, where) for name, inner in value.items())
        else:
            raise BadInput(f"{path}: {key} is a table: write [{TABLE}.{key}]")
    return path, values


def settings_of(command: click.Command) -> dict[str, click.Option]:
    options = (each for each in command.params if isinstance(each, click.Option))
    return {each.name: each for each in options if each.name and each.show_envvar}


def _checked(
    command: click.Command, name: str, value: Any, where: str, others: tuple[str, ...] = ()
) -> tuple[str, Any]:
    """The name of the option, and the value that it takes."""
    known = settings_of(command)
    option = known.get(name.replace("-", "_"))
    if option is None or option.name is None:
        names = (*known, *others)
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there is {', '.join(names)}"
        raise BadInput(f"{where} has no {name!r}; {hint}")
    of = f"{name} in {where}"
    if isinstance(value, bool) != option.is_flag:
        raise BadInput(f"{of}: {value!r} is not possible; write " + ("true or false" if option.is_flag else "a value"))
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        value = ",".join(value)
    if not isinstance(value, (str, int, float)):
        raise BadInput(f"{of}: a {type(value).__name__} is not possible; write a string or a number")
    try:
        if option.name == "url":
            Engine(str(value))
        elif option.name == "name":
            check_name(str(value))
        return option.name, option.type.convert(value if option.is_flag else str(value), option, None)
    except (click.BadParameter, BadInput) as exc:
        raise BadInput(f"{of}: {exc.message if isinstance(exc, click.BadParameter) else exc}") from None


def _nearest() -> tuple[Path, dict[str, Any]]:
    """The nearest pyproject.toml with our table, and that; an empty table if there is none."""
    try:
        here = Path.cwd()
    except OSError:  # it was removed
        return Path(), {}
    for folder in (here, *here.parents):
        path = folder / FILE
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if "shardq" not in text:
            continue
        import tomllib  # here: most directories have none

        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as exc:
            raise BadInput(f"{path} is no TOML: {exc}") from None
        tool = tables.get("tool", {})
        if "shardq" in tool:
            if not isinstance(tool["shardq"], dict):
                raise BadInput(f"{path}: write a table, [{TABLE}]")
            return path, tool["shardq"]
    return Path(), {}


# ---- the commands


@command("Show the settings, and where they come from.")
@shared
def config(given: Given) -> None:
    """Show each setting of this command, its value, and where it comes from. Passwords and tokens are hidden.

    A flag wins over the environment ($SHARDQ_URL, $SHARDQ_RUN_PROCESSES), and that over [tool.shardq] in the
    nearest pyproject.toml, from the current directory upwards. The library does not read that file: an Engine() in
    your program takes its URL from $SHARDQ_URL, where its routes may send from $SHARDQ_SINKS and $SHARDQ_SECRETS,
    and the rest from its arguments.

    example:
      shardq config
      shardq config --json

    example of pyproject.toml:
      [tool.shardq]
      url = "redis://127.0.0.1:6379/0"
      name = "orders"
      shards = 32                       (of a new name)

      [tool.shardq.work]
      processes = 4
      topics = ["mail", "invoice"]
    """
    columns = (
        Column[Setting]("setting", lambda each: each.name, text=True),
        Column[Setting]("value", lambda each: each.shown, text=True),
        Column[Setting]("from", lambda each: each.origin, text=True),
    )
    show(
        given,
        View(columns, list(_settings(given, click.get_current_context().find_root()))),
        lambda each: {"setting": each.name, "value": each.value, "from": each.origin, "variable": each.variable},
    )


@command("Show or change the settings of an engine and its topics.")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--max-attempts",
    type=Whole(1, MAX_ATTEMPTS),
    help="Attempts of a task, if neither its push nor its handler says how many.",
)
@click.option("--dead-age", type=TIME, help="How long dead tasks are kept.")
@click.option("--dead-count", type=Whole(0, 10**9), help="How many dead tasks are kept at most.")
@click.option("--done-age", type=TIME, help="How long it is kept what became of ended tasks; 0 for not at all.")
@click.option("--done-count", type=Whole(0, 10**9), help="Of how many ended tasks it is kept at most.")
@click.option("--dry-run", is_flag=True, help="Show which topics of FILE would change, and change nothing.")
@shared
def configure(given: Given, file: Path | None, dry_run: bool, **changes: Any) -> None:
    """Change settings of the engine, or set those of many topics from FILE, at once and for all processes. Without
    options, show the engine's. The arguments of `Engine(…)` apply only when the engine is created.

    FILE is TOML, or JSON where its name ends in .json. What a topic leaves out stays as it is; false ends a limit or
    a route. Topics that are not in FILE stay as they are.

    Dispatchers remove dead tasks that are too old, or too many, within five minutes.

    example:
      shardq configure
      shardq configure --max-attempts 10
      shardq configure --dead-age 7d --dead-count 1000000
      shardq configure --done-age 1h              (then `shardq get ID` says when a task was done)
      shardq configure topics.toml --dry-run

    example of topics.toml:
      [topics.mail]
      rate = 50                  (a second)
      concurrency = 8
      pause = false
      done_age = 600             (seconds, of the engine's --done-age at most; 0 for none)

      [topics.webhook]
      per_key = 20               (of each key; and per_key_rate, on_failure)

      [topics.log]
      forward = "stream:log"     (what `shardq forward` takes as --to)
      maxlen = 100000            (or side = "left", of a list)
    """
    topics = _topics_in(file) if file else None
    if dry_run and topics is None:
        raise click.UsageError("--dry-run goes with a FILE of topics")
    edited: dict[str, TopicSettings] = {}
    with opened(given) as engine:
        if topics is not None or any(value is not None for value in changes.values()):
            edited = engine.configure(topics=topics, dry_run=dry_run, **changes)
        settings = engine.topology.settings
    if topics is None:
        given.answer(msgspec.to_builtins(settings), settings_shown(settings))
        return
    shown = {topic: topic_settings(each) or "no settings" for topic, each in edited.items()}
    if given.json:
        tell({"topics": shown, "changed": not dry_run})
        return
    for topic, each in shown.items():
        say(f"{shown_topic(topic)}: {each}")
    say(f"{counted(len(topics), 'topic')} in {file}: {len(edited):,} {'would change' if dry_run else 'changed'}")


def _topics_in(file: Path) -> Any:
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".json":
            import json

            content = json.loads(text)
        else:
            import tomllib

            content = tomllib.loads(text)
    except (OSError, ValueError) as exc:
        raise BadInput(f"{file} can't be read: {exc}") from None
    if not isinstance(content, dict) or set(content) != {"topics"}:
        raise BadInput(f"{file} needs one table for each topic, as [topics.mail], and nothing else")
    try:
        topics_given(content["topics"])
    except BadInput as exc:
        raise BadInput(f"{file}: {exc}") from None
    return content["topics"]


def settings_shown(settings: EngineSettings) -> str:
    """The settings of an engine in a line."""
    kept = f"dead tasks are kept for {age(settings.dead_age)}, {settings.dead_count:,} at most"
    if settings.done_age and settings.done_count:
        kept += f"; what became of others for {age(settings.done_age)}, of {settings.done_count:,} at most"
    return f"{counted(settings.max_attempts, 'attempt')} a task; {kept}"


def _settings(given: Given, root: click.Context) -> Iterator[Setting]:
    assert isinstance(root.command, click.Group)
    for name, option in settings_of(root.command).items():
        typed = {"url": given.url, "name": given.name}.get(name)
        value, origin = (typed, f"--{name}") if typed else _found(given, root, option, TABLE)
        if name == "url" and value is not None:
            value = EngineAccess(Engine(value)).options.safe_url
        yield Setting(name, value, DEFAULTS[name], origin, str(option.envvar))
    for section in WITH_SETTINGS:
        command = root.command.get_command(root, section)
        assert command is not None
        with command.make_context(section, [], parent=root, resilient_parsing=True) as ctx:
            for name, option in settings_of(command).items():
                value, origin = _found(given, ctx, option, f"{TABLE}.{section}")
                # a default that is neither is click's word for none
                default = option.default if isinstance(option.default, (int, str)) else "-"
                yield Setting(f"{section}.{name}", value, default, origin, str(option.envvar))


def _found(given: Given, ctx: click.Context, option: click.Option, table: str) -> tuple[Any, str]:
    assert option.name is not None
    value = given.settings.get(option.name) if ctx.parent is None else ctx.params[option.name]
    source = ctx.get_parameter_source(option.name)
    if source is ParameterSource.ENVIRONMENT:
        return os.environ[str(option.envvar)] if value is None else value, f"${option.envvar}"
    if source is ParameterSource.DEFAULT_MAP:
        return value, f"{given.file} [{table}]"
    return None, "default"
