"""The options that every command takes, before or after its name. Called by all commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from shardq.cli.output import say, tell
from shardq.cli.parsers import Whole
from shardq.core.layout.slots import MAX_SHARDS
from shardq.engine.options import DEFAULT_NAME

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Given:
    """The values that the user gave, in either place."""

    url: str | None = None
    """The URL of the command line."""
    name: str | None = None
    """The name of the command line."""
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
    def engine_name(self) -> str:
        return self.name or self.settings.get("name") or DEFAULT_NAME

    @property
    def new_shards(self) -> int | None:
        """The shards of an engine that is new, if a setting names them."""
        return self.settings.get("shards")


pass_given = click.make_pass_decorator(Given, ensure=True)


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    # an option that is absent after the command's name keeps its value from before the name
    if value is not None and value is not False and param.name is not None:
        given = ctx.ensure_object(Given)
        if ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
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


reporting = joined(
    click.option("--json", is_flag=True, help="Print JSON, one object a line.", expose_value=False, callback=_keep),
    click.option(
        "-v",
        "--verbose",
        is_flag=True,
        help="Log more, and show where errors come from.",
        expose_value=False,
        callback=_keep,
    ),
)
"""The options of a command that is told nothing of an engine."""


def sharing(*, url: str, name: str | None) -> Callable[[F], F]:
    """Adds the options to a command, whose first argument is then a ``Given``. ``url`` and ``name`` are help texts;
    without one, --name is hidden.
    """
    return joined(
        click.option("--url", metavar="URL", help=url, expose_value=False, callback=_keep),
        click.option("--name", metavar="NAME", help=name, hidden=name is None, expose_value=False, callback=_keep),
        reporting,
        pass_given,
    )


URL_HELP = (
    "The server: redis://, rediss://, unix://, redis+cluster://, redis+sentinel:// or embedded://[PATH]. "
    "Default: $SHARDQ_URL, else an embedded server of this user."
)
NAME_HELP = f"The engine's name. Default: $SHARDQ_NAME, else {DEFAULT_NAME}."

shared = sharing(url=URL_HELP, name=NAME_HELP)

of_group = joined(
    setting("--url", metavar="URL", help=URL_HELP, expose_value=False, callback=_keep),
    setting("--name", metavar="NAME", help=NAME_HELP, expose_value=False, callback=_keep),
    setting("--shards", type=Whole(1, MAX_SHARDS), hidden=True, expose_value=False, callback=_keep),
    reporting,
)
"""The options before the name of a command, which the environment and the file set, too."""
