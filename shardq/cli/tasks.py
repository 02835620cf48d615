"""get, cancel, reschedule and requeue: commands on tasks by id. Three of them also take all tasks that match: the count
and the question come first, then the tasks page by page.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import click
import msgspec

from shardq import Engine
from shardq.cli.listing import Filter, filter_options
from shardq.cli.options import Given, command, due_options, joined, shared
from shardq.cli.output import complain, say, tell
from shardq.cli.serving import Ending
from shardq.cli.session import opened
from shardq.cli.table import progress
from shardq.core.model.ids import full_id
from shardq.core.producer.commands_by_id import Verb
from shardq.engine.around import EngineAccess, counted, forms
from shardq.errors import ShardqError
from shardq.features.listing import line
from shardq.features.listing.bulk import DONE, STATES, BulkResult

SHOWN = 20
"""Ids of running tasks that are shown; of more only the number is."""

ENDED = """with --topic, --key, --state, --due, --tag or --all (not with ids):
  0         all that matched were done
  1         some were not, because workers had them, or nothing was done
  130, 143  ended by Ctrl-C or SIGTERM, after the page under way; run the
            command again for the rest"""


_ids = click.argument("ids", metavar="[ID...]", nargs=-1)

_bulk = joined(
    click.option("--all", "everything", is_flag=True, help="All tasks, of all topics."),
    click.option("--dry-run", is_flag=True, help="Only count the tasks that match."),
    click.option("--yes", is_flag=True, help="Do not count first, and do not ask."),
)


class _Ended(Exception):
    """A signal came between two pages."""


@dataclass
class BulkCommand:
    """One command on many tasks, as the user gave it."""

    given: Given
    verb: Verb
    filter: Filter
    everything: bool
    dry_run: bool
    yes: bool
    options: dict[str, Any]
    """Further arguments of the engine's command."""
    _so_far: BulkResult = field(default_factory=lambda: BulkResult(matched=0, done=0), init=False)

    def check(self, ids: tuple[str, ...]) -> bool:
        """Returns True if it is about many tasks, and False if it is about ids. Raises UsageError."""
        many = bool(self.filter) or self.everything
        if many == bool(ids):
            raise click.UsageError(
                f"give the ids of tasks, or say by --topic and the like which are to be {DONE[self.verb]}, or --all"
            )
        if not many:
            if self.dry_run:
                raise click.UsageError("--dry-run goes with --topic and the like, or --all: it counts")
            return False
        if self.filter and self.everything:
            raise click.UsageError("--all is for all tasks: leave it out, or --topic and the like")
        if not (self.yes or self.dry_run or (sys.stdin and sys.stdin.isatty())):
            raise click.UsageError("there is no terminal to ask for confirmation on: add --yes, or --dry-run to count")
        return True

    def run(self) -> int:
        if self.dry_run or self.yes:
            return self._at_once()
        with opened(self.given) as engine:
            with Ending() as ending:
                code = self._walk(engine, ending, dry=True, first=True)
            if ending.asked or not self._so_far.matched:
                return code
            if not click.confirm(self._question(engine), err=True):
                say(f"nothing {DONE[self.verb]}")
                return 1
            with Ending() as ending:
                return self._walk(engine, ending, dry=False)

    def _at_once(self) -> int:
        with Ending() as ending:
            try:
                with opened(self.given) as engine:
                    return self._walk(engine, ending, dry=self.dry_run)
            except ShardqError:
                # it was told to end before it could begin: what else went wrong is no news
                if not ending.asked or self._so_far.matched:
                    raise
                return ending.code

    def _walk(self, engine: Engine, ending: Ending, *, dry: bool, first: bool = False) -> int:
        """Goes through all pages and tells the outcome. Returns the exit code. ``first``: it only counts, for the
        question, so that nothing is told if there is something to ask.
        """
        of = f" of {self._so_far.matched:,}" if self._so_far.matched else ""
        what = "match" if dry else DONE[self.verb]
        self._so_far = BulkResult(matched=0, done=0)
        command: Callable[..., BulkResult] = getattr(engine, f"{self.verb}_all")
        with progress("looking") as show:

            def note(so_far: BulkResult) -> None:
                self._so_far = so_far
                show(description=f"{so_far.matched if dry else so_far.done:,}{of} {what}")
                if ending.asked:
                    raise _Ended

            try:
                arguments = self.filter.arguments(engine) | {"everything": self.everything} | self.options
                self._so_far = command(**arguments, dry_run=dry, progress=note)
                whole = True
            except (_Ended, KeyboardInterrupt):  # the second signal does not wait for the page under way
                whole = False
            except ShardqError:
                if self._so_far.done:
                    complain(f"{self._line()} before the error; repeat it for the rest")
                raise
            finally:
                ending.finish()
        if whole:
            return 0 if first and self._so_far.matched else self._told(whole=True)
        name = signal.Signals(ending.signal or signal.SIGINT).name
        if dry:
            complain(f"ended by {name} while it counted: nothing was {DONE[self.verb]}")
        else:
            self._told(whole=False)
            complain(f"ended by {name}; repeat it for the rest")
        return ending.code

    def _question(self, engine: Engine) -> str:
        what = "dead tasks" if self.verb == "requeue" else "tasks"
        count = f"{self._so_far.matched:,} {self.filter.of(what)}"
        return f"{self.verb.capitalize()} {count}, of {engine.name!r} at {EngineAccess(engine).options.safe_url}?"

    def _told(self, *, whole: bool) -> int:
        result = self._so_far
        others = {str(outcome): count for outcome, count in sorted(result.others.items())}
        if self.given.json:
            fields = {"matched": result.matched, DONE[self.verb]: result.done, "others": others, "whole": whole}
            if self.filter.tag is not None:
                fields |= {"running": result.running, "looked_at": result.looked_at}
            tell(fields | ({"dry_run": True} if self.dry_run else {}))
        elif self.dry_run:
            say(f"{result.matched:,} would be {DONE[self.verb]}")
        else:
            say(self._line())
            if result.running:
                more = f" and {len(result.running) - SHOWN:,} more" if len(result.running) > SHOWN else ""
                verb = "is" if len(result.running) == 1 else "are"
                ids = ", ".join(result.running[:SHOWN])
                complain(f"{counted(len(result.running), 'task')} {verb} running: {ids}{more}")
        return 0 if result or self.dry_run else 1

    def _line(self) -> str:
        others = "".join(f", {count:,} {outcome}" for outcome, count in sorted(self._so_far.others.items()))
        return f"{self._so_far.done:,} {DONE[self.verb]}{others}"


@command("Show a task.")
@click.argument("id")
@shared
def get(given: Given, id: str) -> int:
    """Show the task ID: its state, due time, payload and last failures; exit 1 if it is gone. An id includes the
    topic: TOPIC/ID. Of a task that is done or cancelled, it shows what is kept of that: when, by whom, after how many
    attempts (`shardq configure --done-age`).

    example:
      shardq get email/welcome-7
      shardq get AZr3kQ0xYp2LmA --json
    """
    with opened(given) as engine:
        task = engine.get(id, decode=not given.json, ended=True)
        if task is None:
            _hint(engine, id)
    if task is None:
        given.answer(forms.gone(id), "gone")
        return 1
    if given.json:
        tell(line.task(task))
        return 0
    fields = {name: getattr(task, name) for name in task.__struct_fields__ if name not in ("payload", "attempts")}
    shown = msgspec.to_builtins(fields) | forms.payload(task.payload)
    for key, value in shown.items():
        if value is not None and (value or key not in ("headers", "tags", "codec")):
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            say(f"{key:<14} {text or repr(text)}")
    for each in task.attempts:
        took = "" if each.seconds is None else f" after {each.seconds:,.3f} s"
        when = each.at.isoformat(sep=" ", timespec="milliseconds")
        say(f"{'failed':<14} {when} in {each.process}{took}: {each.reason}")
    return 0


def _hint(engine: Engine, id: str) -> None:
    """Says so if there is no such task in the default topic, but one of the same name in another topic."""
    if "/" in id:
        return
    with suppress(ShardqError):
        found = [each for topic in list(engine.stats().topics)[:20] if topic and engine.get(each := full_id(topic, id))]
        if found:
            complain(f"note: an id includes the topic, as TOPIC/ID: there is {' and '.join(found)}")


def _carry_out(
    given: Given,
    verb: Verb,
    *,
    ids: tuple[str, ...],
    filter: Filter,
    everything: bool,
    dry_run: bool,
    yes: bool,
    **options: Any,
) -> int:
    """Carries a command out on the tasks with these ids, or on all that match. Returns the exit code. ``options``:
    further arguments of the engine's command.
    """
    many = BulkCommand(given, verb, filter, everything, dry_run, yes, options)
    if many.check(ids):
        return many.run()
    with opened(given) as engine:
        outcomes = {id: getattr(engine, verb)(id, **options) for id in ids}
        for id in [id for id, outcome in outcomes.items() if outcome == "gone"]:
            if (task := engine.get(id, ended=True)) is not None:
                more = "; its payload is not kept: push it again" if verb == "requeue" else ""
                complain(f"note: {id} is {task.state}{more}")
            else:
                _hint(engine, id)
    for id, outcome in outcomes.items():
        given.answer({"id": id, "outcome": outcome}, f"{outcome} {id}" if len(outcomes) > 1 else str(outcome))
    return 0 if all(outcomes.values()) else 1


@command("Cancel tasks: by id, or all that match.", more=ENDED)
@_ids
@filter_options(STATES["cancel"])
@_bulk
@shared
def cancel(given: Given, **chosen: Any) -> int:
    """Remove tasks, unless a worker has them. With IDs: those tasks; exit 1 unless all of them were removed. With
    options: all scheduled, ready and dead tasks that match; the command counts them and asks you first. To remove
    all tasks of a topic, `shardq purge` is faster. --tag alone finds every task that was pushed before, even while
    the number of shards changes.

    example:
      shardq cancel email/welcome-7
      shardq cancel AZr3kQ0xYp2LmA AZr3kQ0xYp2LmB
      shardq cancel --topic mail --state scheduled --due 0..1h
      shardq cancel --due ..-1d --dry-run              (overdue for a day)
      shardq cancel --tag user-42 --yes --json | jq .running
    """
    return _carry_out(given, "cancel", **chosen)


@command("Give tasks another due time: by id, or all that match.", more=ENDED)
@_ids
@due_options
@filter_options(STATES["reschedule"])
@_bulk
@shared
def reschedule(given: Given, **chosen: Any) -> int:
    """Give tasks another due time. With IDs: those tasks; exit 1 unless all of them have it. With options: all
    scheduled and ready tasks that match; the command counts them and asks you first. All get the same due time:
    --delay counts from when the command begins.

    example:
      shardq reschedule email/welcome-7 --delay 2h
      shardq reschedule email/welcome-7 --at 2030-01-31T12:00:00Z
      shardq reschedule --topic mail --due ..1h --delay 1h
      shardq reschedule --failed --delay 0      (retry now, without the backoff)
    """
    if (chosen["delay"] is None) == (chosen["at"] is None):
        raise click.UsageError("give the new due time, as --delay or as --at")
    return _carry_out(given, "reschedule", **chosen)


@command("Schedule dead tasks again: by id, or all that match.", more=ENDED)
@_ids
@filter_options()
@_bulk
@shared
def requeue(given: Given, **chosen: Any) -> int:
    """Schedule dead tasks again, due now and with all their attempts. With IDs: those tasks; exit 1 unless all of
    them were scheduled. With options: all that match; the command counts them and asks you first.

    example:
      shardq requeue email/welcome-7
      shardq requeue --topic email
      shardq requeue --all --dry-run
    """
    return _carry_out(given, "requeue", **chosen)
