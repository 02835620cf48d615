"""Packs tasks into entries, and entries into calls. No I/O: everything that can be wrong with a task is found here,
before anything is sent.

An *entry* is a task made ready: its id, due word and record, and for a caller-given id also the conflict rule and dedup
chunk. Its shard is chosen later, and again when the topology has changed.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import mmh3

from shardq.core.calls import by_id
from shardq.core.calls.request import Call, Epoch, Word
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.lanes import have_keys
from shardq.core.layout.topology import Topology
from shardq.core.model.checks import (
    check_dedup,
    check_id,
    check_key,
    check_on_conflict,
    check_throttle,
    check_topic,
    due_spec,
    due_specs,
    expiry_spec,
    later,
    window_ms,
)
from shardq.core.model.endpoints import checked_url, default_key
from shardq.core.model.ids import UNIQUE_LENGTH, Ids, full_id, new_nonce, topic_of
from shardq.core.model.printable import quoted
from shardq.core.model.record import (
    Codec,
    clear_of,
    encode_head,
    nonce_of,
    plain_records_encoder,
    pushed_s_of,
    rebound,
    record_encoder,
    refused_types,
    with_push,
)
from shardq.core.model.task import Task
from shardq.core.model.task_options import OPTIONS, any_given, has_content
from shardq.core.producer.turns import Ordered
from shardq.core.topology_cache import TopologyCache
from shardq.errors import BadInput

BATCH = 500
"""Tasks of one script call, which stores all of them or none: the server is held for a millisecond or two, and more at
a time are no faster."""

CHUNK = 64_000
"""Tasks that are grouped by shard at a time, while the servers work on the chunk before; fewer where there are few
shards.
"""

FIRST_OF_SHARD, MOST_OF_SHARD = 64, 1000
"""Tasks for each shard in the first and in later chunks. The servers wait for the first chunk; each is twice as large
as the one before, until a shard gets two calls in a row, when its data is in the server's cache.
"""

RUN = 1000
"""Tasks packed together if they are alike. One that differs slows down no more than these."""

CALL_BYTES = 1 << 18
"""The bytes of records in one script call; a larger task goes alone. Calls of 1 MiB, which no cache holds, took a tenth
longer with payloads of 4 KiB.
"""

FRESH = 3
"""The words of a task whose id is made here: id, due, record."""

UNIQUE = 5
"""The words of a task whose id the caller gave: id, due, record, conflict rule, dedup window in ms."""

SEED = 0x57494E44
"""The seed of places in windows. Not that of the buckets: the ids of one shard are spread over the whole window."""


@dataclass(slots=True)
class Entries:
    """Packed tasks, flat: the words of their scripts, one task after the other."""

    ids: list[str] = field(default_factory=list)
    """The ids of all, in the order of the tasks."""
    fresh: list[Word] = field(default_factory=list)
    unique: list[Word] = field(default_factory=list)
    keyed: bool | None = None
    """True if a task of them has a key; None: ``ids`` tell."""
    hooked: set[str] | None = None
    """The topics of those with a URL, while they are pushed; None if there are none."""

    @property
    def have_keys(self) -> bool:
        """True if a task of them has a key."""
        return have_keys(self.ids) if self.keyed is None else self.keyed

    @property
    def bytes(self) -> int:
        """The bytes of their records."""
        records = itertools.chain(self.fresh[2::FRESH], self.unique[2::UNIQUE])
        return sum(map(len, records))  # type: ignore[arg-type]  # records are bytes


def place_ms(id: str, window_ms: int) -> int:
    """The place of an id in its window, from 0 up to the window's length: a hash of the id. A resend, a replacing push
    and every later task of the id get the same one, and the tasks of one window are spread evenly, whichever process
    pushes them. The formula is a part of ``lua/README.md``.
    """
    return mmh3.hash(id, SEED, signed=False) * window_ms >> 32


def spread(dues: Sequence[int], ids: Sequence[str], window_ms: int) -> list[int]:
    """The due words of tasks with these ids, at their places in windows that begin at ``dues``."""
    return [later(due, place_ms(id, window_ms)) for due, id in zip(dues, ids, strict=True)]


def each_task(tasks: Iterable[Task]) -> Iterator[Task]:
    """Iterates over the tasks that a caller gave."""
    # A mapping or a text is iterable as well, and the error would be about its keys or letters.
    if not isinstance(tasks, Iterable) or isinstance(tasks, str | bytes | Mapping | Task):
        raise BadInput(f"tasks can't be {type(tasks).__name__}; give a list, or any iterable, of shardq.Task")
    return iter(tasks)


def stamped(entries: Entries, topology: Topology) -> Entries:
    """Entries that were packed without the topology, as they would be packed with it: where ends are kept, the records
    of ids of the callers' own say when they were pushed.
    """
    if topology.ends_rule:
        now, words = int(time.time()), entries.unique
        for at in range(0, len(words), UNIQUE):
            id, record = cast("str", words[at]), cast("bytes", words[at + 2])
            if topology.ends_age_ms(topic_of(id)) and nonce_of(record) is not None and pushed_s_of(record) < 0:
                words[at + 2] = with_push(record, now)
    return entries


class Packer:
    """Checks and encodes tasks. One for each engine; threads may share it."""

    def __init__(self, codec: Codec, *, max_payload: int) -> None:
        self._ids = Ids()
        self._encode = record_encoder(codec, limit=max_payload)
        self._encode_all = plain_records_encoder(codec, limit=max_payload)
        self._refused = (Task, *refused_types(codec))
        self._codec = codec
        self.binds: bool = clear_of(codec) is not None
        """True if a record is good for one id only: with another id it has to be ``rebound``."""
        self.cache: TopologyCache | None = None
        """That of the engine; None until it is open."""
        self.pushed = 0
        """Its tasks that are stored, as far as this process was told; for metrics."""

    def one(self, task: Task, *, nonce: int | None = None) -> Entries:
        """Packs one task. Raises its BadInput. ``nonce``: that of an id of the caller's, who may pack the task again;
        None: a new one.
        """
        entries = Entries(keyed=False)
        self._add(entries, task, nonce)
        return entries

    def many(self, tasks: Iterable[Task]) -> Entries:
        """Packs all tasks, or raises the BadInput of the first bad one, with its position."""
        entries = Entries(keyed=False)
        source = each_task(tasks)
        while some := list(itertools.islice(source, RUN)):
            if self._add_alike(entries, some):
                continue
            for task in some:
                try:
                    self._add(entries, task)
                except BadInput as exc:
                    raise type(exc)(f"task {len(entries.ids)} of this call: {exc}") from exc
        return entries

    def _keeps_ends(self, topic: str) -> bool:
        """True if the record of a task with an id of the caller's own has to say when it was pushed."""
        return self.cache is not None and self.cache.topology.ends_age_ms(topic) > 0

    def stamped(self, entries: Entries) -> Entries:
        """Entries that were packed before the engine was open, as they would be packed now."""
        return entries if self.cache is None else stamped(entries, self.cache.topology)

    def again(self, id: str, due: Word, record: Word) -> tuple[str, Word, Word]:
        """Packs a task again under another id, because its first id collided."""
        other = self.new_id(id[:-UNIQUE_LENGTH])
        return other, due, self.rebound(record, id, other)  # type: ignore[arg-type]  # records are bytes

    def new_id(self, beginning: str) -> str:
        """A new id that begins with this."""
        return beginning + self._ids.one()

    def rebound(self, record: bytes, old: str, new: str) -> bytes:
        """The record of a task whose id is another one now."""
        return rebound(record, self._codec, old, new)

    def _add_alike(self, entries: Entries, tasks: list[Task]) -> bool:
        """Packs tasks of one topic and window that have no options but a due time, column by column: a third of the
        work. Returns False, with nothing done, if one of them differs or is wrong.
        """
        if set(map(type, tasks)) != {Task} or not _is_plain(tasks, tasks[0].topic, tasks[0].window):
            return False
        payloads = [task.payload for task in tasks]
        if any(issubclass(kind, self._refused) for kind in set(map(type, payloads))):
            return False
        topic = tasks[0].topic
        try:
            check_topic(topic)
            window = window_ms(tasks[0].window)
            dues = due_specs([task.delay for task in tasks], [task.at for task in tasks])
            ids = self._ids.many(len(tasks), topic=topic)
            records = self._encode_all(payloads, ids)
        except BadInput:
            return False
        if window:
            dues = spread(dues, ids, window)
        words: list[Any] = [None] * (FRESH * len(tasks))
        words[0::FRESH], words[1::FRESH], words[2::FRESH] = ids, dues, records
        entries.ids += ids
        entries.fresh += words
        return True

    def _add(self, entries: Entries, task: Task, nonce: int | None = None) -> None:
        if not isinstance(task, Task):
            raise BadInput(
                f"a task can't be {type(task).__name__}: {quoted(task)}; wrap the payload: shardq.Task(payload, "
                "delay=5)"
            )
        if isinstance(task.payload, Task):
            raise BadInput(
                "a payload can't be a Task, whose options would be lost; push it with push_many([task]), or give "
                "push() its payload and options"
            )
        if task.topic != "":
            check_topic(task.topic)
        beginning, key = task.topic, task.key
        if task.url is not None:
            url = checked_url(task.url)
            key = default_key(url) if key is None else key
            entries.hooked = {*(entries.hooked or ()), task.topic}
        if key is not None:
            check_key(key)
            beginning, entries.keyed = f"{task.topic}/{key}", True
        due = due_spec(task.delay, task.at)
        window = 0 if task.window is None else window_ms(task.window)
        dedup_ms = None if task.dedup is None else check_dedup(task.dedup, task.id)
        if task.on_conflict != "keep":
            check_on_conflict(task.on_conflict, task.id)
        if task.throttle is not None:
            dedup_ms = check_throttle(task.throttle, task.id, task.dedup, task.on_conflict)
        head = None
        content = task if has_content(task) else None
        if content is not None or task.id is not None or task.expires is not None:
            expires = expiry_spec(task.expires, due, window_ms=window)
            if task.id is not None and nonce is None:
                nonce = new_nonce()
            pushed = int(time.time()) if task.id is not None and self._keeps_ends(task.topic) else None
            head = encode_head(content, expires=expires, nonce=None if task.id is None else nonce, pushed=pushed)
        if task.id is None:
            id = self._ids.one(topic=beginning)
        else:
            check_id(task.id)
            id = full_id(beginning, task.id)
        record = self._encode(task.payload, head, id)
        if window:
            [due] = spread([due], [id], window)
        if task.id is None:
            entries.fresh += (id, due, record)
        else:
            entries.unique += (id, due, record, task.on_conflict, dedup_ms or 0)
        entries.ids.append(id)


@dataclass(slots=True, eq=False)
class Batch(Ordered[list[str]]):
    """One script call and its tasks, kept as words to route them again if necessary."""

    words: list[Word]
    width: int
    """FRESH or UNIQUE: the script, and the words of a task."""
    number: int = 0
    """Its place among the batches of a push."""

    @property
    def ids(self) -> list[str]:
        return self.words[:: self.width]  # type: ignore[return-value]  # the first word of each task is its id


def chunk_sizes(shards: int) -> Iterator[int]:
    """The sizes of chunks, without end."""
    size, most = min(CHUNK, FIRST_OF_SHARD * shards), min(CHUNK, MOST_OF_SHARD * shards)
    while True:
        yield size
        size = min(2 * size, most)


def batches(
    cache: TopologyCache,
    epoch: Epoch,
    words: list[Word],
    width: int,
    *,
    sizes: Iterable[int],
    most: int = BATCH,
    look: bool = False,
) -> Iterator[Batch]:
    """Groups the tasks of chunks of these ``sizes`` by shard under the present topology; a call has at most ``most``
    tasks and 256 KiB. ``epoch`` was read before: a shard then refuses what a newer topology has routed meanwhile.
    ``look``: tasks whose ids are not there are not stored.
    """
    make: Callable[[ShardKeys, Epoch, list[Word]], Call[list[str]]] = (
        by_id.push if width == FRESH else by_id.push_unique
    )
    topology = cache.topology  # one for all: the tasks of a lane go to one shard
    if look:
        make = partial(by_id.push_unique, earlier="1")
    if len(words) == width:
        keys = cache.home(words[0])  # type: ignore[arg-type]  # the id
        yield Batch(keys, make(keys, epoch, topology.marked(words, width)), words, width)
        return
    start = 0
    for size in sizes:
        if start >= len(words):
            return
        columns = [words[at : start + size * width : width] for at in range(start, start + width)]
        start += size * width
        groups: dict[int, list[int]] = defaultdict(list)
        for place, shard in enumerate(topology.shards_of(columns[0])):  # type: ignore[arg-type]  # ids
            groups[shard].append(place)
        for shard, places in groups.items():
            if width == FRESH:
                # By due time: the server stores neighbours in a sorted set in a sixth less time. Not where the caller
                # gives ids: one may come twice.
                places.sort(key=columns[1].__getitem__)
            keys = cache.keys(shard)
            for part in _bounded(_rows(columns, places), width, most):
                yield Batch(keys, make(keys, epoch, topology.marked(part, width)), part, width)


def _rows(columns: list[list[Word]], places: list[int]) -> list[Word]:
    """The words at these places, one task after the other."""
    words: list[Any] = [None] * (len(places) * len(columns))
    for at, column in enumerate(columns):
        words[at :: len(columns)] = [column[place] for place in places]
    return words


def _bounded(group: list[Word], width: int, most: int) -> Iterator[list[Word]]:
    step = most * width
    for start in range(0, len(group), step):
        part = group[start : start + step]
        # Ids take at most 466 bytes each: only records can make a batch too large.
        if sum(map(len, part[2::width])) <= CALL_BYTES:  # type: ignore[arg-type]  # records are bytes
            yield part
        else:
            yield from _by_bytes(part, width)


def _by_bytes(part: list[Word], width: int) -> Iterator[list[Word]]:
    begin = size = 0
    for at in range(0, len(part), width):
        length = len(part[at + 2])  # type: ignore[arg-type]  # the record
        if size and size + length > CALL_BYTES:
            yield part[begin:at]
            begin, size = at, 0
        size += length
    yield part[begin:]


_OTHERS = [option.name for option in OPTIONS if option.name not in ("delay", "at", "topic", "window", "on_conflict")]

_is_plain: Callable[[list[Task], str, object], bool] = eval(
    "lambda tasks, topic, window: not [1 for task in tasks if task.topic != topic or task.window is not window "
    f"or task.on_conflict != 'keep' or {any_given(_OTHERS)}]"
)
"""True if all tasks have this topic and this window, and no options but a due time."""
