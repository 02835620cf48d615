"""The options that every command takes, before or after its name; the types of options, and options that several
commands share. Called by all commands.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, get_args

import click
import msgspec
from click.core import ParameterSource

from shardq.cli.output import say, tell
from shardq.core.layout.slots import MAX_SHARDS
from shardq.core.layout.words import UNDECODABLE
from shardq.core.model.checks import MAX_ATTEMPTS, OnConflict
from shardq.core.model.quantities import due_range, expiry, instant, rate, seconds, size
from shardq.core.model.task_options import CONTENT, OPTIONS, Kind, Option, TaskOptions
from shardq.engine.around import DEFAULT_NAME
from shardq.errors import BadInput

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    AnyType = click.ParamType[Any]
else:
    AnyType = click.ParamType  # which older versions of click can't take a parameter for

# ---- types


class Read(AnyType):
    """The type of options whose text ``read`` reads; the help has ``name``, in capitals, for a value."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except BadInput:
            raise
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


TIME = Read("time", seconds)
INSTANT = Read("instant", instant)
EXPIRY = Read("time", expiry)
DUE = Read("from..to", due_range)
RATE = Read("rate", rate)
SIZE = Read("size", size)

_SEPARATORS = re.compile(r"[\s,_']")


def _number(value: str, what: str, form: str) -> str:
    """Returns the text if it is a number of that form. Raises ValueError.

    >>> _number("1,000", "a whole number", r"[+-]?\\d+")
    Traceback (most recent call last):
    ValueError: '1,000' is not a whole number; write it without separators, as 1000
    """
    if re.fullmatch(rf"\s*{form}\s*", value, re.ASCII):
        return value
    bare = _SEPARATORS.sub("", value)
    hint = f"; write it without separators, as {bare}" if bare != value and re.fullmatch(form, bare, re.ASCII) else ""
    raise ValueError(f"{value!r:.80} is not {what}{hint}")


class Whole(click.IntRange):
    """A whole number, within bounds."""

    name = "n"
    _text = Read(name, lambda text: _number(text, "a whole number", r"[+-]?\d+"))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(self._text.convert(value, param, ctx), param, ctx)


class Decimal(click.FloatRange):
    """A number, within bounds."""

    _text = Read("number", lambda text: _number(text, "a number", r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?"))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(self._text.convert(value, param, ctx), param, ctx)


def raw_json(text: str, otherwise: str) -> Any:
    """The payload that stores JSON text as it stands. ``otherwise``: what to do with text that is not JSON."""
    try:
        msgspec.json.decode(text)
    except UNDECODABLE as exc:  # halves of surrogate pairs, and a deep one, too
        why = "it is nested too deeply" if isinstance(exc, RecursionError) else exc
        raise click.UsageError(f"the payload is not JSON: {why}; {otherwise}") from None
    return msgspec.Raw(text.encode())


# ---- commands


def command(
    short: str, *, of: click.Group | None = None, name: str | None = None, more: str = ""
) -> Callable[[F], click.Command]:
    """Makes a command of a function. Its docstring is the help: the text, and below the options the blocks from the
    first one on that has a title, such as ``example:``. ``more``: another block.
    """

    def make(function: F) -> click.Command:
        text, *blocks = re.split(r"\n\n(?=[^\n]*:\n  )", inspect.getdoc(function) or "")
        below = "\n\n".join(filter(None, (*blocks, more)))
        epilog = "\n\n".join(f"\b\n{block}" for block in below.split("\n\n")) if below else None
        return (of.command if of else click.command)(name, short_help=short, help=text, epilog=epilog)(function)

    return make


# ---- options of every command


@dataclass
class Given:
    """The values that the user gave, in either place."""

    url: str | None = None
    """The URL of the command line."""
    name: str | None = None
    """The name of the command line."""
    far: str | None = None
    """The database of far tasks, of the command line."""
    json: bool = False
    verbose: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    """The url, the name, and the shards of a new engine, by the environment or the file."""
    file: Path = Path()
    """The file of settings."""

    def answer(self, fields: Any, text: str) -> None:
        """Prints the result of a command: as JSON with --json, or as text."""
        if self.json:
            tell(fields)
        else:
            say(text)

    @property
    def engine_url(self) -> str | None:
        return self.url or self.settings.get("url")

    @property
    def far_url(self) -> str | None:
        return self.far or self.settings.get("far")

    @property
    def engine_name(self) -> str:
        return self.name or self.settings.get("name") or DEFAULT_NAME


pass_given: Final = click.make_pass_decorator(Given, ensure=True)


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    # an option that is absent after the command's name keeps its value from before the name
    if value is not None and value is not False and param.name is not None:
        given = ctx.ensure_object(Given)
        if ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
            if value == "":
                raise click.BadParameter("it is empty; is the variable set that it is taken from?", ctx, param)
            setattr(given, param.name, value)
        else:
            given.settings[param.name] = value


def setting(*names: str, **attributes: Any) -> Callable[[F], F]:
    """An option that has a variable, and a key in pyproject.toml; ``app`` gives the variable its name."""
    return click.option(*names, show_envvar=True, **attributes)


def joined(*options: Callable[..., Any]) -> Callable[[F], F]:
    """Makes one decorator of several; ``--help`` lists the options in this order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def packed(into: str, make: Callable[..., Any], *options: Callable[..., Any]) -> Callable[[F], F]:
    """Makes one decorator of several options. The command is given ``make(**values)`` under the name ``into``."""
    names = frozenset(inspect.signature(make).parameters)

    def add(command: F) -> F:
        @wraps(command)
        def call(*args: Any, **values: Any) -> Any:
            others = {name: value for name, value in values.items() if name not in names}
            made = make(**{name: value for name, value in values.items() if name in names})
            return command(*args, **others, **{into: made})

        return joined(*options)(cast("F", call))

    return add


_kept: dict[str, Any] = {"expose_value": False, "callback": _keep}

reporting: Final = joined(
    click.option("--json", is_flag=True, help="Print JSON, one object a line.", **_kept),
    click.option("-v", "--verbose", is_flag=True, help="Log more, and show where errors come from.", **_kept),
)
"""The options of a command that is told nothing of an engine."""


_FAR = "The database in which the engine's far tasks wait, if it has one: postgresql://HOST/NAME, or a file of SQLite."


def sharing(*, url: str, name: str | None = None) -> Callable[[F], F]:
    """Adds the options to a command, whose first argument is then a ``Given``. ``url`` and ``name`` are help texts;
    without one, --name is hidden.
    """
    return joined(
        click.option("--url", metavar="URL", help=url, **_kept),
        click.option("--name", metavar="NAME", help=name, hidden=name is None, **_kept),
        click.option("--far", metavar="URL", help=_FAR, hidden=name is None, **_kept),
        reporting,
        pass_given,
    )


NO_SERVER = "Not used: no server is asked."

_URL = "The server: redis://, rediss://, unix://, redis+cluster://, redis+sentinel:// or embedded://[PATH]. Default:"
_OWN = "an embedded server of this user."
_NAME = "The engine's name. Default:"

shared: Final = sharing(url=f"{_URL} $SHARDQ_URL, else {_OWN}", name=f"{_NAME} $SHARDQ_NAME, else {DEFAULT_NAME}.")

of_group: Final = joined(
    setting("--url", metavar="URL", help=f"{_URL} {_OWN}", **_kept),
    setting("--name", metavar="NAME", help=f"{_NAME} {DEFAULT_NAME}.", **_kept),
    setting("--far", metavar="URL", help=_FAR, **_kept),
    setting("--shards", type=Whole(1, MAX_SHARDS), hidden=True, **_kept),
    reporting,
)
"""The options before the name of a command, which the environment and the file set, too."""

# ---- options of several commands


def _headers(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str] | None:
    pairs = [text.partition("=") for text in value]
    for text, (key, equals, _) in zip(value, pairs, strict=True):
        if not equals or not key:
            raise click.BadParameter(f"{text!r} is not a header; write it as KEY=VALUE", ctx, param)
    return {key: content for key, _, content in pairs} or None


MANY: dict[str, Any] = {"multiple": True, "callback": lambda ctx, param, value: value or None}
"""An option that may be repeated: a tuple, or None."""


def _of_task(option: Option) -> Callable[[F], F]:
    """The option of a push, as a command takes it."""
    flag, metavar = f"--{option.word.replace('_', '-')}", option.word.upper()
    given: dict[Kind, dict[str, Any]] = {
        "seconds": {"type": TIME},
        "instant": {"type": INSTANT},
        "expiry": {"type": EXPIRY},
        "text": {"metavar": metavar},
        "choice": {"type": click.Choice(get_args(OnConflict)), "show_default": True},
        "count": {"type": Whole(1, MAX_ATTEMPTS)},
        "pairs": {"metavar": "KEY=VALUE"} | MANY | {"callback": _headers},
        "words": {"metavar": metavar} | MANY,
    }
    default = getattr(TaskOptions(), option.name)
    more = {} if default is None else {"default": default}
    if option.name == "url":
        return _renamed(option.word, option.name, click.option(flag, option.word, help=option.help, **given["text"]))
    return click.option(flag, option.name, help=option.help, **given[option.kind] | more)


def _renamed(word: str, name: str, option: Callable[[F], F]) -> Callable[[F], F]:
    """The option of a word, whose value the command gets by another name, which another option has, too."""

    def add(command: F) -> F:
        @wraps(command)
        def call(*args: Any, **values: Any) -> Any:
            value = values.pop(word)
            return command(*args, **values, **{name: value})

        return option(cast("F", call))

    return add


def task_options(*names: str) -> Callable[[F], F]:
    """Adds the options of a push with these names, in the order of the table; without any name, all but ``id``."""
    return joined(*(_of_task(option) for option in OPTIONS if (option.name in names if names else option.name != "id")))


due_options: Final = task_options("delay", "at")
content_options: Final = task_options(*(option.name for option in CONTENT))
"""The options of a task that say neither when it is due nor under which id."""
