"""push: the command for one task. The options of a task are also those of ``push-file``."""

from __future__ import annotations

import os
from typing import Any

import click

from shardq.cli.options import Given, joined, shared
from shardq.cli.output import complain
from shardq.cli.parsers import Whole, due_options, expiry, headers_of, raw_json, read_by, seconds
from shardq.cli.session import opened
from shardq.core.model.checks import MAX_ATTEMPTS
from shardq.core.model.task import Receipt
from shardq.core.producer.durable import Durability
from shardq.errors import NotReplicated

task_options = joined(
    due_options,
    click.option("--topic", default="", metavar="TOPIC", help="Default: the default topic."),
    click.option(
        "--on-conflict",
        type=click.Choice(["keep", "replace", "reject"]),
        default="keep",
        show_default=True,
        help="What to do when a task has the id already.",
    ),
    click.option(
        "--dedup",
        metavar="TIME",
        callback=read_by(seconds),
        help="How long the id is remembered, from the push, whatever becomes of its task.",
    ),
    click.option(
        "--header", "headers", metavar="KEY=VALUE", multiple=True, callback=headers_of, help="May be repeated."
    ),
    click.option(
        "--max-attempts",
        type=Whole(1, MAX_ATTEMPTS),
        metavar="N",
        help="After so many attempts that failed, the task is dead.",
    ),
    click.option(
        "--expires",
        metavar="TIME",
        callback=read_by(expiry),
        help="Bury the task if no worker has claimed it by then: a time from now, or an instant.",
    ),
    click.option(
        "--window",
        metavar="TIME",
        callback=read_by(seconds),
        help="Any time in so long from the due time is fine: tasks of one time are spread over it.",
    ),
    click.option(
        "--throttle", metavar="TIME", callback=read_by(seconds), help="Take at most one push of an id in so long."
    ),
    click.option(
        "--tag",
        "tags",
        metavar="TAG",
        multiple=True,
        callback=lambda ctx, param, value: value or None,
        help="For `shardq cancel --tag`; may be repeated.",
    ),
    click.option(
        "--durability",
        type=click.Choice(["replicated", "fsynced"]),
        help="Wait until all replicas, or the disks, have the task; exit 1 if that takes too long.",
    ),
)
"""All of them are arguments of ``Task``, but --durability."""


def check_due(options: dict[str, Any]) -> None:
    if options["delay"] is not None and options["at"] is not None:
        raise click.UsageError("--delay and --at exclude each other: a task has one due time")


@click.command(
    short_help="Push one task.",
    epilog="""\b
example:
  shardq push '{"order": 42}' --delay 30m
  shardq push '{"order": 42}' --topic email --id order-42 --dedup 1h
  shardq push 'plain text' --text --at 2030-01-31T12:00:00Z
  shardq push '{"user": 42}' --delay 1d --window 2h --tag user-42 --tag digest
  shardq push '"there is news"' --id news-42 --throttle 5m
\b
`shardq push-file` pushes the lines of a file.""",
)
@click.argument("payload")
@click.option("--text", is_flag=True, help="PAYLOAD is text, stored as a JSON string.")
@click.option("--raw", is_flag=True, help="PAYLOAD is stored as it is, as bytes.")
@click.option("--id", metavar="ID", help="An id of your own, so that the push can be repeated safely.")
@task_options
@shared
def push(
    given: Given, /, payload: str, text: bool, raw: bool, id: str | None, durability: Durability | None, **options: Any
) -> None:
    """Push a task with the JSON PAYLOAD, and print its id."""
    check_due(options)
    if text and raw:
        raise click.UsageError("--text and --raw exclude each other")
    content: Any = os.fsencode(payload) if raw else payload
    if not (text or raw):
        try:
            content = raw_json(payload)
        except ValueError as exc:
            raise click.UsageError(str(exc)) from None
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
    given.answer({"id": str(receipt), "outcome": receipt.outcome, "state": receipt.state}, receipt)
