"""The group of all commands; it turns an error into one line and an exit code. Called by ``main``."""

from __future__ import annotations

import difflib
import io
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from shardq.cli.config import WITH_SETTINGS, read_file, settings_of
from shardq.cli.options import Given, of_group
from shardq.cli.output import STDERR, STDOUT, complain, give_up, in_options, prepare
from shardq.errors import BadInput, ShardqError

GROUPS = {
    "Run": {
        "run": "run:run",
        "work": "work:work",
        "serve": "serve:serve",
        "demo": "demo:demo",
    },
    "Push": {
        "push": "push:push",
        "import": "transfer:import_lines",
        "every": "every:every",
        "outbox": "outbox:outbox",
        "spool": "spool:spool",
    },
    "Look": {
        "stats": "stats:stats",
        "health": "health:health",
        "list": "listing:list_tasks",
        "get": "tasks:get",
        "top": "top:top",
        "topics": "topics:topics",
        "forecast": "forecast:forecast",
        "fleet": "stats:fleet",
        "keys": "topics:keys",
        "shards": "shards:shards",
        "export": "transfer:export_lines",
    },
    "Change": {
        "cancel": "tasks:cancel",
        "requeue": "tasks:requeue",
        "reschedule": "tasks:reschedule",
        "pause": "topics:pause",
        "resume": "topics:resume",
        "limit": "topics:limit",
        "forward": "topics:forward",
        "hold": "topics:hold",
        "purge": "topics:purge",
    },
    "Operate": {
        "doctor": "health:doctor",
        "configure": "config:configure",
        "resize": "resize:resize",
        "engines": "engines:engines",
        "metrics": "metrics:metrics",
        "far": "far:far",
        "acl": "acl:acl",
        "token": "token:token",
        "deploy": "deploy:deploy",
        "plan": "plan:plan",
        "config": "config:config",
        "upgrade": "upgrade:upgrade",
    },
}
"""Where each command is, in the order of the help: those of a group that are used most come first. One is loaded when
it is used; the help loads them all.
"""

PLACES = {name: place for places in GROUPS.values() for name, place in places.items()}

HELP = frozenset(("-h", "--help", "--version"))
"""Is answered even where a setting is wrong."""

SHORT = 65
"""Columns of a command's line in the help."""

COMPLETE = "_SHARDQ_COMPLETE"
"""Set where a shell asks for completions: what it wants, such as ``bash_complete``."""

DONE, FAILED, MISUSED, INTERRUPTED, UNHEARD = 0, 1, 2, 130, 141
"""141 is what a shell says of a program that SIGPIPE ended: its reader has gone, as `head` does when it has enough."""


def load(name: str) -> click.Command:
    """Imports a command; each of its settings gets a variable."""
    module, _, attribute = PLACES[name].partition(":")
    command = getattr(import_module(f"shardq.cli.{module}"), attribute)
    assert isinstance(command, click.Command)
    if name in WITH_SETTINGS:
        _name_variables(command, f"SHARDQ_{name}")
    else:
        # else click takes a setting of the group for the command's own: `shards` and `far` are both
        command.context_settings["default_map"] = {}
    return command


def _name_variables(command: click.Command, prefix: str) -> None:
    for name, option in settings_of(command).items():
        option.envvar = f"{prefix}_{name}".upper()


@contextmanager
def _unheard() -> Iterator[None]:
    """A block in which the reader of our output may go. By themselves click and rich would call that a failure."""
    try:
        yield
    except (BrokenPipeError, SystemExit) as exc:
        if not any(isinstance(each, BrokenPipeError) for each in (exc, exc.__context__)):
            raise
        give_up(STDOUT, STDERR)
        raise click.exceptions.Exit(UNHEARD) from None


class Commands(click.Group):
    """The group of all commands."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _unheard():  # it prints the help
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _unheard():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(PLACES)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, PLACES))
        for title, places in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{widest}}", load(name).get_short_help_str(SHORT)) for name in places])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in PLACES:
            return load(cmd_name) if COMPLETE not in os.environ else _teach(load(cmd_name))
        if close := difflib.get_close_matches(cmd_name, PLACES, n=1):
            ctx.fail(f"No such command '{cmd_name}'. Did you mean '{close[0]}'?")
        return None


def _teach(command: click.Command) -> click.Command:
    from shardq.cli.completion import teach  # here: it loads the engine

    return teach(command)


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from shardq.version import __version__  # here: it takes a while to load

        click.echo(f"shardq {__version__}")
        ctx.exit()


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
example:
  shardq demo                                   see it at work
  export SHARDQ_URL=redis://127.0.0.1:6379/0    your server
  shardq run --quiet &                          moves tasks when they are due
  shardq push '{"order": 42}' --delay 30m       prints the id of the task
  shardq stats                                  counts the tasks in each state

\b
completion of commands, options, topics, engines and states, by Tab:
  eval "$(_SHARDQ_COMPLETE=bash_source shardq)"     in ~/.bashrc
  eval "$(_SHARDQ_COMPLETE=zsh_source shardq)"      in ~/.zshrc
  _SHARDQ_COMPLETE=fish_source shardq | source      in ~/.config/fish/config.fish

\b
exit codes:
  0  done
  1  refused or failed, or not all of it done
  2  the command line is not understood; nothing was done
  141  the reader of the output has gone, such as `head`
  130, 143, 129  ended by Ctrl-C, SIGTERM or SIGHUP (`run` and `work`, which
                 you end in this way, have 0 then)""",
)
@of_group
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
def app() -> None:
    """Push delayed tasks, run the pollers that move them when they are due, look at them, and operate the engine.

    `shardq COMMAND --help` explains a command, with examples.
    """


_name_variables(app, "SHARDQ")


def invoke() -> int:
    """Runs the command line and returns the exit code."""
    prepare()
    given = Given()
    if COMPLETE in os.environ:
        _teach(app)
    try:
        defaults: dict[str, Any] = {}
        if not HELP.intersection(sys.argv):
            given.file, defaults = read_file(lambda name: load(name) if name else app)
        code = app.main(prog_name="shardq", standalone_mode=False, obj=given, default_map=defaults)
        sys.stdout.flush()
    except click.ClickException as exc:
        said = io.StringIO()
        exc.show(said)
        complain(said.getvalue().rstrip())
        return exc.exit_code
    except click.Abort:  # click raises it for an interrupt
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone
        give_up(STDOUT, STDERR)
        return UNHEARD
    except (ShardqError, OSError) as exc:
        if given.verbose:
            complain(traceback.format_exc().rstrip())
        complain(f"error: {in_options(str(exc)) if isinstance(exc, ShardqError) else _of_system(exc)}")
        return MISUSED if isinstance(exc, BadInput) else FAILED
    return code if isinstance(code, int) else DONE


def _of_system(exc: OSError) -> str:
    """Says what is wrong with a file, or with our own output."""
    why = exc.strerror or str(exc)
    if exc.filename is not None:
        return f"{os.fsdecode(exc.filename)}: {why}"
    give_up(STDOUT)
    return f"the output can't be written: {why}"
