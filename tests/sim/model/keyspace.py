"""The keys of one model server, their values, and what a snapshot costs: a copy of the names."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar
from zlib import crc32

from tests.sim.model.numbers import shortest
from tests.sim.model.values import Hash, Image, List, SortedSet, Stream, Text, Value

V = TypeVar("V", Text, Hash, List, SortedSet, Stream)

WRONG_TYPE = b"WRONGTYPE Operation against a key holding the wrong kind of value"


class ModelError(Exception):
    """A script does what it must not, or what the model does not know. Not an answer of a server."""


class Refused(Exception):
    """A command is answered by an error."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        super().__init__(text.decode(errors="backslashreplace"))


SMALL_PAGE = 2

Dump = tuple[tuple[bytes, Image], ...]


_ages = count(1)
"""Ages of values: no two keyspaces have the same, as one may be given what was a snapshot of another."""


@dataclass(frozen=True)
class Snapshot:
    keys: dict[bytes, Value]


@dataclass
class Keyspace:
    """``now_us`` tells the time. ``heard`` is how many subscribers a channel has. ``printed`` prints scores.

    ``shuffle``: None keeps fields and members in the order in which small keys of a server have them, and a scan gives
    all at once. A number gives another order by each, and scans go by pages: as large keys of servers do.
    One in four of them gives small pages, as COUNT bounds none from below.
    """

    now_us: Callable[[], int]
    heard: Callable[[bytes], int] = lambda channel: 0
    printed: Callable[[float], bytes] = shortest
    run_id: bytes = b"0" * 40
    shuffle: int | None = None
    hscan_without_values: bool = True
    random: random.Random = field(default_factory=lambda: random.Random(0))
    keys: dict[bytes, Value] = field(default_factory=dict)
    messages: list[tuple[bytes, bytes]] = field(default_factory=list)
    """What was published: channel and message."""
    _age: int = 0

    def read(self, key: bytes, kind: type[V]) -> V | None:
        """The value of a key, None if there is none."""
        value = self.keys.get(key)
        if value is None or type(value) is kind:
            return value
        raise Refused(WRONG_TYPE)

    def changing(self, key: bytes, kind: type[V]) -> V | None:
        """Likewise, for one who changes it."""
        value = self.keys.get(key)
        if value is None:
            return None
        if type(value) is not kind:
            raise Refused(WRONG_TYPE)
        if value.age != self._age:
            value = self.keys[key] = value.copied(self._age)
        value.image = None
        return value

    def made(self, key: bytes, kind: type[V]) -> V:
        """Likewise, and made where there is none."""
        value = self.changing(key, kind)
        if value is None:
            value = self.keys[key] = kind(self._age)
        return value

    def drop_if_empty(self, key: bytes) -> None:
        if not self.keys[key]:
            del self.keys[key]

    def ordered(self, members: Iterable[bytes]) -> list[bytes]:
        """The order in which a hash tells its fields."""
        if self.shuffle is None:
            return list(members)
        return sorted(members, key=self._place)

    def page(self, members: list[bytes], cursor: int, count: int) -> tuple[int, list[bytes]]:
        """A page of a scan, and where the next one begins: 0 at the end. What stays for a whole scan is met once."""
        if self.shuffle is None:
            return 0, members
        if self.shuffle % 4 == 1:
            count = min(count, SMALL_PAGE)
        following = sorted((self._place(member), member) for member in members)
        following = [each for each in following if each[0] >= cursor]
        page, rest = following[:count], following[count:]
        while rest and rest[0][0] == page[-1][0]:
            page.append(rest.pop(0))
        return (rest[0][0] if rest else 0), [member for _, member in page]

    def _place(self, member: bytes) -> int:
        return crc32(member, self.shuffle or 0) + 1

    def snapshot(self) -> Snapshot:
        """The state of all keys; messages and the clock are not in it."""
        self._age = next(_ages)
        return Snapshot(self.keys.copy())

    def restore(self, snapshot: Snapshot) -> None:
        self._age = next(_ages)
        self.keys = snapshot.keys.copy()

    def dump(self) -> Dump:
        """The state of all keys as a value: the same for the same state, hashable."""
        dumped = []
        for key in sorted(self.keys):
            value = self.keys[key]
            if value.image is None:
                value.image = value.imaged()
            dumped.append((key, value.image))
        return tuple(dumped)
