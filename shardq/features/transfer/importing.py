"""Carries out the lines of an export, and of files of tasks, a chunk at a time. Operations, for both drivers.

**Each line is carried out once, however often its chunk is sent.** An import has a nonce, and each task that it stores
leaves a mark of it in its shard: ``adopt`` does that, and ``push_unique`` for an id of the caller's own. While the mark
is there, the same task is known, whatever became of it since. A line without an id gets one that is made of the
number of the import and its own, so it is the same each time. So a chunk whose answer was lost, or that a killed
import had sent, is sent again as a whole.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec

from shardq.core.calls import by_id, resharding
from shardq.core.calls.request import Word
from shardq.core.calls.resharding import MOST_SEEN
from shardq.core.calls.transfer import id_in
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.lanes import beginning_of
from shardq.core.layout.topology import NO_SETTINGS, EngineSettings, Limit, TopicSettings, Topology
from shardq.core.model.checks import instant_ms
from shardq.core.model.ids import full_id, new_nonce, new_number, spell
from shardq.core.model.record import Codec
from shardq.core.model.task import Task
from shardq.core.operation import Operation, values
from shardq.core.producer import pushing
from shardq.core.producer.packing import Entries, Packer
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_edits import edit_topology, take_up_keys
from shardq.core.topology_recovery import call_shards
from shardq.core.topology_upkeep import check_writer
from shardq.errors import BadInput
from shardq.features.schedules import declaring, requests
from shardq.features.schedules.entry import Entry, decode_entry
from shardq.features.schedules.pushing_ahead import read as read_schedules
from shardq.features.schedules.requests import Change
from shardq.features.transfer.adopting import adopt
from shardq.features.transfer.lines import (
    UNREADABLE,
    AsItWas,
    EndLine,
    HeadLine,
    Line,
    ScheduleLine,
    SeenLine,
    TopicLine,
    ToPush,
    read,
    reason_of,
)

MEMORY_MS = 600_000
"""How long servers know what an import did that nobody goes on with: for its own resends."""

KEPT_MEMORY_MS = 86_400_000
"""The same of one that is gone on with from a file."""

CHUNK = 4000
"""Lines carried out at a time: over 16 shards some 250 in a call."""

CHUNK_BYTES = 8 << 20
"""Bytes of lines carried out at a time, at most."""

SHOWN = 20
"""Bad lines that are kept with what is wrong with them."""

Lines = Iterable[bytes | str]
AsyncLines = Iterable[bytes | str] | AsyncIterable[bytes | str]

GivenSettings = Callable[[Mapping[str, Mapping[str, Any]]], Mapping[str, Mapping[str, Any]]]
"""Checks settings of topics, in the words of ``configure``, and gives the fields of their ``TopicSettings``."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The result of ``engine.restore``, or how far it came. True if the lines were whole, and none was bad.

    >>> restored = other.restore(engine.export())
    >>> print(restored.restored, "tasks,", restored.kept, "were there already,", restored.bad, "bad lines")
    """

    restored: int = 0
    """Tasks that are as they were."""
    pushed: int = 0
    """Tasks of lines without a state, which were pushed."""
    replaced: int = 0
    """Those of them that took the place of another task, as their line says."""
    kept: int = 0
    """Tasks whose id was taken: what was there is as it was."""
    seen: int = 0
    """Tasks whose id has an open dedup window: they were pushed before, and are gone."""
    topics: int = 0
    """Topics that got settings. Those that had some keep them."""
    schedules: int = 0
    """Schedules that were not there."""
    windows: int = 0
    """Dedup windows."""
    bad: int = 0
    """Lines that could not be read, or were refused."""
    errors: tuple[tuple[int, str], ...] = ()
    """The first 20 of these: their numbers, and what is wrong."""
    notes: tuple[str, ...] = ()
    """What was left out, as sentences."""
    is_cut: bool = False
    """True if the lines begin as an export and do not end as one: some are missing."""

    def __bool__(self) -> bool:
        return not self.bad and not self.is_cut


class Run(msgspec.Struct, frozen=True):
    """What one import is known by, also when it is gone on with."""

    nonce: int
    number: int
    """From it on the ids of lines without one are counted."""
    memory_ms: int

    @classmethod
    def new(cls, *, memory_ms: int = MEMORY_MS) -> Run:
        return cls(new_nonce(), new_number(), memory_ms)

    @property
    def once(self) -> str:
        """The word by which ``adopt`` knows it."""
        return f"{self.nonce}-{self.memory_ms}"

    def nonce_of(self, line: int) -> int:
        """The nonce of the push of a line."""
        return (self.nonce + line * 2_654_435_761) & 0xFFFFFFFF

    def unique_of(self, line: int) -> str:
        """The id of a line that has none."""
        return spell(self.number + line)


class Item(msgspec.Struct, frozen=True, gc=False):
    """A line that can be carried out."""

    number: int
    line: Line
    entries: Entries | None = None
    """Of a task to push."""

    @property
    def id(self) -> str:
        """That of its task; empty for other lines."""
        if self.entries is not None:
            return self.entries.ids[0]
        return self.line.id if isinstance(self.line, AsItWas) else ""


class Said(msgspec.Struct, frozen=True, gc=False):
    """What became of a line."""

    number: int
    id: str
    answer: Any
    """The error, or pushed, replaced, restored, kept:STATE or seen."""


class Importer:
    """One import: reads lines, and carries out chunks of them."""

    def __init__(
        self,
        packer: Packer,
        *,
        max_payload: int,
        codec: Codec,
        given: GivenSettings,
        given_of_engine: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        defaults: Task | None = None,
        run: Run | None = None,
        dry_run: bool = False,
    ) -> None:
        self._packer = packer
        self._max_payload = max_payload
        self._codec = codec
        self._given = given
        self._given_of_engine = given_of_engine
        self._defaults = defaults or Task(None)
        self._dry_run = dry_run
        self.run: Run = run or Run.new()
        self.counts: Counter[str] = Counter()
        """Outcome → lines."""
        self.bad: int = 0
        self.errors: list[tuple[int, str]] = []
        self.notes: list[str] = []
        self.is_open: bool = False
        """True from the first line of an export to its last."""
        self.is_cut: bool = False
        self.tasks: int = 0
        """The tasks that were read since its first line."""
        self._may_restore = False

    @property
    def so_far(self) -> Restored:
        names = ("restored", "pushed", "replaced", "kept", "seen", "topics", "schedules", "windows")
        return Restored(
            **{name: self.counts[name] for name in names},
            bad=self.bad,
            errors=tuple(self.errors),
            notes=tuple(self.notes),
            is_cut=self.is_cut or self.is_open,
        )

    def read(self, number: int, text: bytes) -> Item | str:
        """Reads a line. Returns what is wrong with a bad one."""
        try:
            line = read(text.decode(), defaults=self._defaults, max_payload=self._max_payload, codec=self._codec)
            if isinstance(line, AsItWas):
                self.tasks += 1
                return Item(number, line)
            if isinstance(line, ToPush):
                return Item(number, line, self._packed(number, line.task))
            if isinstance(line, TopicLine):
                self._given({line.topic: _settings_of(line)})
            elif isinstance(line, HeadLine):
                self._given_of_engine(line.settings)
        except UNREADABLE as exc:
            return reason_of(exc)
        if isinstance(line, HeadLine):
            self.is_cut = self.is_cut or self.is_open
            self.is_open, self.tasks = True, 0
        elif isinstance(line, EndLine):
            self.is_cut = self.is_cut or (self.is_open and self.tasks < line.tasks)
            self.is_open = False
        return Item(number, line)

    def _packed(self, number: int, task: Task) -> Entries:
        entries = self._packer.one(task, nonce=self.run.nonce_of(number))
        if entries.fresh:
            made, due, record = entries.fresh
            id = full_id(beginning_of(str(made)), self.run.unique_of(number))
            entries.ids = [id]
            entries.fresh = [id, due, self._packer.rebound(record, str(made), id)]  # type: ignore[arg-type]  # bytes
        else:
            entries.unique[4] = f"{entries.unique[4]!s}-{self.run.memory_ms}"
        return entries

    def told_bad(self, number: int, reason: str) -> None:
        """Counts a bad line."""
        self.bad += 1
        if len(self.errors) < SHOWN:
            self.errors.append((number, reason))

    def send(
        self,
        cache: TopologyCache,
        items: Sequence[Item],
        *,
        again: bool = False,
        meanwhile: Callable[[], object] | None = None,
    ) -> Operation[list[Said]]:
        """Carries out the lines of a chunk. Returns what became of the tasks, in the order of the lines; of a task
        that is not stored the error. Nothing is counted: ``settled`` does. ``again``: an import that was killed may
        have sent them. ``meanwhile`` may be called while the servers work.
        """
        if self._dry_run:
            return (yield from self._look(cache, items))
        others = [item for item in items if type(item.line) not in (AsItWas, ToPush, EndLine)]
        if not self._may_restore and (others or any(type(item.line) is AsItWas for item in items)):
            yield from check_writer(cache)
            self._may_restore = True
        if others:
            yield from self._set(cache, others)
        said: list[Said] = []
        numbers: list[tuple[int, str]] = []
        words: list[list[Word]] = []
        for item in items:
            line = item.line
            if type(line) is AsItWas:
                numbers.append((item.number, "restored"))
                words.append(line.words)
            elif item.entries is not None and item.entries.fresh:
                id, due, record = item.entries.fresh
                numbers.append((item.number, "pushed"))
                words.append([id, due, record, "due", "", ""])
        answers = yield from adopt(cache, words, self.run.once, meanwhile)
        for (number, done), task, answer in zip(numbers, words, answers, strict=True):
            if answer == "known":
                answer = "adopted" if again else "kept"  # an export has a task twice that was moved meanwhile
            told = done if answer == "adopted" else answer
            self._packer.pushed += told == "pushed"
            said.append(Said(number, id_in(task), told))
        own = [item for item in items if item.entries is not None and item.entries.unique]
        if own:
            entries = Entries(
                ids=[item.entries.ids[0] for item in own if item.entries],
                unique=[word for item in own if item.entries for word in item.entries.unique],
            )
            results = pushing.PushResults(entries.ids)
            yield from pushing.complete(cache, self._packer, results, entries, in_doubt=True)
            said += [Said(item.number, id, told) for item, (id, told) in zip(own, results.each(), strict=True)]
        yield from self._remember(cache, [item.line for item in others if isinstance(item.line, SeenLine)])
        return sorted(said, key=attrgetter("number")) if own else said

    def settled(self, said: Sequence[Said]) -> list[Said]:
        """Counts what became of lines. Returns those that are not stored, with their errors."""
        failed: list[Said] = []
        for answer, count in Counter([each.answer for each in said]).items():
            if isinstance(answer, str):
                self.counts[answer.partition(":")[0]] += count
            else:
                failed += [each for each in said if each.answer is answer]
        return failed

    # ---- what is not a task

    def _set(self, cache: TopologyCache, items: Sequence[Item]) -> Operation[None]:
        settings: dict[str, TopicSettings] = {}
        of_engine: dict[str, Any] = {}
        for line in [item.line for item in items]:
            if isinstance(line, HeadLine):
                of_engine |= self._given_of_engine(line.settings)
            elif isinstance(line, TopicLine):
                if line.without_secrets is not None:
                    self.notes.append(
                        f"topic {line.topic!r}: its route to {line.without_secrets} was exported without its secrets, "
                        "and is left out"
                    )
                settings |= {
                    topic: TopicSettings(**fields)
                    for topic, fields in self._given({line.topic: _settings_of(line)}).items()
                }
        if any((each.limit or Limit()).per_key is not None for each in settings.values()):
            yield from take_up_keys(cache)
        if settings or of_engine:
            new: Mapping[str, TopicSettings] = {}

            def edit(topology: Topology) -> Topology:
                nonlocal new
                new = {topic: each for topic, each in settings.items() if topology.settings_of(topic) == NO_SETTINGS}
                new = {topic: each for topic, each in new.items() if each != NO_SETTINGS}
                return _with_usual_settings(topology, of_engine).with_topics(new)

            yield from edit_topology(cache, edit)
            self.counts["topics"] += len(new)
        for item in items:
            if isinstance(item.line, ScheduleLine):
                yield from self._restore_schedule(cache, item.number, item.line)

    def _restore_schedule(self, cache: TopologyCache, number: int, line: ScheduleLine) -> Operation[None]:
        entry = decode_entry(line.schedule, bytes(line.progress), bytes(line.declaration))
        if not isinstance(entry, Entry):
            self.told_bad(number, f"the schedule {line.schedule!r} can't be read: {entry.problem}")
            return
        if entry.declaration.key is not None:
            yield from take_up_keys(cache)
        found = (yield from read_schedules(cache, [line.schedule])).get(line.schedule)
        if found is None:
            change = Change(line.schedule, b"", entry.stored, bytes(line.declaration))
            call = requests.set_schedule(cache.control, cache.topology.stamp, [change], tell=True)
            self.counts["schedules"] += (yield call)[0]
        elif isinstance(found, Entry) and not found.is_listed:
            # the ids of one that was removed must not come again
            yield from declaring.declare(cache, line.schedule, entry.declaration)
            self.counts["schedules"] += 1

    def _remember(self, cache: TopologyCache, lines: Sequence[SeenLine]) -> Operation[None]:
        left = {line.seen: str(instant_ms(line.until, "until")) for line in lines}
        self.counts["windows"] += len(left)
        while left:
            since, by_shard = cache.topology.since, defaultdict[ShardKeys, list[str]](list)
            for id in left:
                by_shard[cache.home(id)].append(id)
            calls = {
                (keys, at): (
                    keys,
                    partial(resharding.remember, ends={id: left[id] for id in ids[at : at + MOST_SEEN]}, ahead_ms=0),
                )
                for keys, ids in by_shard.items()
                for at in range(0, len(ids), MOST_SEEN)
            }
            values((yield from call_shards(cache, calls)).items())
            if cache.topology.since == since:
                return

    # ---- a dry run

    def _look(self, cache: TopologyCache, items: Sequence[Item]) -> Operation[list[Said]]:
        """Tells what would become of the tasks: of those that are there, that they stay."""
        told: list[tuple[int, str, str]] = []
        for item in items:
            number, line, entries = item.number, item.line, item.entries
            self.counts["topics"] += isinstance(line, TopicLine)
            self.counts["schedules"] += isinstance(line, ScheduleLine)
            self.counts["windows"] += isinstance(line, SeenLine)
            if isinstance(line, AsItWas):
                told.append((number, line.id, "restored"))
            elif entries is not None:
                told.append((number, entries.ids[0], "pushed"))
        by_shard = defaultdict[ShardKeys, list[str]](list)
        for id in {id for _, id, _ in told}:
            for shard in cache.topology.homes(id):
                by_shard[cache.keys(shard)].append(id)
        calls = {
            (keys, at): (keys, partial(by_id.get_many, ids=ids[at : at + 100]))
            for keys, ids in by_shard.items()
            for at in range(0, len(ids), 100)
        }
        there: dict[str, str] = {}
        for (keys, at), found in values((yield from call_shards(cache, calls)).items()).items():
            for id, task in zip(by_shard[keys][at : at + 100], found, strict=False):
                if isinstance(task, by_id.Found):
                    there[id] = f"kept:{task.state}"
        said: list[Said] = []
        for number, id, done in told:
            said.append(Said(number, id, there.get(id, done)))
            there.setdefault(id, "kept")
        return said


class LineChunk:
    """Lines as they come, until they are enough to be carried out together. ``lines``: where they come from; without,
    they are given to ``take``.
    """

    def __init__(self, importer: Importer, lines: Iterable[bytes | str] = ()) -> None:
        self._importer = importer
        self._lines = iter(lines)
        self._error: Exception | None = None
        self._items: list[Item] = []
        self._bytes = 0
        self._is_full = False
        self.number: int = 0
        """Of the last line; blank lines count."""

    def take(self, text: bytes | str) -> bool:
        """Takes the next line. Returns True when the chunk is full."""
        if not isinstance(text, bytes | str):
            raise BadInput(f"a line can't be {type(text).__name__}; give bytes, or a str")
        self.number += 1
        data = text.encode() if isinstance(text, str) else text
        if data.strip():
            item = self._importer.read(self.number, data)
            if isinstance(item, str):
                self._importer.told_bad(self.number, item)
            else:
                self._items.append(item)
                self._bytes += len(data)
        self._is_full = len(self._items) >= CHUNK or self._bytes >= CHUNK_BYTES
        return self._is_full

    def fill(self) -> None:
        """Takes lines until the chunk is full. An error of theirs is raised by ``taken``."""
        try:
            while not self._is_full and (line := next(self._lines, None)) is not None:
                self.take(line)
        except Exception as exc:  # noqa: BLE001  the iterator of a caller may raise anything
            self._error = exc

    def taken(self) -> list[Item]:
        """The lines, which the chunk has no more; none at the end."""
        self.fill()
        if self._error is not None:
            raise self._error
        items, self._items, self._bytes, self._is_full = self._items, [], 0, False
        return items


def _settings_of(line: TopicLine) -> dict[str, Any]:
    """The settings in the words of ``configure``."""
    settings = dict(line.settings)
    if isinstance(until := settings.get("pause"), str):
        settings["pause"] = dt.datetime.fromisoformat(until)
    return settings


def _with_usual_settings(topology: Topology, given: Mapping[str, Any]) -> Topology:
    """The topology with those of the settings of an engine that have their usual values there."""
    usual = EngineSettings()
    stored = topology.settings
    changes = {
        name: given[name]
        for name in EngineSettings.__struct_fields__
        if name in given and getattr(stored, name) == getattr(usual, name)
    }
    return msgspec.structs.replace(topology, settings=msgspec.structs.replace(stored, **changes))
