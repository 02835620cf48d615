"""push-file: the command that pushes the tasks of many lines, window by window, in bounded memory, and keeps account of
each line.

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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import click

from shardq.cli.options import Given, shared
from shardq.cli.output import complain, in_fields, say, tell
from shardq.cli.parsers import Whole
from shardq.cli.push import check_due, task_options
from shardq.cli.push_lines import Feed, NumberedLine, longest, numbered
from shardq.cli.session import opened
from shardq.cli.signals import Ending, apart
from shardq.core.model.task import Receipt, Task
from shardq.core.producer.durable import Durability
from shardq.core.producer.packing import Packer
from shardq.engine import Engine
from shardq.engine.base import Inside
from shardq.engine.tables import counted, ranges
from shardq.errors import Conflict, NotReplicated, PushError, ShardqError

SHOWN = 20
"""Bad lines that are shown; of more only the number is."""

WINDOW = 4000
"""Lines pushed at a time: over 16 shards some 250 in a call."""

WINDOW_BYTES = 8 << 20
"""Bytes of lines pushed at a time, at most."""


@click.command(
    "push-file",
    short_help="Push the tasks of a file.",
    epilog="""\b
example:
  shardq push-file tasks.jsonl
  shardq push-file tasks.jsonl --from-line 36001
  zcat tasks.jsonl.gz | shardq push-file - --topic email
  tail -f tasks.jsonl | shardq push-file -        (each line as it comes)
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
  130, 143  after Ctrl-C or SIGTERM: the lines under way are stored first, and
            it says with which line to go on; a second Ctrl-C does not wait
            for them""",
)
@click.argument("path")
@click.option("--strict", is_flag=True, help="Stop at the first bad line, pushing nothing more.")
@click.option("--ids", is_flag=True, help="Print the id of each task.")
@click.option(
    "--from-line",
    "first",
    type=Whole(1),
    default=1,
    metavar="N",
    help="Begin with line N; a push that was interrupted says with which.",
)
@task_options
@shared
def push_file(
    given: Given,
    /,
    path: str,
    strict: bool,
    ids: bool,
    first: int,
    durability: Durability | None,
    **options: Any,
) -> int:
    """Push a task for each line of the file PATH, a JSON object; - is stdin. The options are for the lines that leave
    them out.
    """
    check_due(options)
    defaults = Task(None, **options)
    with _source(path) as source, opened(given, create=True) as engine, Ending() as ending:
        run = FilePush(given, engine, durability, strict=strict, ids=ids, read=first - 1, settled=first - 1)
        max_payload = Inside(engine).options.max_payload
        check = Packer(Inside(engine).options.codec, max_payload=max_payload).one
        whole = False
        try:
            with _progress(_size(source)) as advance:
                feed = Feed(source, limit=longest(max_payload), ending=ending, advance=advance)
                run.push(numbered(feed, first=first, defaults=defaults, check=check, max_payload=max_payload))
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
                if self.strict:
                    return
                continue
            self._window.append((line.number, line.task))
            self._bytes += line.size
            if len(self._window) >= WINDOW or self._bytes >= WINDOW_BYTES:
                self._send()
                if self.strict and self.bad_lines:
                    return
        self._send()

    def _send(self) -> None:
        """Pushes the window, which settles every line that was read."""
        window, self._window = self._window, []
        self._bytes = 0
        before, self.settled = self.settled, self.read
        if not window:
            return
        numbers = [number for number, _ in window]
        # a signal that ends the push right here leaves all of them in doubt
        self.doubtful = numbers
        result = self._pushed(numbers, [task for _, task in window])
        self.doubtful, self.missing = result.doubtful, result.missing
        if self.missing == numbers:
            self.settled, self.missing = before, []
        self.outcomes.update(receipt.outcome for _, receipt in result.stored)
        # the account is complete before it is told: the reader of our output may have gone
        self.bad_lines += len(result.taken)
        self._tell_stored(result.stored)
        for number, reason in result.taken:
            self._tell_bad(number, reason)
        if result.error is not None:
            raise result.error

    def _pushed(self, numbers: list[int], tasks: list[Task]) -> _Result:
        try:
            receipts = apart(lambda: self.engine.push_many(tasks, durability=self.durability))
            return _Result(list(zip(numbers, receipts, strict=True)))
        except NotReplicated as exc:
            return _Result(list(zip(numbers, map(Receipt, exc.ids), strict=True)), error=exc)
        except PushError as exc:
            error = exc
        result = _Result([])
        for number, id in zip(numbers, error.ids, strict=True):
            reason = error.failed.get(id)
            if isinstance(id, Receipt):
                result.stored.append((number, id))
            elif isinstance(reason, Conflict):
                result.taken.append((number, str(reason)))
            elif reason is not None:
                result.missing.append(number)
                result.error = result.error or reason
            else:
                result.doubtful.append(number)
        if result.doubtful:
            result.error = result.error or error
        return result

    def _tell_stored(self, lines: list[tuple[int, Receipt]]) -> None:
        if self.given.json:
            for number, receipt in lines:
                tell({"line": number, "id": str(receipt), "outcome": receipt.outcome, "state": receipt.state})
        elif self.ids and lines:
            say("\n".join(receipt for _, receipt in lines))

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


@dataclass(slots=True)
class _Result:
    """The outcome of the lines of one window."""

    stored: list[tuple[int, Receipt]]
    taken: list[tuple[int, str]] = field(default_factory=list)
    """Lines whose id is taken, with the reason."""
    missing: list[int] = field(default_factory=list)
    doubtful: list[int] = field(default_factory=list)
    error: ShardqError | None = None
    """The reason to push nothing more."""


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
