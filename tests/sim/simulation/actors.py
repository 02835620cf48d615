"""The processes of a run: each makes the operations of the product, as an engine does, and tells the judge."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from shardq.core.calls import consume, dispatch
from shardq.core.calls.consume import SettleAck, SettleBury, SettleGiveBack, SettleRetry, SettleSnooze
from shardq.core.calls.request import Stale, Word
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Topology
from shardq.core.model.record import JSON, encode_head, encode_record
from shardq.core.model.task import Outcome, Receipt
from shardq.core.operation import Operation, Pause
from shardq.core.producer.by_id import cancel, requeue, reschedule
from shardq.core.producer.packing import Entries, Packer
from shardq.core.producer.pushing import push
from shardq.core.recovery import call_shards, create_topology, put_in_force, refresh
from shardq.core.resharding.migration import MoveRate, MoveTokens, sweep
from shardq.core.resharding.resizing import forget_priors, resize, unswept
from shardq.core.topology_cache import TopologyCache
from shardq.errors import Conflict, PushError, ShardqError
from tests.sim.simulation.judge import TOPICS, Push, Violation
from tests.sim.simulation.world import NAME, Actor, World

LEASE_MS = 5000
IDS = ["a", "b", "c", "mail/a", "mail/b"]


class _Packer(Packer):
    """Makes other ids as the seed says."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__(JSON, max_payload=1 << 20)
        self._draw = draw

    def again(self, id: str, due: Word, record: Word) -> tuple[str, Word, Word]:
        raise Violation(f"{id} was made for this push alone, and is taken")


class Process:
    """What all processes have: their own topology, as they know it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.draw = world.draw
        self.lives = 0

    def actor(self, **options: Any) -> Actor:
        return Actor(self.name, self._live, **options)

    def _live(self) -> Operation[None]:
        self.lives += 1
        topology: Topology = yield from self._tried(lambda: create_topology(NAME, 1))
        yield from self.go(TopologyCache(NAME, topology))

    def _tried(self, make: Callable[[], Operation[Any]]) -> Operation[Any]:
        while True:
            try:
                return (yield from make())
            except ShardqError:
                yield Pause(0.05)

    def go(self, cache: TopologyCache) -> Operation[None]:
        raise NotImplementedError

    def now_ms(self) -> int:
        return self.world.now_us // 1000


class Producer(Process):
    """Pushes some tasks, of its own ids or under ids that others use, too."""

    def __init__(self, world: World, name: str, pushes: int) -> None:
        super().__init__(world, name)
        self._left = pushes
        self._packer = _Packer(world.draw)

    def go(self, cache: TopologyCache) -> Operation[None]:
        while self._left > 0:
            yield Pause(self.draw.random() * 0.5)
            tasks = self.draw.choice((1, 1, 1, 3))
            self._left -= tasks
            yield from self._push(cache, tasks)

    def _push(self, cache: TopologyCache, tasks: int) -> Operation[None]:
        world, draw, entries = self.world, self.draw, Entries()
        pushes: list[Push] = []
        replacing = contextlib.ExitStack()
        unique = draw.random() < 0.6
        for _ in range(tasks):
            id = draw.choice(IDS) if unique else f"{draw.choice(('', 'mail/'))}{self.name}-{len(world.judge.pushes)}"
            if any(other.id == id for other in pushes):
                continue
            delay = draw.choice((0, 5, 300, 2000, 4000))
            mode, dedup = draw.choice(("keep", "keep", "reject", "replace")), draw.choice((0, 0, 60_000))
            note = world.judge.pushing(id, self.now_ms() + delay, world.now_us, unique=unique, dedup=bool(dedup))
            pushes.append(note)
            head = encode_head(nonce=draw.getrandbits(32)) if unique else None
            entries.ids.append(id)
            if unique:
                if mode == "replace":
                    replacing.enter_context(world.judge.ending(id, note))
                entries.unique += (id, -delay, encode_record(JSON, note.number, head), mode, dedup)
            else:
                entries.fresh += (id, -delay, encode_record(JSON, note.number, head))
        try:
            with replacing:
                receipts = yield from push(cache, self._packer, entries, most=1000)
        except PushError as exc:
            receipts = [each for each in exc.ids if isinstance(each, Receipt)]
            for note in pushes:
                if isinstance(exc.failed.get(note.id), Conflict):
                    world.judge.pushed(note, "refused", world.now_us)
        except ShardqError:
            return
        by_id = {note.id: note for note in pushes}
        for receipt in receipts:
            world.judge.pushed(by_id[receipt], str(receipt.outcome), world.now_us)


class Poller(Process):
    """Dispatches one shard after the other."""

    def go(self, cache: TopologyCache) -> Operation[None]:
        while True:
            for keys in cache.span():
                make = partial(dispatch.dispatch, topics=TOPICS, limit=self.draw.choice((1, 3, 500)), max_attempts=3)
                yield from call_shards(cache, {0: (keys, make)})
            yield Pause(self.draw.choice((0.0, 0.02, 0.3)))


class Consumer(Process):
    """Claims tasks, works on them for a while, and settles them in every way."""

    def go(self, cache: TopologyCache) -> Operation[None]:
        for number in itertools.count():
            keys = self.draw.choice(list(cache.span()))
            token = f"{self.name}-{self.lives}:{number}"
            shares = dict.fromkeys(TOPICS, self.draw.choice((1, 5)))
            make = partial(consume.claim, shares=shares, max=5, lease_ms=LEASE_MS, token=token, waiter=self.name)
            (claim,) = (yield from call_shards(cache, {0: (keys, make)})).values()
            if isinstance(claim, ShardqError) or not claim.ids:
                yield Pause(self.draw.choice((0.01, 0.2)))
                continue
            yield Pause(self.draw.choice((0.0, 0.05, 1.0, 3.0, 7.0)))
            held = [SettleAck(id, token) for id in claim.ids]
            if self.draw.random() < 0.3:
                extend = partial(consume.extend, held=held, lease_ms=LEASE_MS)
                yield from call_shards(cache, {0: (keys, extend)})
                yield Pause(self.draw.choice((0.0, 1.0)))
            yield from self._settle(cache, keys, held)

    def _settle(self, cache: TopologyCache, keys: ShardKeys, held: list[SettleAck]) -> Operation[None]:
        acks = [each for each in held if self.draw.random() < 0.6]
        others: list[Any] = []
        for id, token in ((each.id, each.token) for each in held if each not in acks):
            others.append(
                self.draw.choice(
                    [
                        SettleRetry(id, token, self.draw.choice((0, 500)), "boom", 3),
                        SettleBury(id, token, "boom"),
                        SettleGiveBack(id, token),
                        SettleSnooze(id, token, 200),
                    ]
                )
            )
        settle = partial(consume.settle, acks=acks, others=others)
        yield from call_shards(cache, {0: (keys, settle)})


class Operator(Process):
    """Cancels, reschedules and requeues ids, and changes the number of shards."""

    def __init__(self, world: World, name: str, orders: int, shards: list[int]) -> None:
        super().__init__(world, name)
        self._left = orders
        self._shards = shards
        # some runs have little but changes of the number of shards
        self._kinds = ["cancel", "reschedule", "requeue", *(["resize"] * self.draw.choice((0, 1, 9)))]

    def go(self, cache: TopologyCache) -> Operation[None]:
        while self._left > 0:
            self._left -= 1
            yield Pause(self.draw.random())
            try:
                yield from self._order(cache)
            except ShardqError as exc:
                self.world.judge.reached[f"operator {type(exc).__name__}"] += 1

    def _order(self, cache: TopologyCache) -> Operation[None]:
        judge, draw = self.world.judge, self.draw
        id = draw.choice([*IDS, *(push.id for push in judge.pushes[-5:])])
        what = draw.choice(self._kinds)
        outcome: Outcome | None = None
        if what == "cancel":
            with judge.ending(id):
                outcome = yield from cancel(cache, id)
        elif what == "resize":
            yield from resize(cache, draw.choice(self._shards), rate=None, members=0)
        else:
            delay = draw.choice((0, 400))
            with judge.earlier(id, self.now_ms() + delay):
                outcome = yield from (reschedule if what == "reschedule" else requeue)(cache, id, -delay)
        judge.reached[f"{what} {outcome}"] += 1


class Mover(Process):
    """Completes changes of the number of shards, and moves what belongs elsewhere."""

    def go(self, cache: TopologyCache) -> Operation[None]:
        numbers = MoveTokens(f"{self.name}-{self.lives}")
        while True:
            try:
                yield from refresh(cache)
                yield from moved(cache, numbers)
            except (ShardqError, Stale):
                pass
            yield Pause(0.1)


def moved(cache: TopologyCache, numbers: MoveTokens) -> Operation[bool]:
    """One round of moving. Returns True when nothing is left to do."""
    topology = cache.topology
    if topology.pending is not None:
        yield from put_in_force(cache)
        return False
    if not topology.priors:
        return True
    for keys in (yield from unswept(cache, topology.span())):
        if cache.topology.epoch != topology.epoch:
            return False
        yield from sweep(cache, keys, numbers, MoveRate())
    return (yield from forget_priors(cache))


def drained(cache: TopologyCache, round: int) -> Operation[int]:
    """Dispatches, claims and acknowledges all there is. Returns how many it acknowledged."""
    done = 0
    for keys in cache.span():
        make_dispatch = partial(dispatch.dispatch, topics=TOPICS, limit=1000, max_attempts=99)
        yield from call_shards(cache, {0: (keys, make_dispatch)})
        token = f"last:{keys.shard}-{round}"
        shares = dict.fromkeys(TOPICS, 500)
        claim = partial(consume.claim, shares=shares, max=1000, lease_ms=LEASE_MS, token=token)
        (claimed,) = (yield from call_shards(cache, {0: (keys, claim)})).values()
        if isinstance(claimed, ShardqError):
            raise claimed
        if claimed.ids:
            settle = partial(consume.settle, acks=[SettleAck(id, token) for id in claimed.ids])
            yield from call_shards(cache, {0: (keys, settle)})
            done += len(claimed.ids)
    return done
