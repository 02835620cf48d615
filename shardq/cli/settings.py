"""Settings: values for options that stand in pyproject.toml, or in the environment. A flag counts before both.

``[tool.shardq]`` of the nearest pyproject.toml that has one, from the current directory upwards, is read first, then
the environment: ``processes`` of ``[tool.shardq.run]`` is ``$SHARDQ_RUN_PROCESSES``. Only the command reads the file;
the library takes its URL from ``$SHARDQ_URL``, and nothing else.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from shardq.cli.parsers import Whole
from shardq.core.layout.slots import MAX_SHARDS
from shardq.core.model.checks import check_name
from shardq.engine import Engine
from shardq.engine.options import DEFAULT_NAME, DEFAULT_SHARDS
from shardq.errors import BadInput
from shardq.features import embedded

FILE = "pyproject.toml"
TABLE = "tool.shardq"
PREFIX = "SHARDQ_"


class Setting(click.Option):
    """An option of a command that can be set in the command's table, too; its help names the variable."""

    is_secret = False

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        if record is None or self.name is None:
            return record
        words, text = record
        return words, f"{text}  [${variable(ctx.info_name or '', self.name)}]"


class SecretSetting(Setting):
    """One that `shardq config` hides."""

    is_secret = True


@dataclass(frozen=True, slots=True)
class Known:
    """A setting that there is."""

    section: str
    """The command; "": every command."""
    name: str
    convert: Callable[[str], Any]
    """Raises BadInput or click.BadParameter."""
    default: str
    is_flag: bool = False
    is_secret: bool = False
    """True if it is shown to nobody."""

    @property
    def title(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def variable(self) -> str:
        return variable(self.section, self.name)


@dataclass(frozen=True, slots=True)
class Value:
    value: Any
    origin: str
    """A file and its table, or a variable."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The values that are set, by section and name."""

    commands: Callable[[], Iterable[click.Command]] = tuple
    """Loads the commands that have settings of their own."""
    values: Mapping[tuple[str, str], Value] = field(default_factory=dict)

    @property
    def known(self) -> list[Known]:
        return [*_of_every_command(), *_of(self.commands())]

    def get(self, name: str) -> Any:
        """A setting of every command, or None."""
        found = self.values.get(("", name))
        return found.value if found else None

    @property
    def default_map(self) -> dict[str, dict[str, Any]]:
        """The settings of commands, as click takes them."""
        maps: dict[str, dict[str, Any]] = {}
        for (section, name), found in self.values.items():
            maps.setdefault(section, {})[name] = found.value
        return {section: values for section, values in maps.items() if section}

    @classmethod
    def read(cls, commands: Callable[[], Iterable[click.Command]]) -> Settings:
        """Reads them all, and refuses what is unknown or impossible. Loads ``commands`` only if something is set that
        may be theirs.
        """
        path, table = _nearest()
        known = list(_of_every_command())
        if table or _variables() - {embedded.ENVIRONMENT, *(each.variable for each in known)}:
            known += _of(commands())
        values = {(each.section, each.name): value for each, value in _of_file(known, path, table)}
        for each in known:
            if text := os.environ.get(each.variable):
                values[each.section, each.name] = Value(_checked(each, text, f"${each.variable}"), f"${each.variable}")
        return cls(commands, values)


def variable(section: str, name: str) -> str:
    """
    >>> variable("", "url"), variable("run", "processes")
    ('SHARDQ_URL', 'SHARDQ_RUN_PROCESSES')
    """
    return PREFIX + "_".join(filter(None, (section.upper(), name.upper())))


def _variables() -> set[str]:
    """The names of our variables that are set."""
    return {name for name, text in os.environ.items() if name.startswith(PREFIX) and text}


def _of_every_command() -> Iterator[Known]:
    def url(text: str) -> str:
        Engine(text)
        return text

    def name(text: str) -> str:
        check_name(text)
        return text

    yield Known("", "url", url, "an embedded server of this user")
    yield Known("", "name", name, DEFAULT_NAME)
    yield Known("", "shards", _converter(Whole(1, MAX_SHARDS)), f"{DEFAULT_SHARDS}, of a new name")


def _of(commands: Iterable[click.Command]) -> Iterator[Known]:
    for command in commands:
        for option in command.params:
            if isinstance(option, Setting) and option.name is not None:
                convert = _converter(click.BOOL if option.is_flag else option.type)
                # UNSET is click's, and no value.
                default = option.default if isinstance(option.default, (int, str)) else "-"
                default = "no" if default is False else str(default)
                yield Known(
                    str(command.name),
                    option.name,
                    convert,
                    default,
                    is_flag=bool(option.is_flag),
                    is_secret=option.is_secret,
                )


def _converter(kind: click.ParamType[Any]) -> Callable[[str], Any]:
    return lambda text: kind.convert(text, None, None)


def _of_file(known: list[Known], path: Path, table: Mapping[str, Any]) -> Iterator[tuple[Known, Value]]:
    of_section: dict[str, dict[str, Known]] = {}
    for each in known:
        of_section.setdefault(each.section, {})[each.name] = each
    for key, value in table.items():
        if key in of_section:
            if not isinstance(value, dict):
                raise BadInput(f"{path}: {key} is a table: write [{TABLE}.{key}]")
            where = f"{path} [{TABLE}.{key}]"
            for name, inner in value.items():
                yield _set(of_section[key], name, inner, where, of_section[key])
        else:
            yield _set(of_section[""], key, value, f"{path} [{TABLE}]", [*of_section[""], *filter(None, of_section)])


def _set(section: Mapping[str, Known], name: str, value: Any, where: str, names: Iterable[str]) -> tuple[Known, Value]:
    each = section.get(name.replace("-", "_"))
    if each is None:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there is {', '.join(names)}"
        raise BadInput(f"{where} has no {name!r}; {hint}")
    of = f"{name} in {where}"
    if isinstance(value, bool) != each.is_flag:
        raise BadInput(f"{of}: {value!r} is not possible; write " + ("true or false" if each.is_flag else "a value"))
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        value = ",".join(value)
    if not isinstance(value, (str, int, float)):
        raise BadInput(f"{of}: a {type(value).__name__} is not possible; write a string or a number")
    return each, Value(_checked(each, str(value), of), where)


def _checked(each: Known, text: str, of: str) -> Any:
    try:
        return each.convert(text)
    except click.BadParameter as exc:
        raise BadInput(f"{of}: {exc.message}") from None
    except BadInput as exc:
        raise BadInput(f"{of}: {exc}") from None


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
