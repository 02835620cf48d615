"""Draws calls of every script, so that they meet: few ids, topics, processes and tokens, on a state that they change.

Most calls fit the state, as it is read first; some have a word that no caller sends, a lost key, a key of another type
or a server that refuses. Everything comes from one generator of random numbers, so a seed gives the same calls again.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import msgspec

from shardq.core.layout.keys import ControlKeys, ShardKeys, control_keys, shard_keys
from shardq.core.layout.topology import Stamp
from shardq.core.scripts import script
from tests.lua.contract import NAMES
from tests.sim.conformance.scenes import Scene
from tests.sim.conformance.steps import Step, note_scripts
from tests.sim.model.keyspace import Keyspace
from tests.sim.model.server import coded
from tests.sim.model.values import Hash, SortedSet, Text

note_scripts(NAMES)

NAME = "x"
SHARDS = [shard_keys(NAME, number, keyed=True) for number in range(2)]
CONTROL = control_keys(NAME)
TOPICS = ["", "mail", "sms"]

FIELDS = ["wake_at", "clock", "ahead", "epoch", "died/mail", "ghosts/mail", "idle/mail", "dispatched", "reaped"]
PROCESSES = ["p1", "p2", "p3", "worker-0123456789ab"]
TAGS = ["red", "blue"]
SCHEDULES = ["nightly", "hourly"]
_IDS = ["a", "b", "c", "d", "mail/a", "mail/b", "mail/c", "sms/a", "sms/b", "/k/a", "mail/k/a", "mail/k/b", "mail/l/a"]
_LANES = ["/k/", "mail/k/", "mail/l/", "sms/k/"]
_ODD_IDS = ["", "/", "mail/", "ünï/x", "a|b", "x" * 80, "a\n7"]
# none is large: a script goes on for as many steps as it is told
_ODD_WORDS = [
    b"",
    b"x",
    b"-1",
    b"0",
    b"1.5",
    b"7",
    b" 1",
    b"1e2",
    b"nan",
    b"\xff\x00",
]

HEARD = [
    *(channel for keys in SHARDS for channel in (keys.bell, keys.wake("p1"), keys.wake("p2"))),
    *(CONTROL.news, CONTROL.wake("p1"), CONTROL.wake("p2")),
]
"""The channels with a subscriber; the other processes are gone."""

Built = tuple[Sequence[str], Sequence[object]]


class Sampler:
    """``space``: the state that the next call meets. ``server_clock``: calls also let the server tell the time."""

    def __init__(self, draw: random.Random, space: Keyspace, start_ms: int, *, server_clock: bool = False) -> None:
        self._draw = draw
        self._space = space
        self._now_us = start_ms * 1000
        self._server_clock = server_clock
        self._tokens = 0
        self._many = draw.random() < 0.05
        self._heavy = not self._many and draw.random() < 0.03
        # a run has some scripts more than others, so that they follow each other
        self._weights = [_WEIGHTS.get(name, 1.0) * draw.choice((0.3, 1, 1, 3)) for name in NAMES]
        self.keys = SHARDS[0]

    def opening(self) -> list[Step]:
        """The first steps of a run."""
        shards = SHARDS if self._chance(0.95) else SHARDS[1:]
        words = ["3:v:e", '{"shards":2}', "1", 1, "2", 0, "first", "", ""]
        steps = [_step("open", self._named("open", keys), words) for keys in shards]
        return [
            *steps,
            _step("declare", self._named("declare", CONTROL), [0, CONTROL.news, 1, 4, "epoch", "3:v:e", "shards", 2]),
        ]

    def steps(self) -> Iterator[Step]:
        while True:
            if self._chance(0.015):
                yield from self._scene()
            else:
                yield self._next()

    def _scene(self) -> list[Step]:
        self._advance()
        keys = self.keys = SHARDS[0] if self._chance(0.8) else SHARDS[1]
        scene = Scene(
            self._draw, keys, CONTROL.schedules, self._epoch(keys.meta), self._now_us, self._draw.choice(TOPICS)
        )
        return scene.drawn()

    def _next(self) -> Step:
        self._advance()
        self.keys = SHARDS[0] if self._chance(0.8) else SHARDS[1]
        if self._chance(0.06):
            return self._planted()
        (name,) = self._draw.choices(NAMES, self._weights)
        build: Callable[[], Built] = getattr(self, f"_{name}")
        step = _step(name, *build())
        if self._chance(0.04):
            bent = replace(step, words=self._bent(step.words))
            # the server's own clock is asked in runs of their own
            step = step if bent.on_server_clock or _draws_some(bent) else bent
        fault = self._draw.random()
        if fault < 0.03:
            return replace(step, full=True)
        if fault < 0.04:
            return replace(step, read_only=True)
        if fault < 0.06:
            return replace(step, denied=self._draw.choice(_commands(name)))
        return step

    # ---- what words are made of

    def _chance(self, share: float) -> bool:
        return self._draw.random() < share

    def _advance(self) -> None:
        kind = self._draw.random()
        if kind < 0.5:
            self._now_us += self._draw.randrange(3000)
        elif kind < 0.9:
            self._now_us += self._draw.randrange(2_000_000)
        elif kind < 0.97:
            self._now_us += self._draw.randrange(100_000_000)
        elif not self._server_clock:
            self._now_us -= self._draw.randrange(5_000_000)

    def _now(self) -> str:
        return "" if self._server_clock and self._chance(0.7) else f"{self._now_us}"

    def _guarded(self) -> list[object]:
        """The first two words of most scripts."""
        return [self._epoch(self.keys.meta) if self._chance(0.95) else self._other_epoch(self.keys.meta), self._now()]

    def _epoch(self, key: str) -> str:
        stamp = Stamp.of(self._hash(key).get(b"epoch"))
        return stamp if stamp.epoch else "3:v:e"

    def _other_epoch(self, key: str) -> str:
        """One that is near: of the same engine or not, another change or the same."""
        stamp = Stamp.of(self._epoch(key))
        epoch = max(0, stamp.epoch + self._draw.choice((-1, 0, 1)))
        engine = self._draw.choice((stamp.engine, stamp.engine, "a", "b"))
        return f"{epoch}:{self._draw.choice('vw')}:{engine}"

    def _hash(self, key: str) -> dict[bytes, bytes]:
        value = self._space.keys.get(key.encode())
        return value if isinstance(value, Hash) else {}

    def _sorted(self, key: str) -> dict[bytes, float]:
        value = self._space.keys.get(key.encode())
        return value.scores if isinstance(value, SortedSet) else {}

    def _id(self) -> str:
        if self._many:
            return f"{self._draw.choice(('', 'mail/'))}n{self._draw.randrange(2000)}"
        return self._draw.choice(_IDS) if self._chance(0.98) else self._draw.choice(_ODD_IDS)

    def _ids(self, most: int = 4) -> list[str]:
        if self._many and self._chance(0.5):
            return [self._id() for _ in range(self._draw.randrange(1001))]
        return [self._id() for _ in range(self._draw.randrange(most + 1))]

    def _known_id(self, members: Sequence[bytes]) -> bytes:
        return self._draw.choice(members) if members and self._chance(0.8) else self._id().encode()

    def _now_ms(self) -> int:
        return self._now_us // 1000

    def _due(self) -> object:
        at = self._now_ms() + self._draw.randrange(-3000, 20_000)
        return self._draw.choice([0, -1, -50, -5000, -30_000, at, at, self._now_ms(), 253402300799000])

    def _length(self) -> int:
        return self._draw.choice([0, 1, 50, 900, 5000, 19_999, 30_000])

    def _nonce(self) -> int:
        return self._draw.choice([1, 7, 1023, 1024, 4_000_000_000])

    def _record(self) -> bytes:
        kind = self._draw.random()
        payload = self._draw.choice([b"", b"hi", b'{"n":1}', b"p" * 70])
        if self._heavy and self._chance(0.2):
            payload = b"h" * self._draw.randrange(100_000, 400_000)
        if kind < 0.35:
            return bytes([0x10 + self._draw.choice((0, 1, 2, 7))]) + payload
        if kind < 0.93:
            return _headed(msgspec.msgpack.encode(self._head()), payload)
        torn = _headed(msgspec.msgpack.encode(self._head()), payload)
        return self._draw.choice(
            [
                *(b"", b"\x20", b"\x18", b"\x18\x00", b"\x18\x00\x09ab", torn[: self._draw.randrange(len(torn))]),
                *(_headed(b"\x93\x01\x02\x03", payload), _headed(b"\xc1", payload), _headed(b"", payload)),
                _headed(self._draw.randbytes(self._draw.randrange(12)), payload),
            ]
        )

    def _head(self) -> dict[str, object]:
        head: dict[str, object] = {}
        if self._chance(0.3):
            head["m"] = self._draw.choice([1, 2, 3, 25, 300, 70_000])
        if self._chance(0.3):
            head["n"] = self._nonce()
            if self._chance(0.6):
                return {"n": self._draw.choice([4_000_000_000, 1 << 31])}
        if self._chance(0.3):
            head["x"] = self._draw.choice(
                [self._now_ms() + self._draw.randrange(-5000, 9000), -500, -60_000, 1, 1.5, "9"]
            )
        if self._chance(0.3):
            head["t"] = self._draw.choice([["red"], ["blue", "red"], [], "red", ["x" * 40, "blue"]])
        if self._chance(0.15):
            head["h"] = self._draw.choice(
                [{"a": "b"}, {}, {"ünï": 'q"/\\\n\x7f\x01'}, {"n": 1.5}, {"l": [1, 2.5, None, True]}, "text", {"": ""}]
            )
        if self._chance(0.1):
            head["future"] = self._draw.choice(
                [None, True, -1, -40, -200, -40_000, -(1 << 40), 1.25, 1e300, {"k": "v" * 300}]
            )
        return head

    def _token(self) -> str:
        """A new one, as of a process."""
        self._tokens += 1
        return f"{self._draw.choice(PROCESSES)}:{self._tokens}"

    def _held(self) -> tuple[bytes, bytes]:
        """An id and the token of its lease, mostly."""
        entries = [(id, entry.split(b":", 3)) for id, entry in self._hash(self.keys.lease).items()]
        held = [(id, parts[3]) for id, parts in entries if len(parts) == 4 and parts[3]]
        if not held or self._chance(0.1):
            return self._id().encode(), b"p1:0"
        id, token = self._draw.choice(held)
        return id, token.removeprefix(b"~") if self._chance(0.95) else b""

    def _bent(self, words: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Words of which one is what no caller sends, or is missing."""
        if not words:
            return words
        at = self._draw.randrange(min(len(words), 40))
        if self._chance(0.2):
            return words[:at] + words[at + 1 :]
        return (*words[:at], self._draw.choice(_ODD_WORDS), *words[at + 1 :])

    def _some_topics(self) -> list[str]:
        return self._draw.sample(TOPICS, self._draw.randrange(len(TOPICS) + 1))

    def _planted(self) -> Step:
        """A plain command that changes what is stored."""
        keys = self.keys
        names = [
            *(
                getattr(keys, name)
                for name in ShardKeys.__dataclass_fields__
                if name not in ("shard", "slot", "prefix", "bell")
            ),
            *(each(topic) for each in (keys.ready, keys.waiting) for topic in TOPICS),
            *(self._out(), self._out()),
            *(CONTROL.topology, CONTROL.members, CONTROL.workers, CONTROL.reports, CONTROL.unreached),
            *(CONTROL.schedules, CONTROL.history),
            *(each("mail") for each in (CONTROL.bucket, CONTROL.permits, CONTROL.waiting)),
        ]
        key, id, now = self._draw.choice(names), self._id(), self._now_ms()
        odd = self._draw.choice(
            ["", "x", "1", "-3", "1.5", "0:0:", "a:b:c:d", "99", "1:1:2:p1:1", f"n1|1|due|{now}|0|0|\x10z"]
        )
        planted: list[list[object]] = [
            ["DEL", key],
            ["SET", key, odd],
            ["HSET", keys.lease, id, self._draw.choice([odd, "1:0:3:", "0:2::p1:9", "0:0:25:~p1:9"])],
            ["HSET", keys.ghost, id, self._draw.choice([odd, "1", "2", "3"])],
            ["HSET", keys.topics, self._draw.choice(TOPICS), self._draw.choice([odd, "17"])],
            [
                "HSET",
                keys.looks,
                self._draw.choice(TOPICS),
                self._draw.choice([odd, f"0:{now - 9000} 1:{now - 50}", _marks(now)]),
            ],
            ["HSET", keys.moved, id, self._draw.choice([odd, f"n1|1|due|{now}|0|0|\x10z"])],
            ["HSET", keys.meta, self._draw.choice(FIELDS), odd],
            ["HSET", keys.meta, "clock", now + self._draw.randrange(-2000, 9000)],
            ["HSET", keys.task, id, self._record()],
            ["ZADD", self._draw.choice([keys.due, keys.leased, keys.dead, keys.seen]), now - 500, id],
            ["ZADD", keys.due, self._draw.choice(["0.5", "1e300", "-3.25", f"{now}.0625"]), id],
            ["ZADD", keys.placed, 0, f"{self._draw.choice(TOPICS)}/k/{id}"],
            ["ZADD", keys.keys, 0, f"{self._draw.choice(TOPICS)}/k/{self._draw.choice(('-', '0'))}{now:014}/{id}"],
            ["ZADD", keys.placed, 0, f"!{self._draw.choice(TOPICS)}/k/{id}"],
            ["ZADD", keys.due, 4 * 10**15 + now, f"mail/k/{id}"],
            ["HSET", keys.holds, "mail/k/", self._draw.choice([odd, f"{now + 900}:{self._draw.randrange(2000)}"])],
            ["HSET", keys.meta, "cursor/mail", self._draw.choice(["", "mail/k0", odd])],
            ["ZADD", keys.alarms, self._draw.choice([0, now]), self._draw.choice(["mail/", "mail/k/"])],
            ["RPUSH", keys.ready(self._draw.choice(TOPICS)), id, self._id()],
            ["SET", keys.ready(self._draw.choice(TOPICS)), odd],
            ["RPUSH", self._out(), odd],
            ["ZADD", keys.waiting(self._draw.choice(TOPICS)), now, self._draw.choice(PROCESSES)],
            ["ZADD", CONTROL.waiting("mail"), now, self._draw.choice(PROCESSES)],
            ["HSET", CONTROL.bucket("mail"), self._draw.choice(["tokens", "at_us", "clock", "ahead"]), odd],
            ["ZADD", CONTROL.members, now + 99_000, self._draw.choice(PROCESSES)],
            ["HSET", key, "f", odd],
            ["XADD", self._out(), "*", "id", id],
            ["XADD", f"{keys.prefix}out", "18446744073709551615-18446744073709551614", "id", id],
        ]
        return Step("", (), tuple(coded(word) for word in self._draw.choice(planted)))  # type: ignore[arg-type]

    def _out(self) -> str:
        return f"{self.keys.prefix}{self._draw.choice(['out', 'ready/theirs'])}"

    # ---- the scripts

    def _named(self, name: str, keys: ShardKeys | ControlKeys, topics: Sequence[str] = (), *also: str) -> list[str]:
        names = script(name, keyed=True).named(keys)
        named = [key for each in names for key in ([each] if isinstance(each, str) else map(each, topics))]
        at = len(named) - 6  # those of lanes are the last
        return [*named[:at], *also, *named[at:]] if also else named

    def _shard(self, name: str, words: Sequence[object], topics: Sequence[str] = (), *also: str) -> Built:
        return self._named(name, self.keys, topics, *also), [*self._guarded(), *words]

    def _push(self) -> Built:
        ids = dict.fromkeys(self._id() for _ in range(1 + 3 * self._chance(0.3)))
        if self._many or self._chance(0.5):  # mostly new ones, as this script is for
            ids = dict.fromkeys(f"{id}{self._draw.randrange(90)}" for id in (*ids, *self._ids()))
        topics = dict.fromkeys(id.partition("/")[0] if "/" in id else "" for id in ids)
        tasks = [word for id in ids for word in (id, self._due(), self._record())]
        return self._shard("push", [self.keys.bell, len(topics), *topics, *tasks])

    def _push_unique(self) -> Built:
        words: list[object] = [self.keys.bell, int(self._chance(0.3)), self._draw.choices("012", (8, 1, 1))[0]]
        for _ in range(self._draw.choice([1, 1, 1, 2, 5]) if not self._many else self._draw.randrange(300)):
            id = self._id()
            present = self._hash(self.keys.task).get(id.encode())
            record = present if present and self._chance(0.2) else self._record()
            last_ms = self._now_us // 1000 + self._draw.choice([-5, 5])
            window = self._draw.choice([0, 0, 50, 5000, "0-600000", "50-600000", f"0-600000-{last_ms}", "-"])
            words += [id, self._due(), record, self._draw.choice(["keep", "reject", "replace"]), window]
        return self._shard("push_unique", words)

    def _adopt(self) -> Built:
        words: list[object] = [
            self.keys.bell,
            self._draw.choice(["7-5000", "7-50", "8-600000"]),
            self._draw.choices("012", (8, 1, 1))[0],
        ]
        for _ in range(self._draw.choice([0, 1, 2, 5]) if not self._many else self._draw.randrange(160)):
            words += [
                *(self._id(), self._due(), self._record()),
                self._draw.choice(["due", "first", "retry", "dead"]),
                self._draw.choice(["", "", "1:0::", "2:1::"]),
                self._draw.choice(["", "boom"]),
            ]
        return self._shard("adopt", words)

    def _dispatch(self) -> Built:
        topics = self._some_topics() if self._chance(0.3) else TOPICS
        routed = self._chance(0.3)
        marked = [self._draw.choice(["", "", "!", ">" if routed else ""]) + topic for topic in topics]
        most = self._draw.choice([0, 1, 2, 500, 1000])
        caller = [self.keys.bell, self._draw.choice(["me", "you"])] if routed else ["", ""]
        return self._shard(
            "dispatch", [most, self._draw.choice([1, 2, 25]), self.keys.wake(""), *caller, *marked], topics
        )

    def _forward(self) -> Built:
        side = self._draw.choice(["right", "left", "stream", "stream"])
        kept = self._draw.choice(["", "", 0, 1, 5]) if side == "stream" else ""
        words = [self.keys.bell, self._draw.choice([0, 1, 2, 500, 1000]), side, kept]
        topic = self._draw.choice(TOPICS)
        return self._shard(
            "forward", words, [topic], f"{self.keys.prefix}{'out' if side == 'stream' else 'ready/theirs'}"
        )

    def _claim(self) -> Built:
        topics = self._some_topics()
        permit: object = 1
        words: list[object] = [self.keys.bell, self._draw.choice([0, 1, 2, 3, 10, 1000]), self._length(), self._token()]
        words += [self.keys.wake(""), self._draw.choice(["", "", *PROCESSES])]
        for topic in topics:
            permit = self._draw.choice(["", "", "", 1, 4])
            words += [topic, self._draw.choice([0, 1, 2, 1000]), self._draw.choice(["", 1, 3]), permit]
        return self._shard("claim", words, topics)

    def _wake(self) -> Built:
        topic = self._draw.choice(TOPICS)
        return self._shard("wake", [self.keys.wake(""), topic], [topic])

    def _settle(self) -> Built:
        by_token: dict[bytes, list[bytes]] = {}
        for _ in range(self._draw.choice([0, 1, 1, 2, 4]) if not self._many else self._draw.randrange(400)):
            id, token = self._held()
            by_token.setdefault(token, []).append(id)
        ids = [id for group in by_token.values() for id in group]
        words: list[object] = [self.keys.bell, len(ids), len(by_token), *ids]
        words += [word for token, group in by_token.items() for word in (token, len(group))]
        for _ in range(self._draw.choice([0, 0, 1, 2])):
            verb = self._draw.choice(["retry", "retry", "bury", "bury", "back"])
            delay = self._draw.choice([0, 0, 50, 5000])
            words += [
                verb,
                *self._held(),
                delay,
                self._draw.choice(["", "boom", "ż" * 513 + "!"]),
                self._draw.choice([1, 2, 25]),
            ]
        if by_token and self._chance(0.3):
            at = 2 + len(ids) + 2 * len(by_token) + 1
            words[at:at] = [self._draw.choice(["", "5::", ":1700000000:KeyError", "70:-:"]) for _ in ids]
            words[1] = f"{len(ids)}:{self._ends_rule()}"
            names, told = self._shard("settle", words)
            return [*names, *self.keys.ends], told
        return self._shard("settle", words)

    def _ends_rule(self) -> str:
        """The rule of a ring that turns soon. Real servers forget its slots in an hour, and not within a run."""
        return f"3600000:{self._draw.choice([1, 2, 5])}"

    def _extend(self) -> Built:
        words = [word for _ in range(self._draw.randrange(4)) for word in self._held()]
        return self._shard("extend", [self.keys.bell, self._length(), *words])

    def _cancel(self) -> Built:
        words = [self.keys.bell, self._id(), *self._once()]
        if self._chance(0.3):
            names, told = self._shard("cancel", [*words[:-1], f"{words[-1]}:{self._ends_rule()}"])
            return [*names, *self.keys.ends], told
        return self._shard("cancel", words)

    def _reschedule(self) -> Built:
        return self._shard("reschedule", [self.keys.bell, self._id(), self._due(), *self._once()])

    def _once(self) -> list[object]:
        """The word of a command that is carried out at most once, of few, and whether its shard is an earlier one."""
        now_ms = self._now_ms()
        word = self._draw.choice(["", "", "7-5000", f"7-5000-{now_ms}", f"8-50-{now_ms - 1}"])
        return [word, self._draw.choice(["0", "0", "1"])]

    def _requeue(self) -> Built:
        return self._shard("requeue", [self.keys.bell, self._known_id([*self._sorted(self.keys.dead)]), self._due()])

    def _restore(self) -> Built:
        id = self._known_id([*self._hash(self.keys.task)]).decode(errors="replace")  # one may be a bent word
        topic = id.partition("/")[0] if "/" in id else ""
        return self._shard("restore", [self.keys.bell, id, self._draw.choice([0, 1])], [topic])

    def _check(self) -> Built:
        topic = self._draw.choice(TOPICS)
        known = [*self._hash(self.keys.task), *self._sorted(self.keys.due), *self._sorted(self.keys.leased)]
        ids = [self._known_id(known) for _ in range(self._draw.randrange(5))]
        return self._shard("check", ids, [topic])

    def _get(self) -> Built:
        return self._shard("get", self._ids())

    def _peek(self) -> Built:
        topics = self._some_topics()
        return self._shard("peek", [self._draw.choice([0, 5000]), *topics], topics)

    def _total(self) -> Built:
        return self._shard("total", [self._draw.choice([0, 0, 0, 7]), self._draw.choice([1, 1000])])

    def _tally(self) -> Built:
        return self._shard("tally", [self._draw.choice(TOPICS), self._draw.choice([0, 1, 20])])

    def _retire(self) -> Built:
        topics = self._some_topics()
        words = [self._draw.choice([0, 5000, 90_000_000]), self._draw.choice([0, 1]), self.keys.wake(""), *topics]
        return self._shard("retire", words, topics)

    def _page(self) -> Built:
        state = self._draw.choice(["scheduled", "leased", "dead"])
        members = self._sorted({"scheduled": self.keys.due, "leased": self.keys.leased}.get(state, self.keys.dead))
        newest = self._chance(0.4)
        begin, end = ("+inf", "-inf") if newest else ("-inf", "+inf")
        after: bytes = b""
        if members and self._chance(0.5):
            after = self._known_id([*members])
            begin = f"{members.get(after, self._now_ms()):.17g}"
            after = after if self._chance(0.8) else b""
        if self._chance(0.3):
            end = f"{self._now_ms()}"
        topic = self._draw.choice(["", "", "=", "=mail"])
        holder = self._draw.choice(["", "", *PROCESSES, "worker"])
        count, look = self._draw.choice([0, 1, 2, 10]), self._draw.choice([1, 3, 1000])
        words = [state, begin, after, end, topic, holder, count, look, "newest" if newest else ""]
        return self._shard("page", [*words, "" if newest else self._draw.choice(["", "failed"])])

    def _page_ready(self) -> Built:
        topic = self._draw.choice(TOPICS)
        return self._shard(
            "page_ready", [topic, self._draw.choice(["", "", 0, 1, 3]), self._draw.choice([1, 2, 1000])], [topic]
        )

    def _page_lane(self) -> Built:
        state = self._draw.choice(["leased", "ready", "scheduled"])
        members = self._sorted(self.keys.keys if state == "scheduled" else self.keys.placed)
        after = self._draw.choice([b"", *members])
        return self._shard("page_lane", [self._draw.choice(_LANES), state, after, self._draw.choice([0, 1, 3, 1000])])

    def _forecast(self) -> Built:
        first = self._draw.choice(["", "", self._now_ms() - 500])
        return self._shard("forecast", [first, self._draw.choice([1, 1000, 60_000]), self._draw.choice([0, 1, 5, 100])])

    def _trim(self) -> Built:
        return self._shard(
            "trim",
            [
                self._draw.choice([0, 1, 5000, 9_000_000]),
                self._draw.choice([0, 1, 100]),
                self._draw.choice([0, 1, 500]),
            ],
        )

    def _place(self) -> str:
        return self._draw.choice(["0", "0", "0", "end", f"0@{self._space.run_id.decode()}", "7@elsewhere"])

    def _purge(self) -> Built:
        topic = self._draw.choice(TOPICS)
        words = [
            self.keys.bell,
            topic,
            self._draw.choice(["topic", "topic", "all"]),
            self._place(),
            self._place(),
            self._draw.choice([1, 1000]),
        ]
        return self._shard("purge", words, [topic])

    def _cancel_tag(self) -> Built:
        place = self._place().replace("end", "0")
        return self._shard(
            "cancel_tag",
            [self.keys.bell, place, self._draw.choice([*TAGS, "none", ""]), self._draw.choice([1, 1000])],
        )

    def _stock(self) -> Built:
        return self._shard("stock", [self._place().replace("end", "0"), self._draw.choice([1, 1000])])

    def _reserve(self) -> Built:
        return self._shard("reserve", [self._draw.choice(["n1", "n2"]), *self._ids(20)])

    def _take(self) -> Built:
        self.keys = SHARDS[0] if self._chance(0.9) else SHARDS[1]
        return self._shard("take", [self._draw.choice(["n1", "n2"]), 1 - self.keys.shard, *self._ids(9)])

    def _put(self) -> Built:
        self.keys = SHARDS[1] if self._chance(0.9) else SHARDS[0]
        parcels = list(self._hash(SHARDS[1 - self.keys.shard].moved).items())
        chosen = self._draw.sample(parcels, self._draw.randrange(min(len(parcels), 200) + 1))
        staged = self._hash(self.keys.staged)
        if staged and self._chance(0.2):
            id, _, number = self._draw.choice([*staged]).rpartition(b"|")
            chosen.append((id, number + b"|1|dead|%d|5|4|1:0::boom\x10z" % self._now_ms()))
        return self._shard("put", [self.keys.bell, *(word for parcel in chosen for word in parcel)])

    def _clear(self) -> Built:
        moved = [(id, data.split(b"|", 1)[0]) for id, data in self._hash(self.keys.moved).items()]
        chosen = self._draw.sample(moved, self._draw.randrange(min(len(moved), 200) + 1))
        others = [(self._id(), "n1")] if self._chance(0.8) else []
        return self._shard("clear", [word for pair in (*chosen, *others) for word in pair])

    def _windows(self) -> list[object]:
        seen = [(f"{score:.17g}", member) for member, score in self._sorted(self.keys.seen).items()]
        chosen: list[tuple[str, object]] = [*self._draw.sample(seen, self._draw.randrange(min(len(seen), 200) + 1))]
        if self._chance(0.3):
            chosen.append((f"{self._now_ms() + 5000 - self._draw.randrange(512) / 1024}", self._id()))
        return [word for pair in chosen for word in pair]

    def _remember(self) -> Built:
        words = self._windows()
        self.keys = SHARDS[1 - self.keys.shard]
        return self._shard("remember", [self._draw.choice([0, 0, 500]), *words])

    def _forget(self) -> Built:
        return self._shard("forget", self._windows())

    def _some_lanes(self) -> list[str]:
        return self._draw.sample(_LANES, self._draw.randrange(len(_LANES) + 1))

    def _close(self) -> Built:
        return self._shard("close", self._some_lanes())

    def _open_lanes(self) -> Built:
        at = self._now_ms()
        instants = ["", "", at - 50, at + 50]
        words = [word for lane in self._some_lanes() for word in (lane, *self._draw.choices(instants, k=2))]
        return self._shard("open_lanes", [self.keys.bell, *words])

    def _lanes(self) -> Built:
        return self._shard(
            "lanes", [self.keys.bell, self._draw.choice(["", "mail/", "mail/k0"]), self._draw.choice([1, 500])]
        )

    def _hold(self) -> Built:
        until, place = self._draw.choice(["", "shut", self._due()]), self._draw.choice(["", "new", "old"])
        return self._shard("hold", [self.keys.bell, self._draw.choice(_LANES), until, place])

    def _unmark(self) -> Built:
        return self._shard("unmark", [])

    def _seal(self) -> Built:
        return self._shard(
            "seal", [self._draw.choice(["", "outbox"]), self._draw.randrange(5), self._draw.randrange(3)]
        )

    def _swept(self) -> Built:
        return self._shard("swept", [self._draw.randrange(5)])

    def _open(self) -> Built:
        return self._named("open", self.keys), [
            self._epoch(self.keys.meta) if self._chance(0.3) else self._other_epoch(self.keys.meta),
            self._draw.choice(["{}", '{"shards":2}']),
            int(self._chance(0.3)),
            self._draw.choice([1, 1, 2, 3]),
            self._draw.choice(["2", "2", "4,2", "2,4", "12,2"]),
            int(self._chance(0.2)),
            self._draw.choice(["first", "other"]),
            self.keys.bell,
            self._draw.choice(["", "", self._epoch(self.keys.meta), self._other_epoch(self.keys.meta)]),
            *self._settings(),
        ]

    def _declare(self) -> Built:
        epoch = self._epoch(CONTROL.topology)
        seen = self._draw.choice([epoch, epoch, epoch, 0, self._other_epoch(CONTROL.topology)])
        fields = self._draw.sample(["features", "pending", "move_rate", "priors"], self._draw.randrange(4))
        words = [word for field in fields for word in (field, self._draw.choice(["{}", "[]", "0"]))]
        words += ["epoch", self._other_epoch(CONTROL.topology)]
        whole = self._draw.choice([0, 0, 1])
        return self._named("declare", CONTROL), [seen, CONTROL.news, whole, len(words), *words, *self._settings()]

    def _settings(self) -> list[str]:
        topics = self._draw.sample(TOPICS, self._draw.randrange(3))
        return [word for topic in topics for word in (topic, self._draw.choice(["", "{}"]))]

    def _learn(self) -> Built:
        return self._named("learn", CONTROL), [self._known()]

    def _heartbeat(self) -> Built:
        words = [
            *(
                self._draw.choice(PROCESSES),
                self._now(),
                self._draw.choice([3000, 8000, 0]),
                self._draw.choice([3000, 0]),
            ),
            *(self._known(), self._draw.choice(["stay", "stay", "leave"])),
            *(CONTROL.news, self._draw.choice(["", "report"]), self._draw.choice(["", "", "3", "0,3"])),
            self._draw.choice([b"", self._hash(CONTROL.unreached).get(b"", b""), b"another"]),
        ]
        return self._named("heartbeat", CONTROL), words

    def _known(self) -> str:
        """The epoch that a caller knows: now and then of another engine."""
        epoch, other = self._epoch(CONTROL.topology), self._other_epoch(CONTROL.topology)
        return self._draw.choice([epoch, epoch, "0", other])

    def _report(self) -> Built:
        words = [self._known(), self._draw.choice(PROCESSES), self._now(), self._draw.choice([30_000, 0])]
        return self._named("report", CONTROL), [
            *words,
            self._draw.choice(["stay", "stay", "leave"]),
            self._draw.choice(["", "r"]),
        ]

    def _fleet(self) -> Built:
        return self._named("fleet", CONTROL), [self._now()]

    def _permit(self) -> Built:
        epoch = self._epoch(CONTROL.topology) if self._chance(0.95) else self._other_epoch(CONTROL.topology)
        words = [
            *(epoch, self._now(), "mail", self._draw.choice([0, 1, 3, 1000])),
            *(self._draw.choice(["", "", 5, 0.5, 1000, 33.3]), self._draw.choice(["", 1, 3, 50])),
            *(self._length() + 2000, self._token(), CONTROL.wake(""), self._draw.choice(["", *PROCESSES])),
            self._draw.choice([0, 0, 1]),
        ]
        return self._named("permit", CONTROL, ["mail"]), words

    def _permits(self) -> list[bytes]:
        held = [*self._sorted(CONTROL.permits("mail"))]
        names = self._draw.sample(held, self._draw.randrange(min(len(held), 5) + 1))
        return [*names, b"p1:0#1"] if self._chance(0.3) else names

    def _release(self) -> Built:
        words = [self._known(), "mail", self._draw.choice([0, 0, 1, 3]), CONTROL.wake(""), self._draw.choice([0, 0, 1])]
        return self._named("release", CONTROL, ["mail"]), [*words, *self._permits()]

    def _renew(self) -> Built:
        words = [self._known(), self._now(), self._length() + 2000, self._draw.choice(["", 1, 3])]
        return self._named("renew", CONTROL, ["mail"]), [*words, *self._permits()]

    def _schedules(self) -> Built:
        words = [self._known(), self._now(), *self._draw.sample(SCHEDULES, self._draw.randrange(3))]
        return self._named("schedules", CONTROL), words

    def _set_schedule(self) -> Built:
        words: list[object] = [self._known(), self._draw.choice([CONTROL.news, ""])]
        for name in self._draw.sample(SCHEDULES, self._draw.randrange(3)):
            seen = self._hash(CONTROL.schedules).get(name.encode(), b"")
            words += [
                name,
                seen if self._chance(0.8) else "other",
                self._draw.choice(["", "{}", '{"g":2}']),
                self._draw.choice(["", "{}"]),
            ]
        return self._named("set_schedule", CONTROL), words

    def _history(self) -> Built:
        value = self._space.keys.get(CONTROL.history.encode())
        seen = value.data[:4] if isinstance(value, Text) and self._chance(0.9) else b""
        parts = [(self._draw.choice([0, 4, 30]), self._draw.choice([b"", b"head", b"row\0"])) for _ in range(2)]
        return self._named("history", CONTROL), [self._known(), seen, 50, *(word for part in parts for word in part)]


@functools.cache
def _commands(name: str) -> list[str]:
    """The commands that a script may run."""
    return sorted(set(re.findall(r"redis\.p?call\('([A-Z]+)'", script(name, keyed=True).text)) - {"TIME"})


_WEIGHTS = {
    **dict.fromkeys(("push", "claim", "settle", "push_unique"), 6.0),
    "dispatch": 9.0,
    "forward": 4.0,
    **dict.fromkeys(("permit", "take", "put", "reserve", "adopt"), 3.0),
    **dict.fromkeys(("restore", "cancel_tag", "purge", "peek", "retire"), 2.0),
    **dict.fromkeys(("open", "seal", "swept", "unmark", "fleet"), 0.5),
}
"""How often a script is called; 1 where none is given."""


def _marks(now_ms: int) -> str:
    """As many marks of a ready list as are kept."""
    return " ".join(f"{at}:{now_ms - 9000 + at * at}" for at in range(8))


def _headed(head: bytes, payload: bytes) -> bytes:
    return b"\x18" + len(head).to_bytes(2) + head + payload


def _draws_some(step: Step) -> bool:
    """True for a look that draws some of the ids that are there, and not all or none: chance says which."""
    most = b"".join(step.words[2:3])
    return step.script == "peek" and most not in (b"0", b"5000") and any(digit in most for digit in b"123456789")


def _step(name: str, keys: Sequence[str], words: Sequence[object]) -> Step:
    return Step(name, tuple(key.encode() for key in keys), tuple(coded(word) for word in words))  # type: ignore[arg-type]
