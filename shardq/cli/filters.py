"""The options that say which tasks a command is for. Called by ``list`` and by the commands on many tasks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from shardq.cli.parsers import Bound, due_range, read_by
from shardq.core.model.checks import check_tag
from shardq.core.model.ids import quoted_topic
from shardq.engine import Engine
from shardq.features.listing.query import Due

F = TypeVar("F", bound=Callable[..., Any])

Range = tuple[Bound, Bound]


@dataclass(frozen=True)
class Filter:
    """The tasks that a user asks for."""

    topic: str | None = None
    state: str | None = None
    due: Range | None = None
    tag: str | None = None

    def __post_init__(self) -> None:
        if self.due is not None and self.state not in (None, "scheduled"):
            raise click.UsageError(f"--due goes with --state scheduled, or none: {self.state} tasks have no due time")

    def __bool__(self) -> bool:
        return any(each is not None for each in (self.topic, self.state, self.due, self.tag))

    def arguments(self, engine: Engine) -> dict[str, Any]:
        """The arguments of an engine's command. Lengths of time count from the server's now."""
        return {"topic": self.topic, "state": self.state, "due": _instants(engine, self.due), "tag": self.tag}

    def of(self, what: str) -> str:
        """
        >>> Filter("mail", None, (None, 0.0)).of("tasks")
        "scheduled tasks of the topic 'mail', due ..0s"
        """
        state = self.state or ("scheduled" if self.due is not None else "")
        text = f"{state} {what}" if state else what
        if self.topic is not None:
            text += f" of the topic {quoted_topic(self.topic)}"
        if self.tag is not None:
            text += f" with the tag {self.tag!r}"
        if self.due is not None:
            text += f", due {_shown(self.due[0])}..{_shown(self.due[1])}"
        return text


def filter_options(states: tuple[str, ...]) -> Callable[[F], F]:
    """Adds --topic, --state, --due and --tag."""

    def add(command: F) -> F:
        command = click.option(
            "--due",
            metavar="FROM..TO",
            callback=read_by(due_range),
            help="Only scheduled ones due in this time, by lengths of time from now or instants: 0..1h, -10m.., "
            "..0 (due already), 2030-01-31T00:00:00Z..",
        )(command)
        command = click.option("--state", type=click.Choice(states), help="Only in this state.")(command)
        return topic_option(tag_option(command))

    return add


def topic_option(command: F) -> F:
    return click.option("--topic", metavar="TOPIC", help="Only of this topic; '' is the default topic.")(command)


def tag_option(command: F) -> F:
    return click.option(
        "--tag",
        metavar="TAG",
        callback=_checked_tag,
        help="Only with this tag. There is no index of tags: every task is looked at.",
    )(command)


def _checked_tag(_: click.Context, __: click.Parameter, tag: str | None) -> str | None:
    if tag is not None:
        check_tag(tag)
    return tag


def _instants(engine: Engine, due: Range | None) -> Due | None:
    if due is None:
        return None
    now = engine.forecast("hour").now if any(isinstance(bound, float) for bound in due) else None

    def instant(bound: Bound) -> dt.datetime | None:
        if isinstance(bound, float) and now is not None:
            try:
                return now + dt.timedelta(seconds=bound)
            except OverflowError:
                raise click.UsageError("--due: that is before the year 1 or after the year 9999") from None
        assert not isinstance(bound, float), "lengths of time have a now to count from"
        return bound

    return instant(due[0]), instant(due[1])


def _shown(bound: Bound) -> str:
    if bound is None:
        return ""
    return f"{bound:%Y-%m-%dT%H:%M:%S%z}" if isinstance(bound, dt.datetime) else f"{bound:g}s"
