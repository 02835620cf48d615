"""From tasks to entries, and from entries to calls. Pure: everything that can be wrong with a task is found here,
before anything is sent.

An *entry* is a task made ready: its id, due word and record, and for a caller-given id the conflict rule and dedup
window. Which shard it goes to is decided later, and again when the topology has changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from shardq.atlas import Atlas
from shardq.calls import produce
from shardq.calls.request import Call, Word
from shardq.errors import BadInput
from shardq.layout.keys import ShardKeys
from shardq.model.checks import (
    check_dedup,
    check_headers,
    check_id,
    check_max_attempts,
    check_on_conflict,
    check_topic,
    due_spec,
    expiry_spec,
)
from shardq.model.ids import Ids, full_id
from shardq.model.record import Codec, encode_head, record_encoder
from shardq.model.task import Task

MAX_BATCH = 1000
"""Tasks of one script call, which stores all of them or none."""

WINDOW = 8000
"""Tasks grouped by shard at a time, while the servers work on the last: over 16 shards some 500 in a call, which the
server does in about a millisecond."""

MAX_BATCH_BYTES = 1 << 20
"""Of ids and records of one script call; a larger single task goes alone."""

FRESH = 3
"""Words of a task whose id is ours: id, due, record."""

UNIQUE = 5
"""Words of a task whose id is the caller's: id, due, record, conflict rule, dedup window in ms."""


@dataclass(slots=True)
class Entries:
    """Packed tasks, flat: the words of their scripts one task after the other."""

    ids: list[str] = field(default_factory=list)
    """All of them, in the order of the tasks."""
    fresh: list[Word] = field(default_factory=list)
    unique: list[Word] = field(default_factory=list)


class Packer:
    """Checks and encodes tasks. One for each engine; threads may share it."""

    def __init__(self, codec: Codec, *, max_payload: int) -> None:
        self._ids = Ids()
        self._encode: Callable[[Any, bytes | None], bytes] = record_encoder(codec, limit=max_payload)

    def one(self, task: Task) -> Entries:
        """Raises the BadInput that the task deserves."""
        entries = Entries()
        self._add(entries, task)
        return entries

    def many(self, tasks: Iterable[Task]) -> Entries:
        """All of them, or the BadInput of the first bad one, which says its position."""
        entries = Entries()
        ids, fresh = entries.ids, entries.fresh
        encode = self._encode
        spare: list[str] = []
        for position, task in enumerate(tasks):
            try:
                if (
                    type(task) is Task
                    and task.topic == ""
                    and task.id is None
                    and task.headers is None
                    and task.max_attempts is None
                    and task.expires is None
                    and task.dedup is None
                    and task.on_conflict == "keep"
                ):
                    # the ordinary task, in a straight line
                    if not spare:
                        spare = self._ids.many(256)
                        spare.reverse()
                    record = encode(task.payload, None)
                    due = due_spec(task.delay, task.at)
                    id = spare.pop()
                    ids.append(id)
                    fresh += (id, due, record)
                else:
                    self._add(entries, task)
            except BadInput as exc:
                raise type(exc)(f"task {position} of this call: {exc}") from exc
        return entries

    def again(self, id: str, due: Word, record: Word) -> tuple[str, Word, Word]:
        """The same task under another id of ours, for one that collided."""
        topic, slash, _ = id.partition("/")
        return self._ids.one(topic=topic if slash else ""), due, record

    def _add(self, entries: Entries, task: Task) -> None:
        if not isinstance(task, Task):
            raise BadInput(
                f"a task can't be {type(task).__name__}: {task!r:.80}; wrap the payload: shardq.Task(payload, delay=5)"
            )
        if isinstance(task.payload, Task):
            raise BadInput(
                "a payload can't be a Task, whose options would be lost; push it with push_many([task]), or give "
                "push() its payload and options"
            )
        check_topic(task.topic)
        due = due_spec(task.delay, task.at)
        dedup_ms = check_dedup(task.dedup, task.id)
        check_on_conflict(task.on_conflict)
        if task.headers is not None:
            check_headers(task.headers)
        if task.max_attempts is not None:
            check_max_attempts(task.max_attempts)
        head = encode_head(headers=task.headers, max_attempts=task.max_attempts, expires=expiry_spec(task.expires, due))
        record = self._encode(task.payload, head)
        if task.id is None:
            id = self._ids.one(topic=task.topic)
            entries.fresh += (id, due, record)
        else:
            check_id(task.id)
            id = full_id(task.topic, task.id)
            entries.unique += (id, due, record, task.on_conflict, dedup_ms or 0)
        entries.ids.append(id)


@dataclass(slots=True, eq=False)
class Batch:
    """One script call and the words it carries, to route them again when that is needed."""

    keys: ShardKeys
    words: list[Word]
    width: int
    """FRESH or UNIQUE: which script, and how many words a task takes."""

    @property
    def ids(self) -> list[str]:
        return self.words[:: self.width]  # type: ignore[return-value]  # the first word of each task is its id

    def as_unique(self) -> list[Word]:
        """The same tasks in the words of push_unique; ids of ours are kept where they are."""
        if self.width == UNIQUE:
            return self.words
        words: list[Word] = []
        for at in range(0, len(self.words), FRESH):
            words += (*self.words[at : at + FRESH], "keep", 0)
        return words

    def call(self, epoch: int) -> Call[list[str]]:
        if self.width == FRESH:
            return produce.push(self.keys, epoch, self.words)
        return produce.push_unique(self.keys, epoch, self.words)


def batches(atlas: Atlas, words: list[Word], width: int, *, most: int) -> Iterator[Batch]:
    """Groups the tasks of each window by shard under the present topology, at most ``most`` and 1 MiB in a call."""
    if len(words) == width:
        yield Batch(atlas.home(words[0]), words, width)  # type: ignore[arg-type]  # the id
        return
    locate = atlas.topology.locator()
    for start in range(0, len(words), WINDOW * width):
        groups: dict[int, list[Word]] = {}
        for at in range(start, min(start + WINDOW * width, len(words)), width):
            shard = locate(words[at])  # type: ignore[arg-type]  # the id
            group = groups.get(shard)
            if group is None:
                group = groups[shard] = []
            group += words[at : at + width]
        for shard, group in groups.items():
            keys = atlas.keys(shard)
            for part in _bounded(group, width, most):
                yield Batch(keys, part, width)


def _bounded(group: list[Word], width: int, most: int) -> Iterator[list[Word]]:
    step = most * width
    for start in range(0, len(group), step):
        part = group[start : start + step]
        # ids take at most 265 bytes each: only records can make a batch too large
        if sum(map(len, part[2::width])) <= MAX_BATCH_BYTES:  # type: ignore[arg-type]  # records are bytes
            yield part
        else:
            yield from _by_bytes(part, width)


def _by_bytes(part: list[Word], width: int) -> Iterator[list[Word]]:
    begin = size = 0
    for at in range(0, len(part), width):
        length = len(part[at + 2])  # type: ignore[arg-type]  # the record
        if size and size + length > MAX_BATCH_BYTES:
            yield part[begin:at]
            begin, size = at, 0
        size += length
    yield part[begin:]
