"""Calls that meet on a few lanes, in an order that is drawn: after each of them all that is stored of lanes is what the
contract says.
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from shardq.core.calls import by_id, consume, dispatch, lane_control, listing
from shardq.core.calls.consume import SettleAck, SettleBury, SettleGiveBack, SettleHold, SettleRetry, SettleSnooze
from shardq.core.calls.listing import Purged
from shardq.core.calls.request import Call, Word
from shardq.core.layout.keys import ShardKeys, shard_keys
from shardq.core.model.record import RAW, encode_record
from tests.lua.lanes import TOPIC, Lanes, of_lanes
from tests.lua.modelled import ModelledShard
from tests.lua.shard import EPOCH, Shard, meta
from tests.support.heads import encode_head

LANES = ["w/k/", "w/l/", "w/m/"]
CLOSED = {"w/closed/": "closed:5", "w/shut/": "shut:5"}
GATES = CLOSED | {"w/m/": "closed:4"}
"""What was said in an earlier change counts no more."""

IDS = [*(f"{lane}{unique}" for lane in LANES for unique in "abcd"), *(f"{lane}a" for lane in CLOSED)]
ALLOWED = 3
"""Attempts."""


@pytest.fixture
def keys(name: str) -> ShardKeys:
    return shard_keys(name, 1, keyed=True)


class Calls:
    """Draws calls that fit what there is, and makes them here and there."""

    def __init__(self, draw: random.Random, shard: Shard, keys: ShardKeys, lanes: Lanes) -> None:
        self._draw, self._shard, self._keys, self._lanes = draw, shard, keys, lanes
        self._revoked: dict[str, str] = {}
        self._claims = 0

    def next(self) -> str:
        """Makes one. Returns its name."""
        chosen = self._draw.choices([*_WEIGHTS], [*_WEIGHTS.values()])[0]
        self._lanes.now += self._draw.choice([0, 0, 1, 9, 40, 90, 300, 1200])
        if self._draw.random() < 0.01:
            self._lanes.now -= 5000  # the clock is set back
        getattr(self, f"_{chosen}")()
        return chosen

    def _run(self, call: Call[Any]) -> Any:
        return self._shard.run(call.at(f"{self._lanes.now * 1000}"))

    def _some(self, ids: Any, most: int = 3) -> list[str]:
        known = sorted(ids)
        return self._draw.sample(known, min(len(known), self._draw.randrange(most) + 1))

    def _due(self) -> int:
        return self._lanes.now + self._draw.choice([-900, -1, 0, 0, 1, 30, 500])

    def _record(self, id: str) -> bytes:
        expires = self._lanes.now + self._draw.choice([50, 600]) if self._draw.random() < 0.2 else None
        self._lanes.expires[id] = expires or math.inf
        return encode_record(RAW, b"", encode_head(expires=expires))

    def _free(self) -> list[str]:
        lanes = self._lanes
        there = lanes.waiting.keys() | lanes.leased.keys() | lanes.dead | set(lanes.ready)
        return [id for id in IDS if id not in there]

    def _push(self) -> None:
        tasks = [(id, self._due()) for id in self._some(self._free())]
        words: list[Word] = [word for id, due in tasks for word in (id, due, self._record(id))]
        if tasks:
            assert self._run(by_id.push(self._keys, EPOCH, words)) == []
        self._lanes.pushed(tasks)

    def _replace(self) -> None:
        id, due = self._draw.choice(IDS), self._due()
        if id in self._lanes.leased:
            self._revoked[id] = self._lanes.lease[id][2]
        self._run(by_id.push_unique(self._keys, EPOCH, [id, due, self._record(id), "replace", 0]))
        self._lanes.replaced(id, due)

    def _dispatch(self) -> None:
        self._run(dispatch.dispatch(self._keys, EPOCH, (TOPIC,), limit=1000, max_attempts=ALLOWED))
        self._lanes.dispatched(ALLOWED)

    def _claim(self) -> None:
        most, lease_ms = self._draw.choice([1, 2, 9]), self._draw.choice([100, 2000, 60_000])
        self._claims += 1
        call = consume.claim(self._keys, EPOCH, {TOPIC: most}, max=most, lease_ms=lease_ms, token=f"t{self._claims}")
        assert self._run(call).ids == self._lanes.claimed(most, lease_ms, f"t{self._claims}")

    def _forward(self) -> None:
        most = self._draw.choice([1, 3])
        self._run(dispatch.forward(self._keys, EPOCH, TOPIC, to=f"{self._keys.prefix}to", side="right", limit=most))
        self._lanes.forwarded(most)

    def _settle(self) -> None:
        tokens = {id: self._lanes.lease[id][2] for id in self._lanes.leased}
        for id in self._some(self._revoked, 1):
            if id not in tokens:
                tokens[id] = self._revoked.pop(id)
        acks: list[SettleAck] = []
        others: list[Any] = []
        how = []
        for id in self._some(tokens):
            token, delay = tokens[id], self._draw.choice([0, 20, 700])
            verb = self._draw.choice(["ack", "ack", "ack", "retry", "bury", "back", "hold"])
            how.append((verb, id, token, delay))
            match verb:
                case "ack":
                    acks.append(SettleAck(id, token))
                case "retry":
                    others.append(SettleRetry(id, token, delay, "no", None))
                case "bury":
                    others.append(SettleBury(id, token, "no", delay))
                case "back":
                    others.append(SettleSnooze(id, token, delay) if delay else SettleGiveBack(id, token))
                case "hold":
                    others.append(SettleHold(id, token, delay))
        handing = self._draw.choice([(), (TOPIC,)])
        self._run(consume.settle(self._keys, EPOCH, acks, others, max_attempts=ALLOWED, handing=handing))
        # acks under one token stand together
        by_token = list(dict.fromkeys(ack.token for ack in acks))
        how.sort(key=lambda each: (each[0] != "ack", by_token.index(each[2]) if each[0] == "ack" else 0))
        self._lanes.settled(how, ALLOWED, handing=bool(handing))

    def _cancel(self) -> None:
        for id in self._some(self._cancellable(), 1):
            self._run(by_id.cancel(self._keys, EPOCH, id))
            self._lanes.cancelled(id)

    def _cancellable(self) -> set[str]:
        return self._lanes.waiting.keys() | self._lanes.dead | self._ready()

    def _ready(self) -> set[str]:
        return set(self._lanes.placed) - self._lanes.leased.keys() - self._lanes.alarms.keys()

    def _reschedule(self) -> None:
        for id in self._some(self._lanes.waiting.keys() | self._ready(), 1):
            due = self._due()
            self._run(by_id.reschedule(self._keys, EPOCH, id, due))
            self._lanes.rescheduled(id, due)

    def _requeue(self) -> None:
        for id in self._some(self._lanes.dead, 1):
            due = self._due()
            self._run(by_id.requeue(self._keys, EPOCH, id, due))
            self._lanes.requeued(id, due)

    def _purge(self) -> None:
        self._run(listing.purge(self._keys, EPOCH, TOPIC, scope="topic", go_on=Purged(0, 0, "0", "0")))
        self._lanes.purged()

    def _hold(self) -> None:
        lane, until = self._draw.choice(LANES), self._draw.choice([None, self._due(), self._lanes.now + 900])
        self._run(lane_control.hold(self._keys, EPOCH, lane, "" if until is None else until))
        self._lanes.held_until(lane, until)

    def _look(self) -> None:
        self._run(lane_control.lanes(self._keys, EPOCH, "", count=500))
        self._lanes.looked_at()


_WEIGHTS = {
    "push": 6,
    "replace": 4,
    "dispatch": 9,
    "claim": 6,
    "settle": 8,
    "forward": 1,
    "cancel": 2,
    "reschedule": 1,
    "requeue": 2,
    "purge": 0.3,
    "hold": 1,
    "look": 1,
}

WINDOWS = {
    "": Lanes(1, 0, waits=True),
    "1:0:skip": Lanes(1, 0, waits=False),
    "3:0:wait": Lanes(3, 0, waits=False),
    "1:200:wait": Lanes(1, 200, waits=True),
    "2:0.500000:wait": Lanes(2, 0.5, waits=False),
    "2:33.300000:wait": Lanes(2, 33.3, waits=False),
    "9:12:skip": Lanes(9, 12, waits=False),
}


def play(seed: int, count: int, window: str, shard: Shard, keys: ShardKeys) -> None:
    known = WINDOWS[window]
    lanes = Lanes(known.most, known.interval, known.waits, gates=CLOSED)
    fields = {"since": 5, "numbers": "1,2", **({f"keys/{TOPIC}": window} if window else {})}
    shard.seed({"meta": meta(**fields), "gates": GATES})
    calls = Calls(random.Random(seed), shard, keys, lanes)
    before = of_lanes(shard.state())
    for number in range(count):
        name = calls.next()
        after = of_lanes(shard.state())
        assert after == lanes.state(), f"call {number} of seed {seed}, {name} at {lanes.now}, on {before}"
        before = after


@pytest.mark.parametrize("window", WINDOWS)
def test_what_is_stored_of_lanes(modelled: ModelledShard, keys: ShardKeys, window: str) -> None:
    for seed in range(3):
        play(seed, 150, window, modelled, keys)


@pytest.mark.parametrize("window", WINDOWS)
def test_what_a_server_stores_of_lanes(shard: Shard, keys: ShardKeys, window: str) -> None:
    play(100, 50, window, shard, keys)
