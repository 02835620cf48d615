"""The ids of the tasks of a schedule."""

from __future__ import annotations

import re

from shardq.core.model.ids import full_id


def schedule_id(beginning: str, name: str) -> str:
    """The beginning of the ids of all tasks of a schedule: of its occurrences, and of those of ``run()``. They begin
    with its topic, or its topic and key.
    """
    return full_id(beginning, f"every-{name}@")


_OF_SCHEDULE = re.compile(
    r"((?:[^/]*/(?:[^/]+/)?)?every-[A-Za-z0-9_.-]+@)(?:\d{4}-\d\d-\d\dT[\d:.]+Z(?:~\d+)?|run-[A-Za-z0-9_-]{13})"
)


def bound_to(id: str) -> str:
    """Returns what an encrypted payload is bound to: the whole id of its task, topic and key included. For a schedule
    that is ``TOPIC/every-NAME@``, or ``TOPIC/KEY/every-NAME@``: all its tasks have the payload that was encrypted when
    it was declared.

    >>> shardq.codecs.bound_to("mail/order-42")
    'mail/order-42'
    >>> shardq.codecs.bound_to("mail/every-nightly@2030-01-02T03:00:00Z")
    'mail/every-nightly@'
    """
    match = _OF_SCHEDULE.fullmatch(id)
    return match[1] if match else id
