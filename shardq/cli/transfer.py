"""export: prints an engine as lines. import: carries out the lines of an export, and pushes the tasks of a file,
chunk by chunk, in bounded memory, and keeps account of each line.

However an import ends, it goes on where it was: what is settled stands in ``FILE.progress``, and the chunk that may
have been sent is sent again, which servers know. From a pipe it begins anew.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import msgspec

from shardq import Engine
from shardq.cli.feed import Feed, Source, opened_source
from shardq.cli.listing import Filter, filter_options
from shardq.cli.options import RATE, Given, command, shared, task_options
from shardq.cli.output import complain, say, tell
from shardq.cli.push import check_due, durable
from shardq.cli.serving import Ending, apart
from shardq.cli.session import opened
from shardq.cli.table import progress
from shardq.core.layout.words import UNDECODABLE
from shardq.core.model.arguments import in_fields
from shardq.core.model.printable import printable_json
from shardq.core.model.task import Outcome, Task
from shardq.core.operation import Operation, run
from shardq.core.producer.durable import Durability, push_durably
from shardq.engine.around import EngineAccess, counted, forms, ranges
from shardq.errors import AccessDenied, Conflict, NotReplicated, ShardqError, Unanswered
from shardq.features.listing.query import STATES
from shardq.features.transfer.importing import (
    CHUNK,
    CHUNK_BYTES,
    KEPT_MEMORY_MS,
    SHOWN,
    Importer,
    Item,
    Run,
    Said,
)
from shardq.features.transfer.lines import longest

LINES = 1000
"""Lines of an export between two looks at what is shown of its progress."""


@command("Print tasks as lines that `import` reads.", name="export")
@filter_options(STATES)
@click.option("--secrets", is_flag=True, help="Print routes with their passwords, keys and tokens.")
@shared
def export_lines(given: Given, filter: Filter, secrets: bool) -> None:
    """Print the settings, the schedules and all tasks, or those that match, as lines of JSON, from which
    `shardq import` makes the same in another engine. A task is a line of `shardq list --json`. Nothing has to stand
    still meanwhile: each task that waits is in it; a leased one as ready.

    example:
      shardq export > tasks.jsonl
      shardq export --topic mail --state dead | gzip > dead.jsonl.gz
      shardq export | shardq import - --url redis://10.0.0.7:6379/0
    """
    out, count = sys.stdout.buffer, 0
    with opened(given) as engine, progress("exporting") as show:
        for count, line in enumerate(engine.export(**filter.arguments(engine), secrets=secrets), 1):
            out.write(printable_json(line[:-1]) + b"\n")
            if count % LINES == 0:
                show(description=f"exporting: {count:,} lines")
    out.flush()
    complain(counted(count, "line"))


@command("Carry out the lines of an export, or push those of a file.", name="import")
@click.argument("path", metavar="FILE")
@click.option("--dry-run", is_flag=True, help="Change nothing, and count what it would do.")
@click.option("--rate", type=RATE, help="At most so many lines a second, such as 500/s.")
@click.option("--strict", is_flag=True, help="Stop at the first bad line, and carry out nothing more.")
@click.option("--ids", is_flag=True, help="Print the id of each task.")
@task_options()
@durable
@shared
def import_lines(
    given: Given,
    /,
    path: str,
    dry_run: bool,
    rate: float | None,
    strict: bool,
    ids: bool,
    durability: Durability | None,
    **options: Any,
) -> int:
    """Carry out the lines of FILE, which are JSON objects; - is stdin, and a name that ends in .gz is unpacked. A line
    with a "state", as of `shardq export` and `shardq list --json`, makes the task as it was; one without pushes a task.
    What is there already is kept. The options of a task apply to lines that push, where these leave them out.

    It keeps note in FILE.progress. After a Ctrl-C, a crash or an error, the same command goes on where it was, and
    carries out no line twice. From a pipe it begins anew.

    example:
      shardq import tasks.jsonl
      shardq import tasks.jsonl.gz --dry-run
      shardq export --url redis://old:6379/0 | shardq import - --url redis://new:6379/0
      tail -f tasks.jsonl | shardq import -        (each line as it comes)

    lines:
      {"payload": {"order": 42}, "delay": "30m"}
      {"payload": "text", "at": "2030-01-31T12:00:00Z", "topic": "email",
       "id": "x", "on_conflict": "keep", "dedup": 60, "headers": {"k": "v"},
       "max_attempts": 5, "expires": "2h", "window": "10m", "tags": ["user-42"],
       "url": "https://customer.example/in"}
                                   (on one line; all but payload may be left out)
      {"id": "email/x", "state": "scheduled", "due": "2030-01-31T12:00:00Z",
       "payload": "text", "failures": 1, "reason": "no answer"}

    exit codes:
      0         everything is carried out
      1         bad lines, a file that was cut off, or the server refused
      130, 143  ended by Ctrl-C or SIGTERM, after the lines under way are
                stored. A second Ctrl-C does not wait for them
    """
    check_due(options)
    with opened_source(path) as source, opened(given, create=not dry_run) as engine, Ending() as ending:
        work = FileImport(
            given=given,
            engine=engine,
            source=source,
            ending=ending,
            defaults=Task(None, **options),
            durability=durability,
            dry_run=dry_run,
            rate=rate,
            strict=strict,
            ids=ids,
        )
        whole = False
        try:
            with progress("importing", size=source.size, bar=True) as show:
                show(advance=work.settled_bytes)
                limit = longest(EngineAccess(engine).options.max_payload)
                feed = Feed(source, limit=limit, ending=ending, advance=lambda size: show(advance=size))
                work.carry_out(feed, limit)
            whole = feed.exhausted and not (strict and work.importer.bad)
        except KeyboardInterrupt:
            pass  # by the second signal: what is under way is not waited for
        finally:
            ending.finish()
            work.sum_up(whole=whole)
    if ending.asked and not whole:
        return ending.code
    return 0 if work.importer.so_far and not source.is_cut else 1


class Progress(msgspec.Struct, kw_only=True):
    """How far the import of a file is, as FILE.progress has it."""

    engine: str
    """The id of the engine."""
    head: int
    """A checksum of the first bytes of the file."""
    line: int
    """The last line that is settled; blank ones count."""
    offset: int
    """The bytes up to its end."""
    run: Run
    at: float
    """When it was written."""
    counts: dict[str, int]
    bad: int
    is_open: bool
    is_cut: bool
    tasks: int
    """Of the export that the line is in."""


HEAD = 4096
"""The bytes of a file by which it is known again."""

THINGS = ("topics", "schedules", "windows")
COUNTED = ("restored", "pushed", "replaced", "kept", "seen", *THINGS)


def _checksum(source: Source) -> int:
    return zlib.crc32(source.head(HEAD))


@dataclass(slots=True, kw_only=True)
class FileImport:
    """The import of one file, and its account. ``carry_out`` is called once."""

    given: Given
    engine: Engine
    source: Source
    ending: Ending
    defaults: Task
    durability: Durability | None
    dry_run: bool
    rate: float | None
    strict: bool
    ids: bool
    importer: Importer = field(init=False)
    read: int = field(init=False, default=0)
    """The number of the last line that was read; blank lines count."""
    settled: int = field(init=False, default=0)
    """The last line up to which every outcome is known, except of ``missing`` and ``doubtful`` lines."""
    settled_bytes: int = field(init=False, default=0)
    missing: list[int] = field(init=False, default_factory=list)
    """Lines that the server refused, while it stored lines after them."""
    doubtful: list[int] = field(init=False, default_factory=list)
    """Lines that may be stored or not: their answer was lost, or not waited for."""
    _told: int = field(init=False, default=0)
    """Bad lines that were told."""
    _chunk: list[Item] = field(init=False, default_factory=list)
    _bytes: int = field(init=False, default=0)
    _read_bytes: int = field(init=False, default=0)
    _note: Path | None = field(init=False, default=None)
    _is_again: bool = field(init=False, default=False)
    """True for the first lines of an import that is gone on with: they may have been sent."""
    _began: float = field(init=False, default_factory=time.monotonic)
    _done: int = field(init=False, default=0)
    """Lines since then."""

    def __post_init__(self) -> None:
        run = None
        if self.source.file and not self.dry_run:
            self._note = Path(f"{self.source.file}.progress")
            run = Run.new(memory_ms=KEPT_MEMORY_MS)
        found = self._found()
        self.importer = EngineAccess(self.engine).importer(
            defaults=self.defaults, run=found.run if found else run, dry_run=self.dry_run
        )
        if found is not None:
            self.importer.counts.update(found.counts)
            self.importer.bad, self.importer.tasks = found.bad, found.tasks
            self.importer.is_open, self.importer.is_cut = found.is_open, found.is_cut
            self.read = self.settled = found.line
            self._read_bytes = self.settled_bytes = found.offset
            self.source.skip(found.offset)
            self._is_again = True
        self._keep()  # before the first line is sent, as it is known again by that

    @property
    def _engine_id(self) -> str:
        return EngineAccess(self.engine).cache.topology.engine

    def _found(self) -> Progress | None:
        """The note of an import of this file that has not ended."""
        if self._note is None:
            return None
        try:
            found = msgspec.json.decode(self._note.read_bytes(), type=Progress)
        except FileNotFoundError:
            return None
        except (OSError, *UNDECODABLE):
            complain(f"{self._note} can't be read: it begins anew")
            return None
        if found.engine != self._engine_id or found.head != _checksum(self.source):
            complain(f"{self._note} is of another file, or of another engine: it begins anew")
            return None
        if not found.line:
            return found
        complain(f"goes on behind line {found.line:,}, where an import ended before its end ({self._note})")
        if (time.time() - found.at) * 1000 > KEPT_MEMORY_MS:
            complain(
                "that was more than a day ago: servers do not know any more which of the next lines were carried out, "
                "and make tasks of these again that were done since"
            )
        return found

    def carry_out(self, feed: Iterable[tuple[bytes, int] | None], limit: int) -> None:
        """Carries out the lines. Raises the error that ends it, with everything before it in the account."""
        for each in feed:
            if each is None:
                self._send()
                continue
            text, size = each
            self.read += 1
            self._read_bytes += size
            if self.read == 1:
                text = text.removeprefix(b"\xef\xbb\xbf")
            if text.strip():
                if size > limit:
                    item: Item | str = f"it has {size:,} bytes; {limit:,} are allowed"
                else:
                    item = self.importer.read(self.read, text)
                if isinstance(item, str):
                    self._tell_bad(self.read, item)
                else:
                    self._chunk.append(item)
                    self._bytes += size
                    if len(self._chunk) >= self._most or self._bytes >= CHUNK_BYTES:
                        self._send()
            if self.strict and self.importer.bad:
                return
        self._send()

    @property
    def _most(self) -> int:
        """The lines of a chunk: half a second of the rate."""
        return CHUNK if self.rate is None else max(1, min(CHUNK, round(self.rate / 2)))

    def _send(self) -> None:
        """Carries out the chunk, which settles every line that was read."""
        chunk, self._chunk, self._bytes = self._chunk, [], 0
        if chunk:
            self._carry_out(chunk)
        self.settled, self.settled_bytes, self._is_again = self.read, self._read_bytes, False
        self._keep()
        self._done += len(chunk)
        if self.rate is not None:
            self.ending.wait(max(0.0, self._done / self.rate - (time.monotonic() - self._began)))

    def _carry_out(self, chunk: list[Item]) -> None:
        # a signal that ends it right here leaves all of them in doubt
        numbers = self.doubtful = [item.number for item in chunk]
        said: list[Said] = []
        error: ShardqError | None = None
        try:
            apart(lambda: self._sent(chunk, said))
        except NotReplicated as exc:
            error = exc
        except AccessDenied:
            self.doubtful = []  # nothing was sent
            raise
        failed = self.importer.settled(said)
        self.doubtful = [each.number for each in failed if isinstance(each.answer, Unanswered)]
        self.missing = [each.number for each in failed if not isinstance(each.answer, Unanswered | Conflict)]
        self._tell([each for each in said if isinstance(each.answer, str)])
        if not self.given.json:
            self._tell_errors()  # a schedule that can't be read
        for each in failed:
            if isinstance(each.answer, Conflict):
                self._tell_bad(each.number, str(each.answer))
        error = error or next((each.answer for each in failed if not isinstance(each.answer, Conflict)), None)
        if error is None:
            return
        if not self._note and self.missing != numbers:
            self.settled = self.read  # who gives the rest to a pipe is told what is not stored of these
        raise error

    def _sent(self, chunk: list[Item], said: list[Said]) -> None:
        inside = EngineAccess(self.engine)
        deadline = time.monotonic() + inside.options.timeout

        def steps() -> Operation[list[str]]:
            said[:] = yield from self.importer.send(inside.cache, chunk, again=self._is_again)
            return [each.id for each in said]

        driver = inside.open_driver()
        if self.durability is None or self.dry_run:
            run(driver, steps(), deadline=deadline)
            return
        ids = [id for item in chunk if (id := item.id)]
        push_durably(driver, inside.cache, ids, steps(), self.durability, deadline)

    def _tell(self, said: list[Said]) -> None:
        if self.given.json:
            for each in said:
                outcome, _, state = each.answer.partition(":")
                tell(forms.ReceiptForm(id=each.id, outcome=Outcome(outcome), state=state or None, line=each.number))
        elif self.ids and said:
            say("\n".join(each.id for each in said))

    def _tell_bad(self, number: int, reason: str) -> None:
        self.importer.told_bad(number, reason)
        if self.given.json:
            tell({"line": number, "error": in_fields(reason)})
        else:
            self._tell_errors()

    def _tell_errors(self) -> None:
        """Tells the first bad lines, as far as they were not told."""
        for number, reason in self.importer.errors[self._told :]:
            self._told += 1
            complain(f"line {number}: {in_fields(reason)}")

    def _keep(self) -> None:
        """Notes what is settled, so that another process can go on."""
        if self._note is None:
            return
        importer = self.importer
        found = Progress(
            engine=self._engine_id,
            head=_checksum(self.source),
            line=self.settled,
            offset=self.settled_bytes,
            run=importer.run,
            at=time.time(),
            counts=dict(importer.counts),
            bad=importer.bad,
            is_open=importer.is_open,
            is_cut=importer.is_cut,
            tasks=importer.tasks,
        )
        try:
            written = self._note.with_name(f"{self._note.name}~")
            with written.open("wb") as file:
                file.write(msgspec.json.encode(found))
                file.flush()
                os.fsync(file.fileno())
            written.replace(self._note)
        except OSError as exc:
            complain(
                f"{self._note} can't be written ({exc.strerror}): if this import is killed, it can't be gone on with"
            )
            self._note = None

    def sum_up(self, *, whole: bool) -> None:
        """Prints the account of all lines, and how to carry out the rest, if any, so that each is carried out once."""
        restored = self.importer.so_far
        is_cut = whole and (restored.is_cut or self.source.is_cut)
        if whole and self._note is not None:
            with suppress(OSError):
                self._note.unlink(missing_ok=True)
        counts = {outcome: getattr(restored, outcome) for outcome in COUNTED}
        if self.given.json:
            lines = {"read": self.read, "settled": self.settled, "missing": self.missing, "doubtful": self.doubtful}
            try:
                tell(counts | {"bad": restored.bad, "cut": is_cut, "whole": whole} | lines)
                return
            except BrokenPipeError:
                pass  # the reader of stdout has gone: stderr gets it
        if restored.bad > SHOWN:
            complain(f"... and {restored.bad - SHOWN:,} more bad lines")
        for note in restored.notes:
            complain(note)
        main = "restored" if restored.restored or self.importer.tasks else "pushed"
        parts = [
            counted(count, outcome[:-1]) if outcome in THINGS else f"{count:,} {outcome}"
            for outcome, count in counts.items()
            if count or outcome == main
        ]
        if restored.bad:
            parts.append(counted(restored.bad, "bad line"))
        complain(("it would be: " if self.dry_run else "") + ", ".join(parts))
        if is_cut:
            complain("the lines were cut off: those of the export that are missing are not carried out")
        if not whole:
            self._tell_rest()

    def _tell_rest(self) -> None:
        why = f"ended by {signal.Signals(self.ending.signal).name}" if self.ending.signal else "ended early"
        if self._note is not None:
            complain(f"{why}, {self.read:,} lines read; the same command goes on behind line {self.settled:,}")
            return
        if self.missing:
            complain(f"not stored, though lines after them are: {ranges(self.missing)}")
        if self.doubtful:
            complain(f"may be stored or not, no answer came: lines {ranges(self.doubtful)}")
        complain(f"{why}, {self.read:,} lines read; to carry out the rest, give those from line {self.settled + 1} on")
