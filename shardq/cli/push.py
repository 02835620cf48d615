"""push: the command for one task."""

from __future__ import annotations

import os
from typing import Any, Final

import click

from shardq.cli.options import Given, command, raw_json, shared, task_options
from shardq.cli.output import complain
from shardq.cli.session import opened
from shardq.core.model.task import Receipt
from shardq.core.producer.durable import Durability
from shardq.engine.around import forms
from shardq.errors import NotReplicated

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

    `shardq import` pushes the lines of a file.
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
