"""peek and plain reads: counts of a shard, for ``stats()`` and ``health()``; places of ids and records, and restore,
for ``shardq doctor``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from shardq.core.calls.request import NOW, Call, Command, Epoch, body
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.words import id_of, number_of, text_of
from shardq.core.model.attempts import parted
from shardq.core.model.ids import topic_of


@dataclass(frozen=True, slots=True)
class ShardCounts:
    """One shard at one instant."""

    now_us: int
    scheduled: int
    leased: int
    dead: int
    head_ms: int | None  # due time of the first scheduled task
    late_ms: int | None  # lateness of the task dispatched last
    reaped: int
    buried: int
    forwarded: int
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


Drawn = Literal["scheduled", "leased", "dead"]
"""A state of which ids are drawn to tell their topics: its set is too large to be gone through."""

DRAWN: tuple[Drawn, ...] = get_args(Drawn)

Peek = Call[ShardCounts]


def peek(keys: ShardKeys, epoch: Epoch, topics: Sequence[str], *, draw: int = 0) -> Call[ShardCounts]:
    """Counts the tasks of a shard. ``draw``: how many ids to draw from each state, at most."""

    def decode(answer: list[Any]) -> ShardCounts:
        now, scheduled, leased, dead, head, meta, counts, lengths, waited, drawn, died, deaths = body(answer)
        late, reaped, buried, forwarded = map(number_of, meta)
        *drawn_of_states, drawn_retrying, entries = drawn
        died_lately, trimmed, trimmed_ms = deaths
        return ShardCounts(
            now_us=int(now),
            scheduled=scheduled,
            leased=leased,
            dead=dead,
            head_ms=number_of(head) if head else None,
            late_ms=late if meta[0] is not None else None,
            reaped=reaped,
            buried=buried,
            forwarded=forwarded,
            dispatched=_by_topic(counts),
            ready=dict(zip(topics, lengths, strict=True)),
            waited_ms={topic: ms for topic, ms in zip(topics, waited, strict=True) if ms >= 0},
            died=_by_topic(died),
            died_lately=died_lately,
            trimmed=number_of(trimmed),
            trimmed_ms=number_of(trimmed_ms) if trimmed_ms else None,
            drawn={state: _by_topic(flat) for state, flat in zip(DRAWN, drawn_of_states, strict=True)},
            retrying=_by_topic(drawn_retrying),
            entries=entries,
        )

    return Call.of("peek", keys, [epoch, NOW, draw, *topics], decode, topics=topics)


def dispatched(keys: ShardKeys) -> Command[Mapping[str, int]]:
    """Topic → tasks dispatched since the shard was opened."""

    def decode(answer: Any) -> Mapping[str, int]:
        flat = [word for pair in answer.items() for word in pair] if isinstance(answer, dict) else answer
        return _by_topic(flat)

    return Command(keys.slot, ("HGETALL", keys.topics), decode)


def scheduled(keys: ShardKeys) -> Command[int]:
    return Command(keys.slot, ("ZCARD", keys.due), int)


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


def ghosts_of(keys: ShardKeys, topics: Sequence[str]) -> Command[list[int]]:
    """Counts the ghosts in the ready list of each topic."""
    return Command(
        keys.slot,
        ("HMGET", keys.meta, *(f"ghosts/{topic}" for topic in topics)),
        lambda counts: [max(0, number_of(count)) for count in counts],
    )


def died(keys: ShardKeys, topics: Sequence[str]) -> Command[int]:
    """The tasks of these topics that died since the shard came into use."""
    return Command(
        keys.slot,
        ("HMGET", keys.meta, *(f"died/{topic}" for topic in topics)),
        lambda counts: sum(map(number_of, counts)),
    )


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


def has_records(keys: ShardKeys, ids: Sequence[str]) -> list[Command[bool]]:
    return [Command(keys.slot, ("HSTRLEN", keys.task, id), bool) for id in ids]


def are_members(keys: ShardKeys, key: str, ids: Sequence[str]) -> Command[list[bool]]:
    """Tells for each id if it is in this sorted set of the shard."""
    return Command(keys.slot, ("ZMSCORE", key, *ids), lambda scores: [score is not None for score in scores])


def entries(keys: ShardKeys, topic: str, id: str) -> Command[int]:
    """The entries of an id in its ready list; those of ghosts count."""
    return Command(keys.slot, ("LPOS", keys.ready(topic), id, "COUNT", 0), len)


def ghosts(keys: ShardKeys, ids: Sequence[str]) -> Command[list[int]]:
    """Counts the ghosts of each id."""
    return Command(keys.slot, ("HMGET", keys.ghost, *ids), lambda counts: list(map(number_of, counts)))


def restore(keys: ShardKeys, epoch: Epoch, id: str) -> Call[bool]:
    """Schedules an id for now that has a record and no place. True if it had none."""
    return Call.of(
        "restore", keys, [epoch, NOW, keys.bell, id], lambda answer: body(answer)[0] == 1, topics=(topic_of(id),)
    )


def _texts(ids: list[Any]) -> list[str]:
    return list(map(id_of, ids))
