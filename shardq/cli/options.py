"""The options that every command takes, before or after its name. Used by all of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from shardq.engine.options import DEFAULT_NAME

F = TypeVar("F", bound=Callable[..., Any])

NAME_ENVIRONMENT = "SHARDQ_NAME"


@dataclass
class Given:
    """The options that the user gave, in either place."""

    url: str | None = None
    """The URL as on the command line; the engine looks into the environment itself."""
    name: str | None = None
    json: bool = False
    verbose: bool = False

    @property
    def engine_name(self) -> str:
        return self.name or os.environ.get(NAME_ENVIRONMENT) or DEFAULT_NAME


pass_given = click.make_pass_decorator(Given, ensure=True)


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    # not given here must not undo what was given before the command's name
    if value is not None and value is not False and param.name is not None:
        setattr(ctx.ensure_object(Given), param.name, value)


def sharing(*, url: str, name: str | None) -> Callable[[F], F]:
    """Adds them to a command, with what its help says of two. Without a text of its own, ``name`` is not shown."""
    options = (
        click.option("--url", metavar="URL", help=url, expose_value=False, callback=_keep),
        click.option("--name", metavar="NAME", help=name, hidden=name is None, expose_value=False, callback=_keep),
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

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


shared = sharing(
    url="The server: redis://, rediss://, unix://, redis+cluster://, redis+sentinel:// or embedded://[PATH]. "
    "Default: $SHARDQ_URL, else an embedded server of this user's.",
    name=f"The engine's name. Default: ${NAME_ENVIRONMENT}, else {DEFAULT_NAME}.",
)
