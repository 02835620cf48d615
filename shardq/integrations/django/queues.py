"""The topics of a queue: one for each step of priority. No I/O.

Topics are served in a strict order, so priorities are steps and not a hundred shades: ``mail.highest`` before
``mail.high`` before ``mail``, and so on. Within a step tasks come by their due time.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardq.core.model.checks import check_topic
from shardq.errors import InvalidTopic

STEPS: tuple[tuple[str, int], ...] = (("highest", 51), ("high", 1), ("", 0), ("low", -50), ("lowest", -100))
"""The name of each step and its least priority, the first ones first."""

_SUFFIXES = tuple(f".{name}" for name, _ in STEPS if name)

LONGEST = 64 - max(map(len, _SUFFIXES))
"""The characters of a queue's name: its topics have more."""


def topic_of(queue: str, priority: int) -> str:
    """
    >>> topic_of("mail", 0), topic_of("mail", 100), topic_of("mail", -1)
    ('mail', 'mail.highest', 'mail.low')
    """
    step = next(name for name, least in STEPS if priority >= least)
    return f"{queue}.{step}" if step else queue


def queue_of(topic: str) -> str:
    """
    >>> queue_of("mail.highest"), queue_of("mail")
    ('mail', 'mail')
    """
    for suffix in _SUFFIXES:
        if topic.endswith(suffix):
            return topic.removesuffix(suffix)
    return topic


def topics_of(queues: Iterable[str]) -> list[str]:
    """The topics of queues in the order in which they are served: by priority, and then by the order of the queues.

    >>> topics_of(["mail", "news"])[:3]
    ['mail.highest', 'news.highest', 'mail.high']
    """
    names = list(dict.fromkeys(queues))
    return [topic_of(queue, least) for _, least in STEPS for queue in names]


def wrong_queue(name: object) -> str | None:
    """The error in the name of a queue, and what to do; None: there is none."""
    if not isinstance(name, str) or not name:
        return f"the queue name {name!r} is not possible: give a str that is not empty"
    try:
        check_topic(name)
    except InvalidTopic:
        return f"the queue name {name!r} is not possible: use letters, digits and _ . - only"
    if len(name) > LONGEST:
        return f"the queue name {name!r} is too long: {LONGEST} characters are possible"
    if name.endswith(_SUFFIXES):
        return (
            f"the queue name {name!r} is not possible: {', '.join(_SUFFIXES)} at the end are the priorities of a "
            "queue; give it another end"
        )
    return None
