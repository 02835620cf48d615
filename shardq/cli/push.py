"""push: the command for one task. push-file: the command that pushes the tasks of many lines, window by window, in
bounded memory, and keeps account of each line.

Each window is a ``push_many``. ``push_iter`` would not do: when part of a window is refused (an id is taken, the server
is full), the refused lines are named here, and the lines after them are pushed all the same. However the push ends, the
account says with which line to go on.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import click

from shardq.cli.options import Given, Whole, command, raw_json, shared, task_options
from shardq.cli.output import complain, in_fields, say, tell
from shardq.cli.push_lines import Feed, NumberedLine, longest, numbered
from shardq.cli.serving import Ending, apart
from shardq.cli.session import opened
from shardq.cli.table import progress
from shardq.core.model.task import Receipt, Task
from shardq.core.producer.durable import Durability
from shardq.core.producer.packing import Packer
from shardq.engine import Engine, forms
from shardq.engine.internals import Internals
from shardq.engine.tables import counted, ranges
from shardq.errors import Conflict, NotReplicated, PushError, ShardqError

durable: Final = click.option(
    "--durability",
    type=click.Choice(["replicated", "fsynced"]),
    help="Wait until all replicas, or the disks, have the task; exit 1 if that takes too long.",
)


def check_due(options: dict[str, Any]) -> None:
    if options["delay"] is not None and options["at"] is not None:
        raise click.UsageError("--delay and --at exclude each other: a task has one due time")


@command("Push one task.")
@click.argument("payload")
@click.option("--text", is_flag=True, help="PAYLOAD is text, stored as a JSON string.")
@click.option("--raw", is_flag=True, help="PAYLOAD is stored as it is, as bytes.")
@task_options("id")
@task_options()
@durable
@shared
def push(
    given: Given, /, payload: str, text: bool, raw: bool, id: str | None, durability: Durability | None, **options: Any
) -> None:
    """Push a task with the JSON PAYLOAD, and print its id.

    example:
      shardq push '{"order": 42}' --delay 30m
      shardq push '{"order": 42}' --topic email --id order-42 --dedup 1h
      shardq push 'plain text' --text --at 2030-01-31T12:00:00Z
      shardq push '{"user": 42}' --delay 1d --window 2h --tag user-42 --tag digest
      shardq push '"there is news"' --id news-42 --throttle 5m
      shardq push '{"event": "paid"}' --topic mail --key customer-7
      shardq push '{"event": "paid"}' --topic hooks --webhook https://customer.example/in

    `shardq push-file` pushes the lines of a file.
    """
    check_due(options)
    if text and raw:
        raise click.UsageError("--text and --raw exclude each other")
    if text:
        content: Any = payload
    else:
        content = os.fsencode(payload) if raw else raw_json(payload, "push other text with --text or --raw")
    with opened(given, create=True, codec="raw" if raw else "json") as engine:
        try:
            receipt = engine.push(content, id=id, durability=durability, **options)
        except NotReplicated as exc:
            # it is stored: to push it again or to cancel it, the user needs its id
            _tell(given, Receipt(exc.ids[0]))
            raise
    _tell(given, receipt)
    if given.json:
        return
    if receipt.outcome == "kept":
        complain(f"kept: the id is taken by a task that is {receipt.state}")
    elif receipt.outcome == "seen":
        complain("seen: a task with this id was pushed before, and its dedup window (or throttle) is still open")


def _tell(given: Given, receipt: Receipt) -> None:
    given.answer(forms.receipt(receipt), receipt)


# ---- the lines of a file

SHOWN = 20
"""Bad lines that are shown; of more only the number is."""

WINDOW = 4000
"""Lines pushed at a time: over 16 shards some 250 in a call."""

WINDOW_BYTES = 8 << 20
"""Bytes of lines pushed at a time, at most."""


@command("Push the tasks of a file.", name="push-file")
@click.argument("path")
@click.option("--strict", is_flag=True, help="Stop at the first bad line, and push nothing more.")
@click.option("--ids", is_flag=True, help="Print the id of each task.")
@click.option(
    "--from-line", type=Whole(1), default=1, help="Begin with line N; an interrupted push prints this number."
)
@task_options()
@durable
@shared
def push_file(
    given: Given, /, path: str, strict: bool, ids: bool, from_line: int, durability: Durability | None, **options: Any
) -> int:
    """Push one task for each line of the file PATH, a JSON object; - is stdin. The options apply to lines that
    leave them out.

    example:
      shardq push-file tasks.jsonl
      shardq push-file tasks.jsonl --from-line 36001
      zcat tasks.jsonl.gz | shardq push-file - --topic email
      tail -f tasks.jsonl | shardq push-file -        (each line as it comes)

    lines:
      {"payload": {"order": 42}, "delay": "30m"}
      {"payload": "text", "at": "2030-01-31T12:00:00Z", "topic": "email",
       "id": "x", "on_conflict": "keep", "dedup": 60, "headers": {"k": "v"},
       "max_attempts": 5, "expires": "2h", "window": "10m", "tags": ["user-42"],
       "url": "https://customer.example/in"}
                                   (on one line; all but payload may be left out)

    exit codes:
      0         everything is stored
      1         bad lines, or the server refused
      130, 143  ended by Ctrl-C or SIGTERM, after the lines under way are
                stored; it prints the line to go on with. A second Ctrl-C does
                not wait for them
    """
    check_due(options)
    defaults = Task(None, **options)
    with _source(path) as source, opened(given, create=True) as engine, Ending() as ending:
        run = FilePush(given, engine, durability, strict, ids, read=from_line - 1, settled=from_line - 1)
        inside = Internals(engine).options
        check = Packer(inside.codec, max_payload=inside.max_payload).one
        status = os.fstat(source)
        whole = False
        try:
            with progress("pushing", size=status.st_size if stat.S_ISREG(status.st_mode) else None, bar=True) as show:
                feed = Feed(
                    source, limit=longest(inside.max_payload), ending=ending, advance=lambda size: show(advance=size)
                )
                run.push(numbered(feed, first=from_line, defaults=defaults, check=check, limit=feed.limit))
            whole = feed.exhausted and not (strict and run.bad_lines)
        except KeyboardInterrupt:
            pass  # by the second signal: what is under way is not waited for
        finally:
            ending.finish()
            run.sum_up(ending, whole=whole)
    if ending.asked and not whole:
        return ending.code
    return 1 if run.bad_lines else 0


@dataclass(slots=True)
class FilePush:
    """The push of one file, and its account. ``push`` is called once."""

    given: Given
    engine: Engine
    durability: Durability | None
    strict: bool
    ids: bool
    read: int
    """The number of the last line that was read; blank lines count."""
    settled: int
    """The last line up to which every outcome is known, except of ``missing`` and ``doubtful`` lines."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Outcome (pushed, replaced, kept, seen) → tasks."""
    bad_lines: int = 0
    missing: list[int] = field(default_factory=list)
    """Lines that the server refused, while it stored lines after them."""
    doubtful: list[int] = field(default_factory=list)
    """Lines that may be stored or not: their answer was lost, or not waited for."""
    _told: int = 0
    """Bad lines that were told."""
    _window: list[tuple[int, Task]] = field(default_factory=list)
    _bytes: int = 0

    def push(self, lines: Iterable[NumberedLine | None]) -> None:
        """Pushes the lines. Raises the error that ends the push, with everything before it in the account."""
        for line in lines:
            if line is None:
                self._send()
                continue
            self.read = line.number
            if line.task is None:
                self.bad_lines += 1
                self._tell_bad(line.number, line.reason)
            else:
                self._window.append((line.number, line.task))
                self._bytes += line.size
                if len(self._window) >= WINDOW or self._bytes >= WINDOW_BYTES:
                    self._send()
            if self.strict and self.bad_lines:
                return
        self._send()

    def _send(self) -> None:
        """Pushes the window, which settles every line that was read."""
        window, self._window, self._bytes = self._window, [], 0
        before, self.settled = self.settled, self.read
        if not window:
            return
        numbers = [number for number, _ in window]
        # a signal that ends the push right here leaves all of them in doubt
        self.doubtful = numbers
        ids: list[str]
        failed: dict[str, ShardqError] = {}
        error: ShardqError | None = None
        lost: ShardqError | None = None
        try:
            ids = list(apart(lambda: self.engine.push_many([task for _, task in window], durability=self.durability)))
        except NotReplicated as exc:
            ids, error = [Receipt(id) for id in exc.ids], exc
        except PushError as exc:
            ids, failed, lost = exc.ids, exc.failed, exc
        stored, taken, missing, doubtful = [], [], [], []
        for number, id in zip(numbers, ids, strict=True):
            reason = failed.get(id)
            if isinstance(id, Receipt):
                stored.append((number, id))
            elif isinstance(reason, Conflict):
                taken.append((number, str(reason)))
            elif reason is not None:
                missing.append(number)
                error = error or reason
            else:
                doubtful.append(number)
        self.doubtful, self.missing = doubtful, missing
        if missing == numbers:
            self.settled, self.missing = before, []
        self.outcomes.update(receipt.outcome for _, receipt in stored)
        # the account is complete before it is told: the reader of our output may have gone
        self.bad_lines += len(taken)
        if self.given.json:
            for number, receipt in stored:
                tell(forms.receipt(receipt, line=number))
        elif self.ids and stored:
            say("\n".join(receipt for _, receipt in stored))
        for number, text in taken:
            self._tell_bad(number, text)
        error = error or (lost if doubtful else None)
        if error is not None:
            raise error

    def _tell_bad(self, number: int, reason: str) -> None:
        self._told += 1
        reason = in_fields(reason)
        if self.given.json:
            tell({"line": number, "error": reason})
        elif self._told <= SHOWN:
            complain(f"line {number}: {reason}")

    def sum_up(self, ending: Ending, *, whole: bool) -> None:
        """Prints the account of all lines, and how to push the rest, if any, so that each line is pushed once."""
        counts = {outcome: self.outcomes[outcome] for outcome in ("pushed", "replaced", "kept", "seen")}
        go_on = None if whole else self.settled + 1
        if self.given.json:
            lines = {"read": self.read, "from_line": go_on, "missing": self.missing, "doubtful": self.doubtful}
            try:
                tell(counts | {"bad": self.bad_lines} | lines)
                return
            except BrokenPipeError:
                pass  # the reader of stdout has gone: stderr gets it
        if self._told > SHOWN:
            complain(f"... and {self._told - SHOWN:,} more bad lines")
        parts = [f"{count:,} {outcome}" for outcome, count in counts.items() if count or outcome == "pushed"]
        if self.bad_lines:
            parts.append(counted(self.bad_lines, "bad line"))
        complain(", ".join(parts))
        if go_on is None:
            return
        if self.missing:
            complain(f"not stored, though lines after them are: {ranges(self.missing)}")
        if self.doubtful:
            complain(f"may be stored or not, no answer came: lines {ranges(self.doubtful)}")
        why = f"ended by {signal.Signals(ending.signal).name}" if ending.signal else "ended early"
        complain(f"{why}, {self.read:,} lines read; to push the rest, go on with --from-line {go_on}")


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
