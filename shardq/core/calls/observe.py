"""peek, total and plain reads: counts of a shard, for ``stats()``, ``health()`` and the history; retire; places of ids
and records, and restore, for ``shardq doctor``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from shardq.core.calls.request import NOW, Call, Command, Epoch, Word, body, by_name
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.words import id_of, number_of, text_of
from shardq.core.model.attempts import parted
from shardq.core.model.ids import topic_of


@dataclass(frozen=True, slots=True)
class ShardCounts:
    """One shard at one instant."""

    now_us: int
    scheduled: int
    held: int
    leased: int
    dead: int
    head_ms: int | None  # due time of the first scheduled task
    late_ms: int | None  # lateness of the task dispatched last
    reaped: int
    buried: int
    forwarded: int
    dispatched_retired: int  # tasks dispatched of topics that are not listed any more
    died_retired: int  # tasks that died of these
    dispatched: Mapping[str, int]  # topic → tasks dispatched since the shard was opened
    ready: Mapping[str, int]  # topic → its ready tasks, for the topics asked for
    waited_ms: Mapping[str, int]
    """Topic → how long the head of its ready list has been seen there, by this or an earlier look; only
    topics that have a ready task.
    """
    died: Mapping[str, int]  # topic → tasks that died since the shard came into use, for the topics of which any did
    died_lately: int  # the dead tasks that died in the last ten minutes
    trimmed: int  # dead tasks that were removed because they were too old or too many
    trimmed_ms: int | None  # when one was last removed because there were too many
    drawn: Mapping[Drawn, Mapping[str, int]]
    """State → topic → how many of the ids drawn from this state, if any were to be drawn."""
    retrying: Mapping[str, int]
    """The same for the tasks with a lease entry: topic → those that wait for another attempt; all others together have
    the name of no topic, a line feed.
    """
    entries: int  # the tasks with a lease entry: they are held, or were; 0 if all of them are held

    @property
    def head_age(self) -> float | None:
        """Seconds since the first scheduled task was due."""
        return None if self.head_ms is None else self.now_us / 1e6 - self.head_ms / 1e3


Drawn = Literal["scheduled", "held", "leased", "dead"]
"""A state of which ids are drawn to tell their topics: its set is too large to be gone through."""

DRAWN: tuple[Drawn, ...] = get_args(Drawn)

Peek = Call[ShardCounts]


def peek(keys: ShardKeys, epoch: Epoch, topics: Sequence[str], *, draw: int = 0) -> Call[ShardCounts]:
    """Counts the tasks of a shard. ``draw``: how many ids to draw from each state, at most."""

    def decode(answer: list[Any]) -> ShardCounts:
        told = by_name(answer)
        counts = ("reaped", "buried", "forwarded", "dispatched_retired", "died_retired", "trimmed")
        return ShardCounts(
            now_us=int(told["now_us"]),
            **{name: told[name] for name in ("scheduled", "held", "leased", "dead", "died_lately", "entries")},
            **{name: number_of(told[name]) for name in counts},
            head_ms=number_of(told["head"]) if told["head"] else None,
            late_ms=None if told["late"] is None else number_of(told["late"]),
            dispatched=_by_topic(told["dispatched"]),
            ready=dict(zip(topics, told["lengths"], strict=True)),
            waited_ms={topic: ms for topic, ms in zip(topics, told["waited"], strict=True) if ms >= 0},
            died=_by_topic(told["died"]),
            trimmed_ms=number_of(told["trimmed_ms"]) if told["trimmed_ms"] else None,
            drawn={state: _by_topic(told[f"drawn_{state}"]) for state in DRAWN},
            retrying=_by_topic(told["drawn_retrying"]),
        )

    return Call.of("peek", keys, [epoch, NOW, draw, *topics], decode, topics=topics)


@dataclass(frozen=True, slots=True)
class Total:
    """The sums of some topics of a shard, and counts of the whole shard."""

    cursor: int  # where to go on; 0 at the end
    looked_at: int  # topics
    topics: int  # of the shard
    dispatched: int
    died: int
    scheduled: int
    held: int
    ready: int


def total(keys: ShardKeys, epoch: Epoch, cursor: int, *, count: int) -> Call[Total]:
    """Adds up a page of topics; the first page, of cursor 0, also has what was counted of retired ones."""
    return Call.of("total", keys, [epoch, NOW, cursor, count], _total)


def _total(answer: list[Any]) -> Total:
    return Total(**{name: int(value) for name, value in by_name(answer).items()})


def topics(keys: ShardKeys, cursor: int, count: int) -> Command[tuple[int, list[str]]]:
    """The next cursor, 0 at the end, and some of the topics of a shard."""
    words: list[Word] = ["HSCAN", keys.topics, cursor, "COUNT", count]
    return Command(keys.slot, words, lambda answer: (int(answer[0]), list(map(text_of, answer[1][::2]))))


def retire(keys: ShardKeys, epoch: Epoch, topics: Sequence[str], *, idle_ms: int, have_none: bool) -> Call[set[str]]:
    """Returns those of some topics that were idle for so long. ``have_none``: since they were returned, a look at every
    record of the shard has met no task of them; those that are still idle are retired.
    """
    words: list[Word] = [epoch, NOW, idle_ms, 1 if have_none else 0, keys.wake(""), *topics]
    return Call.of("retire", keys, words, lambda answer: set(map(text_of, body(answer))), topics=topics)


def mark_used(keys: ShardKeys, topics: Sequence[str]) -> Command[int]:
    """Notes that topics are in use: for as long as ``idle_ms`` they are not idle."""
    return Command(keys.slot, ("HDEL", keys.meta, *(f"idle/{topic}" for topic in topics)), int)


def dispatched(keys: ShardKeys) -> Command[Mapping[str, int]]:
    """Topic → tasks dispatched since the shard was opened."""

    def decode(answer: Any) -> Mapping[str, int]:
        flat = [word for pair in answer.items() for word in pair] if isinstance(answer, dict) else answer
        return _by_topic(flat)

    return Command(keys.slot, ("HGETALL", keys.topics), decode)


def ready(keys: ShardKeys, topic: str) -> Command[int]:
    """The length of a ready list, ghosts included."""
    return Command(keys.slot, ("LLEN", keys.ready(topic)), int)


def head(keys: ShardKeys, topic: str) -> Command[str]:
    """The first entry of a ready list, perhaps a ghost; empty where there is none."""
    return Command(keys.slot, ("LRANGE", keys.ready(topic), 0, 0), lambda ids: "".join(map(id_of, ids)))


def waiting(keys: ShardKeys, topic: str, count: int) -> Command[list[str]]:
    """The processes that wait for a list, up to so many: those that are drawn next, first."""
    words = ("ZRANGEBYSCORE", keys.waiting(topic), "-inf", "+inf", "LIMIT", 0, count)
    return Command(keys.slot, words, lambda names: list(map(text_of, names)))


def listening(keys: ShardKeys, processes: Sequence[str]) -> Command[list[str]]:
    """Returns the processes that would hear a wake-up from the shard."""

    def decode(answer: list[Any]) -> list[str]:
        return [process for process, count in zip(processes, answer[1::2], strict=True) if count]

    return Command(keys.slot, ("PUBSUB", "SHARDNUMSUB", *map(keys.wake, processes)), decode)


def newest_dead(keys: ShardKeys, count: int) -> Command[list[str]]:
    """The ids of the last tasks that died."""
    return Command(keys.slot, ("ZRANGE", keys.dead, 0, count - 1, "REV"), _texts)


def reasons_of(keys: ShardKeys, ids: Sequence[str]) -> Command[list[str]]:
    """The reasons of dead tasks; empty for one without."""
    return Command(
        keys.slot,
        ("HMGET", keys.why, *ids),
        lambda reasons: [parted((reason or b"").decode(errors="replace"))[0] for reason in reasons],
    )


def _by_topic(flat: list[Any]) -> dict[str, int]:
    fields = iter(flat)
    return {text_of(topic): number_of(count) for topic, count in zip(fields, fields, strict=True)}


def publishes(keys: ShardKeys) -> Command[None]:
    """Raises when the master of a shard lets us publish nothing. It wakes none: no process has the empty name."""
    return Command(keys.slot, ("SPUBLISH", keys.wake(""), ""), lambda _: None)


def some_records(keys: ShardKeys, count: int) -> Command[list[str]]:
    """Ids that have a record, drawn at random; all of them if they are no more than ``count``."""
    return Command(keys.slot, ("HRANDFIELD", keys.task, count), _texts)


def some_members(keys: ShardKeys, key: str, count: int) -> Command[list[str]]:
    """Ids of a sorted set of the shard, likewise."""
    return Command(keys.slot, ("ZRANDMEMBER", key, count), _texts)


def ready_ids(keys: ShardKeys, topic: str, start: int, count: int) -> Command[list[str]]:
    """A page of a ready list; entries of ghosts are among them."""
    return Command(keys.slot, ("LRANGE", keys.ready(topic), start, start + count - 1), _texts)


def ghosts(keys: ShardKeys, ids: Sequence[str]) -> Command[list[int]]:
    """Counts the ghosts of each id."""
    return Command(keys.slot, ("HMGET", keys.ghost, *ids), lambda counts: list(map(number_of, counts)))


Fault = Literal["lost", "empty", "unlaned"]
"""The reason why a task is never given: it is in no list or set, it has no record, or its key does not know it."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The faults among some ids, by id, and how many of the ids were looked at: the first ones."""

    looked_at: int
    faults: Mapping[str, Fault]


def check(keys: ShardKeys, epoch: Epoch, ids: Sequence[str]) -> Call[Checked]:
    """Looks at the records and places of ids of one topic, at most ``MOST_CHECKED``."""

    def decode(answer: list[Any]) -> Checked:
        looked_at, flat = body(answer)
        words = iter(flat)
        faults = {id_of(id): cast(Fault, text_of(fault)) for id, fault in zip(words, words, strict=True)}
        return Checked(int(looked_at), faults)

    return Call.of("check", keys, [epoch, NOW, *ids], decode, topics=(topic_of(ids[0]),))


MOST_CHECKED = 500


def restore(keys: ShardKeys, epoch: Epoch, id: str, *, moves: bool = False) -> Call[bool]:
    """Schedules an id for now that is lost, and has its key know one that is unlaned. True if it was either. ``moves``:
    its key has another shard by an earlier number.
    """
    words: list[Word] = [epoch, NOW, keys.bell, id, 1 if moves else 0]
    return Call.of("restore", keys, words, lambda answer: body(answer)[0] == 1, topics=(topic_of(id),))


def _texts(ids: list[Any]) -> list[str]:
    return list(map(id_of, ids))
