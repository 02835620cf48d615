"""push: the command, for one task or for the lines of a file."""

from __future__ import annotations

import datetime as dt
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from shardq.cli.durations import due_options, expiry, read_by, seconds
from shardq.cli.numbers import Whole
from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import complain, say, tell
from shardq.cli.push.bulk import Bulk, ranges
from shardq.cli.push.feed import Feed
from shardq.cli.push.lines import longest, numbered, raw_json
from shardq.cli.session import opened
from shardq.cli.signals import Ending
from shardq.cli.words import in_fields
from shardq.core.model.checks import MAX_ATTEMPTS
from shardq.core.model.task import OnConflict, Receipt, Task
from shardq.core.producer.durable import Durability
from shardq.core.producer.packing import Packer
from shardq.errors import NotReplicated, ShardqError

SHOWN = 20
"""Bad lines that are shown; of more only the number is."""


def headers_of(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str] | None:
    """The callback of --header."""
    pairs = [text.partition("=") for text in value]
    for text, (key, equals, _) in zip(value, pairs, strict=True):
        if not equals or not key:
            raise click.BadParameter(f"{text!r} is no header; write it as KEY=VALUE", ctx, param)
    return {key: content for key, _, content in pairs} or None


@click.command(
    short_help="Push one task, or a file of them.",
    epilog="""\b
example:
  shardq push '{"order": 42}' --delay 30m
  shardq push '{"order": 42}' --topic email --id order-42 --dedup 1h
  shardq push 'plain text' --text --at 2030-01-31T12:00:00Z
  shardq push '{"user": 42}' --delay 1d --window 2h --tag user-42 --tag digest
  shardq push '"there is news"' --id news-42 --throttle 5m
  shardq push --file tasks.jsonl
  shardq push --file tasks.jsonl --from-line 36001
  zcat tasks.jsonl.gz | shardq push --file - --topic email
  tail -f tasks.jsonl | shardq push --file -      (each line as it comes)
\b
lines:
  {"payload": {"order": 42}, "delay": "30m"}
  {"payload": "text", "at": "2030-01-31T12:00:00Z", "topic": "email",
   "id": "x", "on_conflict": "keep", "dedup": 60, "headers": {"k": "v"},
   "max_attempts": 5, "expires": "2h", "window": "10m", "tags": ["user-42"]}
                               (on one line; all but payload may be left out)
\b
exit codes:
  0         everything is stored
  1         bad lines, or the server refused
  130, 143  with --file, after Ctrl-C or SIGTERM: the lines under way are
            stored first, and it says with which line to go on; a second
            Ctrl-C does not wait for them""",
)
@click.argument("payload", required=False)
@click.option("--file", "path", metavar="PATH", help="Push each line of a file of JSON objects; - is stdin.")
@click.option("--text", is_flag=True, help="PAYLOAD is text, stored as a JSON string.")
@click.option("--raw", is_flag=True, help="PAYLOAD is stored as it is, as bytes.")
@due_options
@click.option("--topic", default="", metavar="TOPIC", help="Default: the default topic.")
@click.option("--id", metavar="ID", help="An id of your own, so that the push can be repeated safely.")
@click.option(
    "--on-conflict",
    type=click.Choice(["keep", "replace", "reject"]),
    default="keep",
    show_default=True,
    help="What to do when a task has the id already.",
)
@click.option(
    "--dedup",
    metavar="TIME",
    callback=read_by(seconds),
    help="How long the id is remembered, from the push, whatever becomes of its task.",
)
@click.option("--header", "headers", metavar="KEY=VALUE", multiple=True, callback=headers_of, help="May be repeated.")
@click.option(
    "--max-attempts",
    type=Whole(1, MAX_ATTEMPTS),
    metavar="N",
    help="After so many attempts that failed, the task is dead.",
)
@click.option(
    "--expires",
    metavar="TIME",
    callback=read_by(expiry),
    help="Bury the task if no worker has claimed it by then: a time from now, or an instant.",
)
@click.option(
    "--window",
    metavar="TIME",
    callback=read_by(seconds),
    help="Any time in so long from the due time is fine: tasks of one time are spread over it.",
)
@click.option(
    "--throttle",
    metavar="TIME",
    callback=read_by(seconds),
    help="With --id: take at most one push of the id in so long.",
)
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="For `shardq cancel-tag`; may be repeated.")
@click.option(
    "--durability",
    type=click.Choice(["replicated", "fsynced"]),
    help="Wait until all replicas, or the disks, have the task; exit 1 if that takes too long.",
)
@click.option("--strict", is_flag=True, help="With --file: stop at the first bad line, pushing nothing more.")
@click.option("--ids", is_flag=True, help="With --file: print the id of each task.")
@click.option(
    "--from-line",
    type=Whole(1),
    metavar="N",
    help="With --file: begin with line N; a push that was interrupted says with which.",
)
@shared
@pass_given
def push(
    given: Given,
    payload: str | None,
    path: str | None,
    text: bool,
    raw: bool,
    delay: float | None,
    at: float | dt.datetime | None,
    topic: str,
    id: str | None,
    on_conflict: OnConflict,
    dedup: float | None,
    headers: dict[str, str] | None,
    max_attempts: int | None,
    expires: float | dt.datetime | None,
    window: float | None,
    throttle: float | None,
    tags: tuple[str, ...],
    durability: Durability | None,
    strict: bool,
    ids: bool,
    from_line: int | None,
) -> int:
    """Push a task with the JSON PAYLOAD, or one for each line of a file, to which the other options then apply."""
    if payload == "-" and path is None and not (text or raw):
        payload, path = None, "-"
    if (payload is None) == (path is None):
        raise click.UsageError("give one PAYLOAD, or --file PATH (- for stdin)")
    if delay is not None and at is not None:
        raise click.UsageError("--delay and --at exclude each other: a task has one due time")
    task = Task(
        None,
        delay=delay,
        at=at,
        topic=topic,
        id=id,
        on_conflict=on_conflict,
        dedup=dedup,
        headers=headers,
        max_attempts=max_attempts,
        expires=expires,
        window=window,
        throttle=throttle,
        tags=tags or None,
    )
    if path is not None:
        for name, wrong in (("--id", id is not None), ("--text", text), ("--raw", raw)):
            if wrong:
                raise click.UsageError(f"{name} is for one PAYLOAD, not for --file")
        return _many(given, path, task, durability, strict=strict, ids=ids, first=from_line or 1)
    for name, wrong in (("--strict", strict), ("--ids", ids), ("--from-line", from_line is not None)):
        if wrong:
            raise click.UsageError(f"{name} goes with --file")
    if text and raw:
        raise click.UsageError("--text and --raw exclude each other")
    return _one(given, str(payload), task, durability, text=text, raw=raw)


def _one(given: Given, payload: str, task: Task, durability: Durability | None, *, text: bool, raw: bool) -> int:
    content: Any
    if raw:
        content = os.fsencode(payload)
    elif text:
        content = payload
    else:
        try:
            content = raw_json(payload)
        except ValueError as exc:
            raise click.UsageError(str(exc)) from None
    options = {name: getattr(task, name) for name in task.__struct_fields__ if name != "payload"}
    with opened(given, create=True, codec="raw" if raw else "json") as engine:
        try:
            receipt = engine.push(content, **options, durability=durability)
        except NotReplicated as exc:
            # it is stored: to push it again or to cancel it, the user needs its id
            _tell_one(given, Receipt(exc.ids[0]))
            raise
    _tell_one(given, receipt)
    if given.json:
        return 0
    if receipt.outcome == "kept":
        complain(f"kept: the id is taken by a task that is {receipt.state}")
    elif receipt.outcome == "seen":
        complain("seen: a task with this id was pushed before, and its dedup window (or throttle) is still open")
    return 0


def _tell_one(given: Given, receipt: Receipt) -> None:
    if given.json:
        tell({"id": str(receipt), "outcome": receipt.outcome, "state": receipt.state})
    else:
        say(receipt)


def _many(
    given: Given, path: str, defaults: Task, durability: Durability | None, *, strict: bool, ids: bool, first: int
) -> int:
    with _source(path) as source, opened(given, create=True) as engine, Ending() as ending:
        told = _Told(given, ids=ids)
        bulk = Bulk(engine, told, strict=strict, durability=durability, read=first - 1, settled=first - 1)
        max_payload = engine.options.max_payload
        check = Packer(engine.options.codec, max_payload=max_payload).one
        whole = False
        try:
            with _progress(_size(source)) as advance:
                feed = Feed(source, limit=longest(max_payload), ending=ending, advance=advance)
                bulk.run(numbered(feed, first=first, defaults=defaults, check=check, max_payload=max_payload))
            whole = feed.exhausted and not (strict and bulk.bad_lines)
        except KeyboardInterrupt:
            pass  # by the second signal: what is under way is not waited for
        finally:
            ending.finish()
            _sum_up(given, bulk, told, ending, whole=whole)
    if ending.asked and not whole:
        return ending.code
    return 1 if bulk.bad_lines else 0


class _Told:
    """Prints the outcomes of lines."""

    def __init__(self, given: Given, *, ids: bool) -> None:
        self._given = given
        self._ids = ids
        self.bad_lines = 0

    def stored(self, lines: Sequence[tuple[int, Receipt]]) -> None:
        if self._given.json:
            for number, receipt in lines:
                tell({"line": number, "id": str(receipt), "outcome": receipt.outcome, "state": receipt.state})
        elif self._ids and lines:
            say("\n".join(receipt for _, receipt in lines))

    def bad(self, number: int, reason: str) -> None:
        self.bad_lines += 1
        reason = in_fields(reason)
        if self._given.json:
            tell({"line": number, "error": reason})
        elif self.bad_lines <= SHOWN:
            complain(f"line {number}: {reason}")


def _sum_up(given: Given, bulk: Bulk, told: _Told, ending: Ending, *, whole: bool) -> None:
    """Prints the account of all lines, and how to push the rest, if any, so that each line is pushed once."""
    counts = {outcome: bulk.outcomes[outcome] for outcome in ("pushed", "replaced", "kept", "seen")}
    go_on = None if whole else bulk.settled + 1
    if given.json:
        lines = {"read": bulk.read, "from_line": go_on, "missing": bulk.missing, "doubtful": bulk.doubtful}
        try:
            tell(counts | {"bad": bulk.bad_lines} | lines)
            return
        except BrokenPipeError:
            pass  # the reader of stdout has gone: stderr gets it
    if told.bad_lines > SHOWN:
        complain(f"... and {told.bad_lines - SHOWN:,} more bad lines")
    parts = [f"{count:,} {outcome}" for outcome, count in counts.items() if count or outcome == "pushed"]
    if bulk.bad_lines:
        parts.append(f"{bulk.bad_lines:,} bad {'line' if bulk.bad_lines == 1 else 'lines'}")
    complain(", ".join(parts))
    if go_on is None:
        return
    if bulk.missing:
        complain(f"not stored, though lines after them are: {ranges(bulk.missing)}")
    if bulk.doubtful:
        complain(f"may be stored or not, no answer came: lines {ranges(bulk.doubtful)}")
    why = f"ended by {signal.Signals(ending.signal).name}" if ending.signal else "ended early"
    complain(f"{why}, {bulk.read:,} lines read; to push the rest, go on with --from-line {go_on}")


@contextmanager
def _source(path: str) -> Iterator[int]:
    """Opens the descriptor to read lines from."""
    if path == "-":
        if sys.stdin is None:
            raise ShardqError("there are no lines to read: stdin is closed")
        yield sys.stdin.fileno()
        return
    with open(path, "rb", buffering=0) as source:  # noqa: PTH123  the error names the path as the user wrote it
        yield source.fileno()


def _size(descriptor: int) -> int | None:
    """The size in bytes, of a regular file."""
    status = os.fstat(descriptor)
    return status.st_size if stat.S_ISREG(status.st_mode) else None


@contextmanager
def _progress(size: int | None) -> Iterator[Callable[[int], None]]:
    """Shows a bar on stderr if that is a terminal; yields what advances it, in bytes."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("pushing"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=size)
        yield lambda step: progress.update(bar, advance=step)
