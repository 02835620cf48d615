"""New ids, nonces, and the two parts of an id.

Called by the producer, for tasks pushed without ``id=`` and with, and by all that tells the topic of an id.

An id is ``TOPIC/UNIQUE``, or just ``UNIQUE`` in the default topic; of a task with a key ``TOPIC/KEY/UNIQUE``, or
``/KEY/UNIQUE``. A UNIQUE of ours is one number of 78 bits in 13
characters:

    32 bits    seconds since the epoch: good until the year 2106
    46 bits    a number that starts at random in each second and counts up

in an alphabet whose order is that of ASCII, so ids sort by time, those of one source exactly. Not one character more:
a pending task takes 210 bytes of Valkey 9, and 226 with 14; of Redis 7.0 282, and 314 with 15. Seconds in place of
milliseconds: every new start is another chance to clash, and the bits do more good in the number.

Within a process no id repeats, whatever the clock does: time is taken to stand still while the clock is behind. Between
processes two ids clash only when both were made in one second and their numbers meet, one in 2**45 for a pair; a first
push notices (``push.lua``).
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Collection, Sequence

from shardq.core import forks

ALPHABET = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
"""The 64 characters of base64url in ASCII order."""

UNIQUE_LENGTH = 13

DEFAULT_TOPIC = "(default)"
"""Stands for the default topic, whose name is empty, wherever topics are shown. No topic can have this name."""

_NUMBER_BITS = 46
# A second's first number has the top bit clear: at least 2**45 more can follow.
_START_BITS = _NUMBER_BITS - 1

# Ids of one batch differ in their last two characters for runs of 4096: the rest is built once per run.
ENDS: Sequence[str] = [first + second for first in ALPHABET for second in ALPHABET]
_END_MASK = len(ENDS) - 1


class Ids:
    """A source of new ids. Any number of threads may share one; a child of a fork gets numbers of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._second = -1
        self._next = 0
        forks.watch(self, Ids._forked)

    def one(self, *, topic: str = "") -> str:
        """A new id."""
        unique = spell(self._reserve(1))
        return full_id(topic, unique) if topic else unique

    def many(self, n: int, *, topic: str = "") -> list[str]:
        """``n`` new ids of one topic, in ascending order."""
        number = self._reserve(n)
        last = number + n
        ids: list[str] = []
        while number < last:
            start = number & _END_MASK
            stop = min(start + last - number, len(ENDS))
            begin = full_id(topic, spell(number)[:-2])
            ids += [begin + end for end in ENDS[start:stop]]
            number += stop - start
        return ids

    def _reserve(self, n: int) -> int:
        """The first of ``n`` numbers of 78 bits that no other caller gets."""
        now, start = int(time.time()), -1
        if now > self._second or (self._next + n) >> _NUMBER_BITS:
            start = _new_start()
        while True:
            with self._lock:  # an instant: no call in it
                second, first = self._second, self._next
                if now > second:
                    second, first = now, start
                elif (first + n) >> _NUMBER_BITS:
                    second, first = second + 1, start  # 2**45 ids in one second, or in a clock's long way back
                if first >= 0:
                    self._second, self._next = second, first + n
                    return second << _NUMBER_BITS | first
            start = _new_start()  # another thread has used up what there was

    def _forked(self) -> None:
        """The parent goes on with its numbers; the child starts afresh."""
        self._lock = threading.Lock()
        self._second, self._next = max(self._second, 0), _new_start()


def _new_start() -> int:
    """The first number of a second."""
    # From the system, not from ``random``: a program that seeds that the same everywhere must not clash.
    return int.from_bytes(os.urandom(6), "big") & ((1 << _START_BITS) - 1)


def new_number() -> int:
    """A number of 78 bits from which on a caller counts ids of its own, as ``Ids`` does."""
    return int(time.time()) << _NUMBER_BITS | _new_start()


def new_nonce() -> int:
    """Names one push of one caller-given id, from its first send to its last resend."""
    # from the system, as above
    return int.from_bytes(os.urandom(4), "big")


def full_id(topic: str, unique: str) -> str:
    """The id of ``unique`` in ``topic``."""
    return f"{topic}/{unique}" if topic else unique


def topic_of(id: str) -> str:
    """The topic an id names; the default topic is the empty name."""
    return id.partition("/")[0] if "/" in id else ""


def shown_topic(name: str) -> str:
    """A topic's name as it is shown.

    >>> shown_topic("mail"), shown_topic("")
    ('mail', '(default)')
    """
    return name or DEFAULT_TOPIC


def quoted_topic(name: str) -> str:
    """The same within a sentence.

    >>> quoted_topic("mail"), quoted_topic("")
    ("'mail'", '(default)')
    """
    return repr(name) if name else DEFAULT_TOPIC


def topics_of(ids: Sequence[str]) -> Collection[str]:
    """The topics that the ids name. Those of one topic, as most calls have, are told by one search in all of them."""
    first = ids[0] if ids else ""
    topic = first[: max(0, first.find("/"))]
    if len(ids) == 1:
        return (topic,)
    text = "\n".join(ids)
    alike = text.count(f"\n{topic}/") == len(ids) - 1 if topic else "/" not in text
    return (topic,) if alike and ids else sorted(set(map(topic_of, ids)))


_OURS = re.compile(f"[{ALPHABET[1:]}-]{{{UNIQUE_LENGTH}}}")


def pushed_at(id: str) -> int | None:
    """The second in which an id of ours was made; None for another id. One of the caller's own may look like it.

    >>> pushed_at("mail/" + spell(1_700_000_000 << 46))
    1700000000
    """
    unique = id.rpartition("/")[2]
    if not _OURS.fullmatch(unique):
        return None
    number = 0
    for letter in unique[:6]:
        number = number << 6 | ALPHABET.index(letter)
    return number >> 4


def spell(number: int) -> str:
    """78 bits as 13 characters."""
    return (
        ALPHABET[number >> 72]
        + ENDS[number >> 60 & _END_MASK]
        + ENDS[number >> 48 & _END_MASK]
        + ENDS[number >> 36 & _END_MASK]
        + ENDS[number >> 24 & _END_MASK]
        + ENDS[number >> 12 & _END_MASK]
        + ENDS[number & _END_MASK]
    )
