"""The ids of tasks that wait in the table. No I/O.

Such an id names the row: ``.`` and twelve characters, of which four are the hour in which the task was to be due when
it was pushed (its *bucket*), and eight a number (its *sequence*). No other id that is made here begins with a dot.

What the outbox stores has its id before anybody knows whether the engine has a table. Such an id has random bits in
their place, and is found by its name. So is a task with a key: a row that is found by its place has its topic only.

A sequence begins with the time in steps of sixteen seconds, and ends with a number that starts at random in each step
and counts up. So what is pushed one after the other lies side by side in the table's index, whoever pushes it, which
halves the cost of a row. Two processes that meet the same number in one bucket are told by the index; the later one
draws anew.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from shardq.core import forks
from shardq.core.model.ids import ALPHABET, ENDS, full_id, spell

HOUR_MS = 3_600_000

LENGTH = 13  # as ids of the engine: one more would cost a task in Redis 16 bytes

_MARK = "."
_BUCKET_CHARACTERS = 4
_SEQUENCE_CHARACTERS = 8
_SEQUENCE_BITS = 6 * _SEQUENCE_CHARACTERS
LAST_BUCKET: int = (1 << 6 * _BUCKET_CHARACTERS - 1) - 1
"""An hour of the year 2926: what is due later stays in Redis. In ids, later buckets are random bits."""

_STEP_S = 16
_STEP_BITS = 20
_NUMBER_BITS = 28

_VALUES = {character: value for value, character in enumerate(ALPHABET)}


class Place(NamedTuple):
    """The place of a row: the key of its table."""

    bucket: int
    seq: int


def bucket_of(due_ms: int) -> int:
    """The bucket of an instant."""
    return due_ms // HOUR_MS


def spelled(beginning: str, place: Place) -> str:
    """The id of the task that was pushed to a place."""
    # without the first of the characters of an id, which has none of these bits
    return full_id(beginning, _MARK + spell(place.bucket << _SEQUENCE_BITS | place.seq)[1:])


def spelled_all(places: Iterable[tuple[str, int, int]]) -> list[str]:
    """The ids of many tasks, each by its beginning and its place. Fast where sequences follow each other."""
    begins: dict[tuple[str, int], str] = {}
    ids: list[str] = []
    run, middle = -1, ""
    for beginning, bucket, seq in places:
        begin = begins.get((beginning, bucket))
        if begin is None:
            begin = begins[beginning, bucket] = spelled(beginning, Place(bucket, 0))[:-_SEQUENCE_CHARACTERS]
        if seq >> 12 != run:
            run, middle = seq >> 12, spell(seq)[-_SEQUENCE_CHARACTERS:-2]
        ids.append(begin + middle + ENDS[seq & 4095])
    return ids


def made_before(beginning: str) -> str:
    """A new id for a task whose engine may have a table, or none."""
    bits = 6 * LENGTH - 6
    number = int.from_bytes(os.urandom(bits // 8), "big") | 1 << bits - 1
    return full_id(beginning, _MARK + spell(number)[1:])


def place_in(id: str) -> Place | None:
    """The place that an id names, behind ``LAST_BUCKET`` where it names none; None for an id of another form."""
    unique = id.rpartition("/")[2]
    if len(unique) != LENGTH or unique[0] != _MARK:
        return None
    number = 0
    for character in unique[1:]:
        if (value := _VALUES.get(character)) is None:
            return None
        number = number << 6 | value
    return Place(number >> _SEQUENCE_BITS, number & (1 << _SEQUENCE_BITS) - 1)


class Sequences:
    """A source of sequences. Threads may share it; a child of a fork gets numbers of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._step = -1
        self._next = 0
        forks.watch(self, Sequences._forked)

    def take(self, count: int) -> range:
        """So many that follow each other, and that no other caller in this process gets."""
        with self._lock:
            step = int(time.time()) // _STEP_S
            if step > self._step:
                self._begin(step)
            elif (self._next + count) >> _NUMBER_BITS:
                self._begin(self._step + 1)
            first = (self._step & (1 << _STEP_BITS) - 1) << _NUMBER_BITS | self._next
            self._next += count
            return range(first, first + count)

    def _begin(self, step: int) -> None:
        # from the system, as ids; the top bit is clear, so that as many can follow
        self._step = step
        self._next = int.from_bytes(os.urandom(4), "big") & (1 << _NUMBER_BITS - 1) - 1

    def _forked(self) -> None:
        self._lock = threading.Lock()
        self._step = -1
