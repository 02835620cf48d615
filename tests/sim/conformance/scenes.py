"""Rare situations, each as a few steps that lead into one: single calls, drawn one by one, hardly ever meet it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardq.core.layout.keys import ShardKeys
from shardq.core.model.ids import full_id
from shardq.core.scripts import script
from tests.sim.conformance.steps import Step
from tests.sim.model.server import Word, coded

MANY = 1100
"""More than one call takes at once."""

LARGE = 400_000
"""Three of such a size are more than an answer has."""

LAST = 2**64 - 1
"""The last number of a stream's ids."""


@dataclass(frozen=True)
class Scene:
    draw: random.Random
    keys: ShardKeys
    schedules: str
    """The key of schedules."""
    epoch: str
    now_us: int
    topic: str

    @property
    def _now_ms(self) -> int:
        return self.now_us // 1000

    @property
    def _id(self) -> str:
        return full_id(self.topic, "a")

    def _called(self, name: str, words: Sequence[Word], topics: Sequence[str] = ()) -> Step:
        names = script(name, keyed=True).named(self.keys)
        keys = [key for each in names for key in ([each] if isinstance(each, str) else map(each, topics))]
        return _step(name, keys, [self.epoch, self.now_us, *words])

    def _ready(self, ghosts: Word, *entries: str) -> list[Step]:
        """A task is ready, with that number of ghosts and these entries in its list."""
        keys, id = self.keys, self._id
        return [
            *(_plain("HSET", keys.task, id, b"\x10hi"), _plain("RPUSH", keys.ready(self.topic), *entries)),
            *(_plain("ZREM", each, id) for each in (keys.due, keys.leased, keys.dead)),
            _plain("HSET", keys.ghost, id, ghosts),
        ]

    def _rescheduled(self) -> Step:
        return self._called("reschedule", [self.keys.bell, self._id, -50, "", "0"])

    def _replaced(self) -> Step:
        return self._called("push_unique", [self.keys.bell, "0", "0", self._id, 0, b"\x10new", "replace", 0])

    def _claimed(self) -> Step:
        words: list[Word] = [self.keys.bell, 1, 5000, "p1:9", self.keys.wake(""), "", self.topic, 9, "", ""]
        return self._called("claim", words, [self.topic])

    def _forwarded(self, side: str, to: str) -> Step:
        step = self._called("forward", [self.keys.bell, 5, side, ""], [self.topic])
        return replace(step, keys=(*step.keys[:-6], to.encode(), *step.keys[-6:]))

    def _leased(self, id: str, entry: str, score: int) -> list[Step]:
        return [
            _plain("HSET", self.keys.task, id, b"\x10hi"),
            _plain("ZREM", self.keys.due, id),
            _plain("ZADD", self.keys.leased, score, id),
            _plain("HSET", self.keys.lease, id, entry),
        ]

    def drawn(self) -> list[Step]:
        """The steps of one of them. Those that leave much behind, which makes all later steps slow, are seldom."""
        usual = [
            self.looked_at_often, self.many_windows, self.of_no_topic, self.died_for_nothing, self.window_of_its_own,
            self.ghosts_of_no_number, self.given_back, self.half_a_schedule, self.queued, self.refused_halfway,
            self.full_stream, self.nothing_pushed,
        ]  # fmt: skip
        large = [self.crowd_with_a_tag, self.crowd_of_a_topic, self.large_records, self.large_schedules]
        return self.draw.choice(large if self.draw.random() < 0.08 else usual)()

    def looked_at_often(self) -> list[Step]:
        """A ready list has as many marks as are kept, and gets one more."""
        keys, topic = self.keys, self.topic
        marks = " ".join(f"{at}:{self._now_ms - 9000 + at * at}" for at in range(11, 19))
        return [
            _plain("DEL", keys.ready(topic)),
            _plain("RPUSH", keys.ready(topic), *["b"] * 35),
            _plain("HSET", keys.topics, topic, 40),
            _plain("HSET", keys.looks, topic, marks),
            self._called("peek", [0, topic], [topic]),
        ]

    def many_windows(self) -> list[Step]:
        """More dedup windows have ended than one dispatch removes."""
        windows = [word for number in range(600) for word in (self._now_ms - 9000 + number, f"w{number}")]
        return [_plain("ZADD", self.keys.seen, *windows), self._dispatch(), self._dispatch()]

    def _dispatch(self) -> Step:
        return self._called("dispatch", [500, 25, self.keys.wake(""), "", "", self.topic], [self.topic])

    def of_no_topic(self) -> list[Step]:
        """The lease of an id that no push has stored runs out."""
        return [*self._leased("ünï/x", "0:0:25:p1:1", self._now_ms - 60_000), self._dispatch()]

    def died_for_nothing(self) -> list[Step]:
        """A dead task without a reason moves."""
        keys, id = self.keys, self._id
        return [
            *(_plain("HSET", keys.task, id, b"\x10hi"), _plain("ZADD", keys.dead, self._now_ms, id)),
            *(_plain("ZREM", keys.due, id), _plain("HDEL", keys.why, id)),
            self._called("take", ["n1", 1 - keys.shard, id]),
        ]

    def window_of_its_own(self) -> list[Step]:
        """A push is sent again when its task is done, and its window is open."""
        keys, id = self.keys, self._id
        task: list[Word] = [id, 0, b"\x18\x00\x04\x81\xa1n\x07hi", self.draw.choice(("keep", "replace")), 5000]
        pushed = [self._called("push_unique", [keys.bell, resent, "0", *task]) for resent in ("0", "1")]
        gone = [
            *(_plain("HDEL", keys.task, id), _plain("ZREM", keys.due, id), _plain("ZREM", keys.leased, id)),
            *(_plain("ZREM", keys.dead, id), _plain("HDEL", keys.moved, id), _plain("ZREM", keys.seen, id)),
        ]
        return [*gone, pushed[0], *gone[:2], pushed[1]]

    def ghosts_of_no_number(self) -> list[Step]:
        """Another program has written the number of an id's ghosts, and the id's task is replaced, or due again."""
        return [*self._ready("x", self._id), self._rescheduled() if self.draw.random() < 0.5 else self._replaced()]

    def queued(self) -> list[Step]:
        """Ghosts in front of a list: purged, or claimed."""
        keys, id, topic = self.keys, self._id, self.topic
        steps = [
            _plain("DEL", keys.ready(topic)),
            _plain("RPUSH", keys.ready(topic), id, id, id),
            _plain("HSET", keys.task, id, b"\x10hi"),
            _plain("HSET", keys.ghost, id, self.draw.choice((1, 2, "x"))),
        ]
        if self.draw.random() < 0.5:
            return [*steps, self._called("purge", [keys.bell, topic, "topic", "0", "0", 1000], [topic])]
        return [*steps, self._claimed()]

    def refused_halfway(self) -> list[Step]:
        """A server refuses a write about a task that is ready, behind a ghost: what was written is taken back."""
        keys, id, topic = self.keys, self._id, self.topic
        side, theirs, push = self.draw.choice((("right", "ready/theirs", "RPUSH"), ("stream", "out", "XADD")))
        step, *denied = self.draw.choice(
            (
                (self._forwarded(side, f"{keys.prefix}{theirs}"), push),
                (self._claimed(), "ZADD", "HSET"),
                (self._rescheduled(), "HSET"),
                (self._replaced(), "HSET"),
            )
        )
        return [
            _plain("DEL", keys.ready(topic)),
            *self._ready(1, id, id),
            replace(step, denied=self.draw.choice(denied)),
        ]

    def full_stream(self) -> list[Step]:
        """A stream takes one of two tasks: then its ids are used up. The one is taken back."""
        keys, topic, stream = self.keys, self.topic, f"{self.keys.prefix}out"
        ids = [self._id, full_id(topic, "b")]
        return [
            *(_plain("DEL", key) for key in (stream, keys.ready(topic))),
            _plain("XADD", stream, f"{LAST}-{LAST - 1}", "id", self._id),
            *(_plain("HSET", keys.task, id, b"\x10hi") for id in ids),
            _plain("HDEL", keys.ghost, *ids),
            _plain("RPUSH", keys.ready(topic), *ids),
            self._forwarded("stream", stream),
        ]

    def nothing_pushed(self) -> list[Step]:
        return [self._called("push", [self.keys.bell, 0])]

    def given_back(self) -> list[Step]:
        """Several tasks of a claim are given back, the one that is due first in front."""
        later, keys = self._now_ms + 30_000, self.keys
        backs: list[Word] = [
            word for id, delay in (("c", 50), ("d", 5000)) for word in ("back", id, "p1:9", delay, "", 25)
        ]
        return [
            *self._leased("c", "0:0:25:p1:9", later),
            *self._leased("d", "0:0:25:p1:9", later),
            self._called("settle", [keys.bell, 0, 0, *backs]),
        ]

    def half_a_schedule(self) -> list[Step]:
        """Of a schedule one of the two parts is missing."""
        schedules, parts = self.schedules, ["hourly", "hourly/declared"]
        self.draw.shuffle(parts)
        return [
            _plain("HSET", schedules, parts[0], "{}"),
            _plain("HDEL", schedules, parts[1]),
            _step("schedules", [schedules], [self.now_us, "hourly", "nightly"]),
        ]

    def crowd_with_a_tag(self) -> list[Step]:
        """More tasks with a tag than one command removes."""
        fields = [word for number in range(MANY) for word in (f"t{number}", b"\x18\x00\x08\x81\xa1t\x91\xa3red")]
        return [_plain("HSET", self.keys.task, *fields), self._called("cancel_tag", [self.keys.bell, "0", "red", 1000])]

    def crowd_of_a_topic(self) -> list[Step]:
        """A page of a purge has more tasks than are removed at once. The answer tells how many they were."""
        keys, topic = self.keys, self.topic
        tasks = [word for number in range(MANY) for word in (self._now_ms, full_id(topic, f"t{number}"))]
        return [
            _plain("ZADD", self.draw.choice((keys.due, keys.dead)), *tasks),
            self._called("purge", [keys.bell, topic, "topic", "0", "0", 1000], [topic]),
        ]

    def large_records(self) -> list[Step]:
        """More bytes than one answer has."""
        ids, record = ["a", "b", "c", "d"], b"\x10" + b"l" * LARGE
        return [
            _plain("HSET", self.keys.task, *(word for id in ids for word in (id, record))),
            self._called("get", ids),
            _plain("HDEL", self.keys.task, *ids),
        ]

    def large_schedules(self) -> list[Step]:
        return [
            _plain("HSET", self.schedules, "nightly", b"l" * 3 * LARGE, "nightly/declared", "{}"),
            _step("schedules", [self.schedules], [self.now_us, "nightly", "hourly"]),
            _plain("HDEL", self.schedules, "nightly", "nightly/declared"),
        ]


def _step(name: str, keys: Sequence[str], words: Sequence[Word]) -> Step:
    return Step(name, tuple(key.encode() for key in keys), tuple(map(coded, words)))


def _plain(*words: Word) -> Step:
    """A plain command."""
    return Step("", (), tuple(map(coded, words)))
