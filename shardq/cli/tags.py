"""cancel-tag: the command that removes the tasks of a tag, with a live count."""

from __future__ import annotations

import signal

import click

from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import complain, say, tell
from shardq.cli.session import opened
from shardq.cli.signals import Ending
from shardq.cli.table import progress
from shardq.core.model.task import CancelledTag
from shardq.engine.tables import counted
from shardq.errors import ShardqError

SHOWN = 20
"""Ids of running tasks that are shown; of more only the number is."""


class _Ended(Exception):
    """A signal came between two pages."""


@click.command(
    "cancel-tag",
    short_help="Remove all tasks with a tag that are not leased.",
    epilog="""\b
example:
  shardq push '{"user": 42}' --delay 7d --tag user-42
  shardq cancel-tag user-42
  shardq cancel-tag user-42 --json | jq .running
\b
exit codes:
  0         no task with the tag is left
  1         some of them are running: they finish, and one that fails and is
            retried runs again; repeat the command when they have ended
  130, 143  ended by Ctrl-C or SIGTERM, after the page under way: what was
            cancelled stays so; repeat the command to cancel the rest""",
)
@click.argument("tag")
@shared
@pass_given
def cancel_tag(given: Given, tag: str) -> int:
    """Remove the tasks with TAG that are scheduled, ready or dead. Leased ones finish.

    There is no index of tags: every task of the engine is looked at, so it takes as long as all pending tasks need, not
    those with the tag. None that was pushed before is missed, also while the number of shards changes.
    """
    done = CancelledTag(cancelled=0, running=(), looked_at=0)
    whole = False
    with Ending() as ending, opened(given) as engine, progress("cancelling") as show:

        def note(so_far: CancelledTag) -> None:
            nonlocal done
            done = so_far
            show(_line(so_far))
            if ending.asked:
                raise _Ended

        try:
            done = engine.cancel_tag(tag, progress=note)
            whole = True
        except (_Ended, KeyboardInterrupt):  # the second signal does not wait for the page under way
            pass
        except ShardqError:
            if done.looked_at:
                complain(f"{_line(done)} before the error; repeat it to cancel the rest")
            raise
        finally:
            ending.finish()
    _tell(given, tag, done, whole=whole)
    if whole:
        return 0 if done else 1
    complain(f"ended by {signal.Signals(ending.signal or signal.SIGINT).name}; repeat it to cancel the rest")
    return ending.code


def _tell(given: Given, tag: str, done: CancelledTag, *, whole: bool) -> None:
    if given.json:
        fields = {"cancelled": done.cancelled, "running": done.running, "looked_at": done.looked_at}
        tell({"tag": tag, **fields, "whole": whole})
        return
    say(_line(done))
    if done.running:
        more = f" and {len(done.running) - SHOWN:,} more" if len(done.running) > SHOWN else ""
        verb = "is" if len(done.running) == 1 else "are"
        complain(f"{counted(len(done.running), 'task')} {verb} running: {', '.join(done.running[:SHOWN])}{more}")


def _line(done: CancelledTag) -> str:
    return f"{done.cancelled:,} cancelled, {done.looked_at:,} looked at"
