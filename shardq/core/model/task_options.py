"""The options of a push: the table of all, and the types in which they are written out for those who type them.

One option is one row of ``OPTIONS``. The packer, the record, the commands and lines of JSON go by the rows.
The types here, and the signature of ``Engine.push``, have the same names by hand, so that editors complete them;
``tests/model/test_push_options.py`` compares them with the rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec

from shardq.core.model.checks import (
    OnConflict,
    check_headers,
    check_headers_size,
    check_max_attempts,
    checked_tags,
    is_ours,
)
from shardq.core.model.endpoints import checked_url

# ---- as they are given


class ContentOptions(TypedDict, total=False):
    """The options that belong to the content of a task: they say neither when it is due nor under which id. Recurring
    tasks have them, too.
    """

    headers: Mapping[str, str] | None
    max_attempts: int | None
    tags: Sequence[str] | None
    url: str | None


class PushOptions(ContentOptions, total=False):
    """The options of ``Engine.push`` except ``durability``, for pushes that take them as they come."""

    delay: float | dt.timedelta | None
    at: float | dt.datetime | None
    topic: str
    key: str | None
    id: str | None
    on_conflict: OnConflict
    dedup: float | dt.timedelta | None
    expires: float | dt.timedelta | dt.datetime | None
    window: float | dt.timedelta | None
    throttle: float | dt.timedelta | None


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """The base of what has ``ContentOptions``: a task, and the recurrence of one."""

    headers: Mapping[str, str] | None = None
    max_attempts: int | None = None
    tags: Sequence[str] | None = None
    url: str | None = None


class TaskOptions(Content, frozen=True, kw_only=True):
    """The options of a push, shared by ``Task`` and by ``push``'s keyword arguments."""

    delay: float | dt.timedelta | None = None
    at: float | dt.datetime | None = None
    topic: str = ""
    key: str | None = None
    id: str | None = None
    on_conflict: OnConflict = "keep"
    dedup: float | dt.timedelta | None = None
    expires: float | dt.timedelta | dt.datetime | None = None
    window: float | dt.timedelta | None = None
    throttle: float | dt.timedelta | None = None


# ---- as they are stored

URL_HEADER = "shardq-url"
"""The header that has the URL of a task, which goes there as a webhook. Who claims it as a consumer may read it."""


class StoredContent(msgspec.Struct, omit_defaults=True):
    """The options of the content, as they come back from a record, under the names of its head."""

    max_attempts: int | None = msgspec.field(default=None, name="m")
    headers: dict[str, str] = msgspec.field(default_factory=dict, name="h")
    """Those of the caller's, and ours; ``parted`` tells them apart."""
    tags: tuple[str, ...] = msgspec.field(default=(), name="t")

    @property
    def url(self) -> str | None:
        """The URL to which the task goes as a webhook: one of the headers."""
        return self.headers.get(URL_HEADER)

    @url.setter
    def url(self, url: str) -> None:
        self.headers = {**self.headers, URL_HEADER: url}
        check_headers_size(self.headers)

    def named(self) -> dict[str, Any]:
        """The options by their names."""
        headers, url = parted(self.headers)
        return {"max_attempts": self.max_attempts, "headers": headers, "tags": self.tags, "url": url}


def parted(headers: Mapping[str, str]) -> tuple[Mapping[str, str], str | None]:
    """The headers that the caller gave, and the URL: headers of ours are nobody else's, and never leave."""
    if not any(map(is_ours, headers)):
        return headers, None
    return {name: value for name, value in headers.items() if not is_ours(name)}, headers.get(URL_HEADER)


def _stored_headers(headers: Mapping[str, str]) -> dict[str, str]:
    check_headers(headers)
    return dict(headers)


def _stored_attempts(attempts: int) -> int:
    check_max_attempts(attempts)
    return attempts


# ---- the table

Kind = Literal["seconds", "instant", "expiry", "text", "choice", "count", "pairs", "words"]
"""How a command and a line of JSON have a value. ``seconds``: a length of time. ``expiry``: that, or an instant.
``pairs``: texts by name. ``words``: several texts.
"""


class Option(NamedTuple):
    """One option of a push."""

    name: str
    kind: Kind
    help: str
    """For the commands."""
    stored: Callable[[Any], Any] | None = None
    """Checks an option of the content, and returns what the record keeps of it. None: it goes into the words of the
    script, or has to be compared with others, which the packer does.
    """

    @property
    def word(self) -> str:
        """The name of one value of it, with which a command takes one at a time."""
        if self.name == "url":  # --url of a command is that of the server
            return "webhook"
        return self.name.removesuffix("s") if self.kind in ("pairs", "words") else self.name


OPTIONS: tuple[Option, ...] = (
    Option("delay", "seconds", "From now: 90, 1.5, 90s, 5m, 1h30m, 1d."),
    Option("at", "instant", "2030-01-31T12:00:00Z, or seconds since 1970."),
    Option("topic", "text", "Default: the default topic."),
    Option("key", "text", "Tasks with one key run one at a time, in the order of their due times."),
    Option("id", "text", "An id of your own, so that the push can be repeated safely."),
    Option("on_conflict", "choice", "What to do when a task has the id already."),
    Option("dedup", "seconds", "Remember the id for this time, even when its task is done."),
    Option("headers", "pairs", "May be repeated.", _stored_headers),
    Option("max_attempts", "count", "The task is dead after N failed attempts.", _stored_attempts),
    Option("tags", "words", "For `shardq cancel --tag`; may be repeated.", checked_tags),
    Option("url", "text", "The URL to which the task is posted, as a webhook: https://HOST/PATH.", checked_url),
    Option(
        "expires",
        "expiry",
        "The task is dead, as expired, if no worker claims it by then: from now, or an instant.",
    ),
    Option("window", "seconds", "Spread tasks over this time, from the due time on."),
    Option("throttle", "seconds", "Accept at most one push of an id in this time."),
)

CONTENT: tuple[Option, ...] = tuple(option for option in OPTIONS if option.name in Content.__struct_fields__)


def any_given(names: Iterable[str]) -> str:
    """The expression that tells if ``task`` has one of these options: an ``or`` for each. A loop over the names would
    take four times as long, and every push asks.

    >>> any_given(["id", "key"])
    'task.id is not None or task.key is not None'
    """
    return " or ".join(f"task.{name} is not None" for name in names)


has_content: Callable[[Content], bool] = eval(f"lambda task: {any_given(option.name for option in CONTENT)}")
"""True if an option of the content is given."""


def store_content(given: Content, into: StoredContent) -> None:
    """Puts the options of the content that are given there. Raises the BadInput of one."""
    for name, check in _STORED:
        value = getattr(given, name)
        if value is not None:
            setattr(into, name, check(value))


_STORED = [(option.name, option.stored) for option in CONTENT if option.stored is not None]
