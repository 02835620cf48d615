"""A model of a changing number of shards: the real scripts and pushing, interleaved request by request.

Clients, migrators and operators are operations that hypothesis advances by one request at a time, in any order; each
has a map of its own, which may be old. It also lets them stand still for good (a crash), lets an answer be lost and its
request be sent again, dispatches, claims and settles in between, and lets time pass.

After every single request all shards are looked at. A request may change the tasks that it is about, in the way that it
is meant to, and no others: above all, no step of a migration changes what is stored of any task, which is in exactly
one place always. So nothing is lost, doubled, or dispatched early; and whoever is told that an id is gone, or is there,
is told so of an instant at which it was so.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from shardq.core.calls import consume, dispatch
from shardq.core.calls.consume import OtherSettlement, SettleAck, SettleBury, SettleGiveBack, SettleRetry
from shardq.core.calls.request import Call, Command, Missing, Stale, Word
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import ShardKeys, control_keys, shard_keys
from shardq.core.layout.topology import Topology
from shardq.core.model.record import RAW, codec_named, encode_head, encode_record
from shardq.core.model.task import Outcome
from shardq.core.operation import Operation, run
from shardq.core.producer import by_id, pushing
from shardq.core.producer.packing import Entries, Packer
from shardq.core.recovery import create_topology, put_in_force, refresh
from shardq.core.resharding.migration import MoveRate, MoveTokens, sweep
from shardq.core.resharding.resizing import forget_priors, resize, unswept
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ChangeUnderWay, Conflict, PushError, ShardqError
from tests.resharding.judge import judged
from tests.resharding.picture import Picture, picture
from tests.resharding.stepping import Stepped

COUNTS = (2, 3, 5)
"""Numbers of shards."""

IDS = ("a", "b", "c", "d")
"""Under 2, 3 and 5 shards they belong to 1 1 1, 1 2 4, 0 2 2 and 0 0 3."""

MOST = 6
"""Operations under way at once."""

LONG = 200
"""Requests in which every operation that is not held up ends."""

LEASE_MS = 3000
WINDOW_MS = 3_600_000


@dataclass
class Running:
    steps: Stepped
    id: str = ""
    """Of an operation about one id."""
    present: bool = False
    """The id was there at some instant since the operation began."""
    absent: bool = False


class Model(RuleBasedStateMachine):
    def __init__(self, driver: Driver, client: redis.Redis) -> None:
        super().__init__()
        self.driver, self.client = driver, client
        self.name = f"m{uuid.uuid4().hex[:12]}"
        self.shards = [shard_keys(self.name, shard) for shard in range(max(COUNTS))]
        self.packer = Packer(codec_named("raw"), max_payload=1 << 20)
        # behind the server's clock, which some scripts go by: a clock that goes back would move the ends of windows
        self.now_ms = int(time.time() * 1000) - WINDOW_MS // 2
        self.running: list[Running] = []
        self.leases: list[tuple[ShardKeys, str, str]] = []
        self.count = 0
        self.sound = True
        first = run(driver, create_topology(self.name, COUNTS[0]))
        self.maps = [TopologyCache(self.name, first) for _ in range(4)]
        """Of two clients, and of two that dispatch and migrate."""
        self.seen = Picture()

    # ---- what goes on

    @initialize(
        window=st.sampled_from([0, WINDOW_MS]),
        ready=st.sets(st.integers(0, 1)),
        first=st.sampled_from([3, 5]),
        migrating=st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4]), st.integers(0, 10)), max_size=3),
        second=st.sampled_from([None, *COUNTS]),
    )
    def begin(
        self, window: int, ready: set[int], first: int, migrating: list[tuple[int, int]], second: int | None
    ) -> None:
        """There are tasks, some of them ready; the number of shards has changed, somebody is at any point of migrating,
        and perhaps it has changed again."""
        words: list[Word] = []
        for n, id in enumerate(IDS):
            words += (id, self._due(2 * (n % 2)), self._record(), "keep", window)
        self._start("push", pushing.push(self.maps[0], self.packer, Entries([*IDS], [], words), most=10))
        self._finish_last()
        for shard in ready:
            self._poll(2, shard)
        self.resize(0, first)
        self._finish_last()
        for n, (shard, requests) in enumerate(migrating):
            self.migrate(2 + n % 2, shard, True)
            self._advance(self.running[-1], requests)
        if second is not None:
            self.resize(1, second)
            self._finish_last()

    @precondition(lambda self: len(self.running) < MOST)
    @rule(
        client=st.integers(0, 1),
        id=st.sampled_from(IDS),
        mode=st.sampled_from(["keep", "replace", "reject"]),
        window=st.sampled_from([0, 0, WINDOW_MS]),
        due=st.integers(0, 4),
    )
    def push(self, client: int, id: str, mode: str, window: int, due: int) -> None:
        entries = Entries([id], [], [id, self._due(due), self._record(), mode, window])
        operation = pushing.push_one(self.maps[client], self.packer, entries)
        self._start(f"push {id} {mode}", operation, id)

    @precondition(lambda self: len(self.running) < MOST)
    @rule(
        client=st.integers(0, 1),
        mode=st.sampled_from(["keep", "replace", None]),
        due=st.integers(0, 4),
    )
    def push_many(self, client: int, mode: str | None, due: int) -> None:
        """All ids of ours, or two of the engine's."""
        if mode is None:
            ids = [f"fresh-{self.count}-{n}" for n in range(2)]
            entries = Entries(ids, [word for id in ids for word in (id, self._due(due), self._record())], [])
        else:
            ids = [*IDS]
            entries = Entries(ids, [], [word for id in ids for word in (id, self._due(due), self._record(), mode, 0)])
        self._start(f"push {ids} {mode}", pushing.push(self.maps[client], self.packer, entries, most=2))

    @precondition(lambda self: len(self.running) < MOST)
    @rule(
        client=st.integers(0, 1),
        id=st.sampled_from(IDS),
        what=st.sampled_from(["cancel", "reschedule", "requeue", "get"]),
        due=st.integers(0, 4),
    )
    def order(self, client: int, id: str, what: str, due: int) -> None:
        cache = self.maps[client]
        operation: Operation[Any]
        match what:
            case "cancel":
                operation = by_id.cancel(cache, id)
            case "reschedule":
                operation = by_id.reschedule(cache, id, self._due(due))
            case "requeue":
                operation = by_id.requeue(cache, id, self._due(due))
            case _:
                operation = by_id.get(cache, id, RAW)
        self._start(f"{what} {id}", operation, id)

    @precondition(lambda self: len(self.running) < MOST)
    @rule(map=st.integers(0, 3), shards=st.sampled_from(COUNTS))
    def resize(self, map: int, shards: int) -> None:
        self._start(f"resize to {shards}", resize(self.maps[map], shards, rate=None, members=0))

    @precondition(lambda self: len(self.running) < MOST)
    @rule(map=st.integers(2, 3), shard=st.integers(0, max(COUNTS) - 1), heard=st.sampled_from([True, True, False]))
    def migrate(self, map: int, shard: int, heard: bool) -> None:
        if heard:
            self._hear(map)
        self.count += 1
        keys = self._served(map, shard)
        self._start(f"migrate {keys.shard}", migrate_once(self.maps[map], keys, MoveTokens(f"m{self.count}")))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, MOST - 1))
    def step(self, which: int) -> None:
        self._advance(self.running[which % len(self.running)], 1)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, MOST - 1))
    def finish(self, which: int) -> None:
        self._advance(self.running[which % len(self.running)], LONG)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, MOST - 1), times=st.integers(1, 12), lost=st.booleans())
    def advance(self, which: int, times: int, lost: bool) -> None:
        self._advance(self.running[which % len(self.running)], times, lost=lost)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, MOST - 1))
    def crash(self, which: int) -> None:
        self.running.pop(which % len(self.running))

    @rule(
        map=st.integers(0, 3),
        shard=st.integers(0, max(COUNTS) - 1),
        what=st.sampled_from(["poll", "poll", "claim", "claim", "ack", "retry", "bury", "back", "tick", "hear"]),
        which=st.integers(0, 10),
    )
    def serve(self, map: int, shard: int, what: str, which: int) -> None:
        """What goes on besides."""
        match what:
            case "poll":
                self._poll(map, shard)
            case "claim":
                self._claim(map, shard)
            case "tick":
                self.now_ms += 1000 * (1 + which % 2)
            case "hear":
                self._hear(map)
            case _:
                if self.leases:
                    self._settle(map, which, what)

    def _hear(self, map: int) -> None:
        run(self.driver, refresh(self.maps[map]))

    def _poll(self, map: int, shard: int) -> None:
        now_us = str(self.now_ms * 1000)

        def make(keys: ShardKeys, epoch: int) -> Call[Any]:
            return dispatch.dispatch(keys, epoch, [""], limit=10, max_attempts=100, now_us=now_us)

        self._ask(map, shard, make)

    def _claim(self, map: int, shard: int) -> None:
        self.count += 1
        keys, token, now_us = self._served(map, shard), f"t{self.count}", str(self.now_ms * 1000)

        def make(keys: ShardKeys, epoch: int) -> Call[Any]:
            return consume.claim(keys, epoch, {"": 2}, max=2, lease_ms=LEASE_MS, token=token, now_us=now_us)

        claim = self._ask(map, shard, make)
        if claim is not None:
            self.leases += [(keys, id, token) for id in claim.ids]

    def _settle(self, map: int, which: int, how: str) -> None:
        keys, id, token = self.leases[which % len(self.leases)]
        verdicts: dict[str, OtherSettlement] = {
            "retry": SettleRetry(id, token, 1000, "again", 100),
            "bury": SettleBury(id, token, "no"),
            "back": SettleGiveBack(id, token),
        }
        others = [verdicts[how]] if how in verdicts else []
        acks = [SettleAck(id, token)] if how == "ack" else []
        epoch, now_us = self.maps[map].topology.epoch, str(self.now_ms * 1000)
        if not isinstance(self._carry(consume.settle(keys, epoch, acks, others, now_us=now_us)), Stale):
            self.leases.remove((keys, id, token))

    # ---- carrying out

    def _due(self, steps: int) -> int:
        return self.now_ms + steps * 1000

    def _served(self, map: int, shard: int) -> ShardKeys:
        return self.shards[shard % len(self.maps[map].span())]

    def _record(self) -> bytes:
        self.count += 1
        return encode_record(RAW, b"payload %d" % self.count, encode_head(nonce=self.count))

    def _start(self, what: str, operation: Operation[Any], id: str = "") -> None:
        running = Running(Stepped(what, operation), id)
        self.running.append(running)
        self._look(running)

    def _finish_last(self) -> None:
        self._advance(self.running[-1], LONG)

    def _advance(self, running: Running, times: int, *, lost: bool = False) -> None:
        for left in reversed(range(times)):
            running.steps.advance(self._carry, lost=lost and not left)
            if running.steps.done:
                self.running.remove(running)
                self._ended(running)
                return

    def _look(self, running: Running) -> None:
        if running.id in self.seen.tasks:
            running.present = True
        else:
            running.absent = True

    def _ask(self, map: int, shard: int, make: Callable[[ShardKeys, int], Call[Any]]) -> Any:
        """One call of somebody who asks again another time, should the shard not take it."""
        cache = self.maps[map]
        answer = self._carry(make(self._served(map, shard), cache.topology.epoch))
        if isinstance(answer, Stale):
            run(self.driver, refresh(cache))
        return None if isinstance(answer, (Stale, Missing)) else answer

    def _carry(self, request: Command[Any]) -> Any:
        try:
            result = self.driver.call(request)
        except ShardqError as exc:
            result = exc
        before, self.seen = self.seen, picture(self.client, self.shards)
        for running in self.running:
            self._look(running)
        wrong = judged(request, result, before, self.seen, self.now_ms)
        self._hold(not wrong, "\n".join(wrong))
        return result

    def _ended(self, running: Running) -> None:
        result = running.steps.result
        if isinstance(result, ShardqError):
            allowed = (ChangeUnderWay, Conflict, PushError)
            self._hold(isinstance(result, allowed), f"{running.steps!r} is no end of it")
            if isinstance(result, PushError):
                raise result
            return
        if not running.id or result is Outcome.UNKNOWN:
            return
        if result is None or result is Outcome.GONE:
            self._hold(running.absent, f"{running.steps!r}, but {running.id} was there all the time")
        elif isinstance(result, Outcome) or getattr(result, "outcome", "") == "kept":
            self._hold(running.present, f"{running.steps!r}, but {running.id} never was there")

    def _hold(self, good: bool, sentence: str) -> None:
        if not good:
            self.sound = False
            raise AssertionError(sentence)

    # ---- the end

    def teardown(self) -> None:
        try:
            if self.sound:
                self._end()
        finally:
            self.client.delete(*self.client.keys(f"shardq:{{{self.name}*"))

    def _end(self) -> None:
        """Everybody stands still. Somebody new finds everything, and everything ends where it belongs; and stays there
        when those who migrated go on at last."""
        late = [running.steps for running in self.running if running.steps.what.startswith("migrate")]
        self.running.clear()
        cache = self.maps[3]
        self._all(refresh(cache))
        self._all(put_in_force(cache))
        for _ in range(10):
            for keys in cache.span():
                self.count += 1
                self._all(migrate_once(cache, keys, MoveTokens(f"m{self.count}")))
            if not cache.topology.priors:
                break
            for keys in cache.span():
                self._poll(3, keys.shard)
                self._claim(3, keys.shard)
            while self.leases:
                self._settle(3, 0, "ack")
        self._at_rest()
        for steps in late:
            self._finish(steps)
        self._at_rest()

    def _at_rest(self) -> None:
        topology = run(self.driver, _topology(self.name))
        self._hold(not topology.priors, f"{topology} still has priors, with {self.seen.tasks} at {self.seen.places}")
        self._hold(self.seen.moving_tasks == 0, "there are parcels left")
        for id, place in self.seen.places.items():
            self._hold(place == f"shard {topology.shard_of(id)}", f"{id} is in {place} under {topology}")
        for id, shards in self.seen.window_shards.items():
            self._hold(shards == {topology.shard_of(id)}, f"the window of {id} is in shards {shards} under {topology}")

    def _all(self, operation: Operation[Any]) -> None:
        steps = Stepped("the end", operation)
        self._finish(steps)
        self._hold(not isinstance(steps.result, ShardqError), f"the end came to {steps.result!r}")

    def _finish(self, steps: Stepped) -> None:
        while not steps.done:
            steps.advance(self._carry)


def migrate_once(cache: TopologyCache, keys: ShardKeys, numbers: MoveTokens) -> Operation[None]:
    """What a dispatcher does again and again while tasks are to be moved."""
    try:
        if cache.topology.pending is not None:
            yield from put_in_force(cache)
        elif cache.topology.priors:
            for shard in (yield from unswept(cache, [keys.shard])):
                yield from sweep(cache, shard, numbers, MoveRate())
            yield from forget_priors(cache)
    except Stale:
        yield from refresh(cache)


def _topology(name: str) -> Operation[Topology]:
    fields = yield Command(control_keys(name).slot, ("HGETALL", control_keys(name).topology), lambda answer: answer)
    return Topology.from_fields(fields)
