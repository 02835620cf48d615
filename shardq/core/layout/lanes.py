"""The lane of a task with a key: its id is TOPIC/KEY/UNIQUE, and TOPIC/KEY/ its lane. ``lua/common/lane.lua`` reads
it in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_KEYED = re.compile(r"/[^/\n]+/")


def lane_of(id: str) -> str | None:
    """The beginning of the ids of all tasks with the key of this one; None for a task without a key.

    >>> lane_of("webhook/customer-7/order-42"), lane_of("webhook/order-42")
    ('webhook/customer-7/', None)
    """
    first = id.find("/")
    second = id.find("/", first + 1)
    return id[: second + 1] if first >= 0 and first + 1 < second else None


def have_keys(ids: Iterable[str]) -> bool:
    """True if one of these ids has a key.

    >>> have_keys(["mail/42", "42"]), have_keys(["order-42", "/ann/1"])
    (False, True)
    """
    return _KEYED.search("\n".join(ids)) is not None


def key_of(id: str) -> str | None:
    """The key of a task, or of a lane.

    >>> key_of("webhook/customer-7/order-42")
    'customer-7'
    """
    lane = lane_of(id)
    return None if lane is None else lane[lane.find("/") + 1 : -1]


def unique_of(id: str) -> str:
    """The part of an id that follows the topic and the key.

    >>> unique_of("webhook/customer-7/order-42"), unique_of("webhook/order-42")
    ('order-42', 'order-42')
    """
    lane = lane_of(id)
    return id.rpartition("/")[2] if lane is None else id[len(lane) :]


def beginning_of(id: str) -> str:
    """The part of an id before its UNIQUE, without the slash: the topic, and the key of a task that has one.

    >>> beginning_of("webhook/customer-7/order-42"), beginning_of("webhook/order-42"), beginning_of("order-42")
    ('webhook/customer-7', 'webhook', '')
    """
    return id.rpartition("/")[0]


def of_key(topic: str, key: str) -> str:
    """A lane by its topic and its key."""
    return f"{topic}/{key}/"


def behind(lane: str) -> str:
    """The first bytes behind all members of a set that begin with a lane: '0' follows '/'."""
    return lane[:-1] + "0"


def hashed_part(id: str | bytes) -> str | bytes:
    """The part of an id that chooses its shard: the tasks of a lane are in one."""
    text = id if isinstance(id, str) else id.decode("latin-1")
    lane = lane_of(text)
    return id if lane is None else id[: len(lane)]
