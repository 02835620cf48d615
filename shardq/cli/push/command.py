"""push: the command."""

from __future__ import annotations

import datetime as dt
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import click

from shardq.cli.durations import due_options, read_by, seconds
from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import complain, say, tell
from shardq.cli.push.bulk import Bulk
from shardq.cli.push.lines import Numbered, numbered, raw_json
from shardq.cli.session import opened
from shardq.engine import Engine
from shardq.model.task import OnConflict, Receipt, Task
from shardq.producer.packing import Packer

SHOWN = 20
"""Bad lines told one by one; of more only the number."""


def _headers(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str] | None:
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
  shardq push --file tasks.jsonl
  zcat tasks.jsonl.gz | shardq push --file - --topic email
\b
lines:
  {"payload": {"order": 42}, "delay": "30m"}
  {"payload": "text", "at": "2030-01-31T12:00:00Z", "topic": "email",
   "id": "x", "on_conflict": "keep", "dedup": 60, "headers": {"k": "v"},
   "max_attempts": 5}          (on one line; all but payload may be left out)""",
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
    help="What becomes of a task that has the id already.",
)
@click.option(
    "--dedup", metavar="TIME", callback=read_by(seconds), help="For how long the id is remembered after its task."
)
@click.option("--header", "headers", metavar="KEY=VALUE", multiple=True, callback=_headers, help="May be repeated.")
@click.option("--max-attempts", type=int, metavar="N", help="Before the task is dead.")
@click.option("--strict", is_flag=True, help="With --file: stop at the first bad line, pushing nothing more.")
@click.option("--ids", is_flag=True, help="With --file: print the id of each task.")
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
    strict: bool,
    ids: bool,
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
    )
    if path is not None:
        for name, wrong in (("--id", id is not None), ("--text", text), ("--raw", raw)):
            if wrong:
                raise click.UsageError(f"{name} is for one PAYLOAD, not for --file")
        return _many(given, path, task, strict=strict, ids=ids)
    for name, wrong in (("--strict", strict), ("--ids", ids)):
        if wrong:
            raise click.UsageError(f"{name} goes with --file")
    if text and raw:
        raise click.UsageError("--text and --raw exclude each other")
    return _one(given, str(payload), task, text=text, raw=raw)


def _one(given: Given, payload: str, task: Task, *, text: bool, raw: bool) -> int:
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
        receipt = engine.push(content, **options)
    if given.json:
        tell({"id": str(receipt), "outcome": receipt.outcome, "state": receipt.state})
        return 0
    say(receipt)
    if receipt.outcome == "kept":
        complain(f"kept: the id is taken by a task that is {receipt.state}")
    elif receipt.outcome == "seen":
        complain("seen: a task with this id was pushed before, and its dedup window is still open")
    return 0


def _many(given: Given, path: str, defaults: Task, *, strict: bool, ids: bool) -> int:
    told = 0

    def stored(number: int, receipt: Receipt) -> None:
        if given.json:
            tell({"line": number, "id": str(receipt), "outcome": receipt.outcome, "state": receipt.state})
        elif ids:
            say(receipt)

    def bad(number: int, reason: str) -> None:
        nonlocal told
        told += 1
        if given.json:
            tell({"line": number, "error": reason})
        elif told <= SHOWN:
            complain(f"line {number}: {reason}")

    with _source(path) as (source, size), opened(given, create=True) as engine:
        bulk = Bulk(engine, stored, bad, strict=strict)
        try:
            with _progress(size) as advance:
                bulk.run(_advancing(_lines(engine, source, defaults), advance))
        finally:
            if told > SHOWN and not given.json:
                complain(f"… and {told - SHOWN:,} more bad lines")
            _sum_up(given, bulk)
    return 1 if bulk.bad_lines else 0


def _lines(engine: Engine, source: BinaryIO, defaults: Task) -> Iterator[Numbered]:
    options = engine.options
    check = Packer(options.codec, max_payload=options.max_payload).one
    return numbered(source, defaults=defaults, check=check, max_payload=options.max_payload)


def _sum_up(given: Given, bulk: Bulk) -> None:
    counts = {outcome: bulk.outcomes[outcome] for outcome in ("pushed", "replaced", "kept", "seen")}
    if given.json:
        tell(counts | {"bad": bulk.bad_lines})
        return
    parts = [f"{count:,} {outcome}" for outcome, count in counts.items() if count or outcome == "pushed"]
    if bulk.bad_lines:
        parts.append(f"{bulk.bad_lines:,} bad {'line' if bulk.bad_lines == 1 else 'lines'}")
    complain(", ".join(parts))


@contextmanager
def _source(path: str) -> Iterator[tuple[BinaryIO, int | None]]:
    """The lines, and how many bytes they are, where that can be known."""
    if path == "-":
        yield sys.stdin.buffer, _size(sys.stdin.fileno())
        return
    with open(path, "rb") as source:  # noqa: PTH123  what is wrong with the path is said as the user wrote it
        yield source, _size(source.fileno())


def _size(descriptor: int) -> int | None:
    status = os.fstat(descriptor)
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _advancing(lines: Iterator[Numbered], advance: Callable[[int], None]) -> Iterator[Numbered]:
    for line in lines:
        advance(line.size)
        yield line


@contextmanager
def _progress(size: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("pushing"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=size)
        yield lambda step: progress.update(bar, advance=step)
