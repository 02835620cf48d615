"""The values of keys. Each is changed only in the age in which it was made, and copied before that in any later one:
so a snapshot of a whole keyspace is a copy of the names alone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any, ClassVar

Image = tuple[Any, ...]
"""A value as it is compared and hashed."""


class Text:
    """A string."""

    kind: ClassVar[str] = "string"
    __slots__ = ("age", "data", "image")

    def __init__(self, age: int, data: bytes = b"") -> None:
        self.age = age
        self.data = data
        self.image: Image | None = None

    def __len__(self) -> int:
        return len(self.data)

    def copied(self, age: int) -> Text:
        return Text(age, self.data)

    def imaged(self) -> Image:
        return ("string", self.data)


class Hash(dict[bytes, bytes]):
    kind: ClassVar[str] = "hash"
    __slots__ = ("age", "image")

    def __init__(self, age: int, fields: dict[bytes, bytes] | None = None) -> None:
        super().__init__(fields or {})
        self.age = age
        self.image: Image | None = None

    def copied(self, age: int) -> Hash:
        return Hash(age, self)

    def imaged(self) -> Image:
        return ("hash", *sorted(self.items()))


class List(list[bytes]):
    kind: ClassVar[str] = "list"
    __slots__ = ("age", "image")

    def __init__(self, age: int, items: list[bytes] | None = None) -> None:
        super().__init__(items or ())
        self.age = age
        self.image: Image | None = None

    def copied(self, age: int) -> List:
        return List(age, self)

    def imaged(self) -> Image:
        return ("list", *self)


class SortedSet:
    """A ZSET: its members in order by score, those of one score by their bytes."""

    kind: ClassVar[str] = "zset"
    __slots__ = ("age", "image", "order", "scores")

    def __init__(self, age: int) -> None:
        self.age = age
        self.image: Image | None = None
        self.scores: dict[bytes, float] = {}
        self.order: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self.order)

    def copied(self, age: int) -> SortedSet:
        copy = SortedSet(age)
        copy.scores, copy.order = self.scores.copy(), self.order.copy()
        return copy

    def put(self, member: bytes, score: float) -> None:
        present = self.scores.get(member)
        if present is not None:
            if present == score:
                return
            del self.order[bisect_left(self.order, (present, member))]
        self.scores[member] = score
        insort(self.order, (score, member))

    def remove(self, member: bytes) -> bool:
        score = self.scores.pop(member, None)
        if score is None:
            return False
        del self.order[bisect_left(self.order, (score, member))]
        return True

    def remove_ranks(self, start: int, stop: int) -> int:
        """Removes the members from one rank on to before another."""
        going = self.order[start:stop]
        del self.order[start:stop]
        for _, member in going:
            del self.scores[member]
        return len(going)

    def imaged(self) -> Image:
        return ("zset", *self.order)


Entry = tuple[bytes, ...]
"""Field, value, … of an entry of a stream."""

Number = tuple[int, int]
"""The id of an entry: ms and sequence."""


class Stream:
    """A stream, in nodes of so many entries: what is trimmed about, goes by whole nodes."""

    kind: ClassVar[str] = "stream"
    NODE = 100
    LAST: Number = ((1 << 64) - 1, (1 << 64) - 1)
    __slots__ = ("age", "image", "last", "nodes")

    def __init__(self, age: int) -> None:
        self.age = age
        self.image: Image | None = None
        self.last: Number = (0, 0)
        self.nodes: list[tuple[int, dict[Number, Entry]]] = []
        """How many entries each was made of, and those that are left."""

    def __len__(self) -> int:
        return sum(len(entries) for _, entries in self.nodes)

    def copied(self, age: int) -> Stream:
        copy = Stream(age)
        copy.last, copy.nodes = self.last, [(made, entries.copy()) for made, entries in self.nodes]
        return copy

    def add(self, number: Number, entry: Entry) -> None:
        self.last = number
        if not self.nodes or self.nodes[-1][0] >= self.NODE:
            self.nodes.append((0, {}))
        made, entries = self.nodes[-1]
        entries[number] = entry
        self.nodes[-1] = (made + 1, entries)

    def remove(self, number: Number) -> bool:
        for at, (_, entries) in enumerate(self.nodes):
            if entries.pop(number, None) is not None:
                if not entries:
                    del self.nodes[at]
                return True
        return False

    def trim(self, most: int) -> None:
        """Removes nodes from the front while at least so many entries stay."""
        while self.nodes and len(self) > most and len(self) - len(self.nodes[0][1]) >= most:
            del self.nodes[0]

    def imaged(self) -> Image:
        """Without the ids, which are instants of the server's clock."""
        return ("stream", *(entry for _, entries in self.nodes for entry in entries.values()))


Value = Text | Hash | List | SortedSet | Stream
