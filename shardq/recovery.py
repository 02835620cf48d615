"""Recovery from an old topology, and the upkeep of the stored one. Operations, for both drivers.

A shard may answer that the caller's topology is old (``Stale``), or that the shard was never opened (``Missing``). The
guard of every script answers so before anything is written. ``recover`` then refreshes or repairs the topology, and the
request is sent again. An earlier send whose answer was lost may have been executed under the older topology: such a
request is ``in_doubt``, and what takes its place is sent as after a lost answer, wherever it goes.

A repair may have to complete a change of the number of shards that somebody else began; so that is here, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from shardq.calls import control, replicas, resharding
from shardq.calls.answers import Missing, Stale
from shardq.calls.request import Call
from shardq.calls.resharding import MovingTask
from shardq.errors import ServerFault, ShardqError, Unanswered, Unavailable
from shardq.layout.keys import ShardKeys, control_keys
from shardq.layout.topology import Topology
from shardq.operation import Confirm, Histories, Many, Operation, Pause
from shardq.topology_cache import TopologyCache

T = TypeVar("T")

REPAIR_ROUND = 8
"""About half a second of rounds."""

ROUNDS = 40
"""Refreshes before giving up on a topology that stays behind its shards. With the pauses that is about 4 s, longer than
any change of topology needs to reach both.
"""


ARRIVAL_ROUNDS = 10
"""In each round the replicas have a second to confirm what has arrived."""


def create_topology(name: str, shards: int) -> Operation[Topology]:
    """Returns the topology of this name: the stored one, or a new one of ``shards`` shards, with all of them opened."""
    first = Topology(epoch=1, shards=shards)
    answer = yield control.declare(control_keys(name), 0, first.to_fields())
    topology = Topology.from_fields(answer.fields)
    if answer.changed:
        cache = TopologyCache(name, topology)
        yield from open_shards(cache, cache.span())
    return topology


def open_shards(
    cache: TopologyCache, shards: Iterable[ShardKeys], *, topology: Topology | None = None, anew: bool = False
) -> Operation[None]:
    """Writes an epoch and a copy of its topology to these shards, unless they have a newer one.

    No process is registered as waiting in a shard that was empty: those who wait are told to register again. ``anew``:
    the shards are to be used from now on.
    """
    known = cache.topology if topology is None else topology
    text = known.to_text()
    requests = {keys.shard: control.open_shard(keys, known.epoch, text, anew=anew) for keys in shards}
    empty: list[int] = []
    failure: ShardqError | None = None
    for shard, result in (yield Many(requests)):
        if isinstance(result, ShardqError):
            failure = failure or (None if isinstance(result, Stale) else result)
        elif result:
            empty.append(shard)
    if empty:
        # A process that does not hear it asks by itself after a while.
        with contextlib.suppress(ServerFault):
            yield control.tell_opened(cache.control, sorted(empty))
    if failure is not None:
        raise failure


def refresh(cache: TopologyCache) -> Operation[None]:
    """Reads the stored topology. One that is older than the known one (a failover lost the newer) is restored."""
    fields = yield control.read_topology(cache.control)
    stored = Topology.from_fields(fields) if fields else None
    known = cache.topology
    if stored is not None and stored.epoch >= known.epoch:
        cache.learn(stored)
        return
    yield from declare(cache, stored.epoch if stored else 0, known)


def declare(cache: TopologyCache, seen_epoch: int, topology: Topology) -> Operation[bool]:
    """Publishes a topology in place of the one of ``seen_epoch``, and learns what is published then. Returns True if it
    is ours.
    """
    answer = yield control.declare(cache.control, seen_epoch, topology.to_fields())
    cache.learn(Topology.from_fields(answer.fields))
    return bool(answer.changed)


def put_in_force(cache: TopologyCache) -> Operation[None]:
    """Completes an announced change of the number of shards. Anybody may call it, any number of times.

    Every shard is told before the change is published: once a producer knows the new number, no other can still push by
    the old one. Between the two, a producer that meets a shard already told waits for the publication.

    First, what is still moving since an earlier change arrives, and nothing more is taken. So tasks move in one
    direction only, the one in which they are looked for, and none gets into a shard that was found swept.
    """
    announced = cache.topology
    if announced.pending is None:
        return
    following = announced.in_force()
    span = [cache.keys(shard) for shard in following.span()]
    yield from open_shards(cache, span, topology=announced)
    yield from _wait_for_arrival(cache, span)
    yield from open_shards(cache, span, topology=following)
    yield from declare(cache, announced.epoch, following)


def _wait_for_arrival(cache: TopologyCache, shards: Sequence[ShardKeys]) -> Operation[None]:
    """Delivers everything that is moving out of these shards."""
    for _ in range(ARRIVAL_ROUNDS):
        left = []
        for source, count in (yield Many({keys: resharding.moving_tasks(keys) for keys in shards})):
            if isinstance(count, ShardqError):
                raise count
            if count:
                left.append(source)
        if not left:
            return
        for source in left:
            yield from deliver_all(cache, source)
    raise Unavailable(
        "tasks that were moved are not on all replicas yet, and until then the number of shards can't change again: "
        "see that the replicas are connected and keep up (`shardq stats`), and repeat it"
    )


def deliver_all(cache: TopologyCache, source: ShardKeys) -> Operation[bool]:
    """Delivers what is moving out of a shard. Returns True if there was something."""
    found = False
    cursor = ""
    while cursor != "0":
        cursor, moving_tasks = yield resharding.scan_moved(source, cursor or "0", count=resharding.SCAN)
        if moving_tasks:
            found = True
            yield from deliver(cache, source, moving_tasks)
    return found


def deliver(cache: TopologyCache, source: ShardKeys, moving_tasks: Sequence[MovingTask]) -> Operation[None]:
    """Delivers moving tasks that were taken, under whatever topology, and clears at the source those that are on the
    replicas of their target. A later call delivers the others.
    """
    targets = [cache.keys(target) for target in sorted({moving_task.target for moving_task in moving_tasks})]
    barrier = ReplicaBarrier(cache)
    yield from barrier.behind(targets)
    yield from put(cache, moving_tasks)
    behind = yield from barrier.behind(targets)
    arrived = resharding.loads(moving_task for moving_task in moving_tasks if moving_task.target not in behind)
    clears: list[Part[None]] = [(source, partial(resharding.clear, moving_tasks=some)) for _, some in arrived]
    yield from call_shards(cache, clears)


def put(cache: TopologyCache, moving_tasks: Iterable[MovingTask]) -> Operation[None]:
    """Puts moving tasks that were taken into their targets, under whatever topology."""
    puts: list[Part[None]] = [
        (cache.keys(target), partial(resharding.put, moving_tasks=some))
        for target, some in resharding.loads(moving_tasks)
    ]
    yield from call_shards(cache, puts)


class ReplicaBarrier:
    """Knows what is on replicas. What was written to a shard between two questions of one barrier is on its replicas if
    the second says so, whatever became of its node in between.
    """

    def __init__(self, cache: TopologyCache) -> None:
        self._cache = cache
        self._histories: dict[int, str] = {}
        """Shard → its replication history, as last confirmed."""

    def knows(self, shard: int) -> bool:
        return shard in self._histories

    def behind(self, shards: Iterable[ShardKeys]) -> Operation[set[int]]:
        """Those of the shards whose replicas may lack something; among them all that are asked about for the first
        time.
        """
        asked, epoch = list(shards), self._cache.topology.epoch
        histories: Histories = yield Confirm([replicas.seal(keys.meta, keys.slot, epoch) for keys in asked])
        behind = set()
        for keys in asked:
            history = histories[keys.slot]
            if history is None or self._histories.get(keys.shard) != history:
                behind.add(keys.shard)
            if history is not None:
                self._histories[keys.shard] = history
        return behind


def recover(
    cache: TopologyCache, keys: ShardKeys, fault: ShardqError, round: int, *, in_doubt: bool = False
) -> Operation[None]:
    """Recovers from the ``fault`` of a call on a shard, so that it can be sent again, or raises the fault.

    ``in_doubt``: the call may have been executed. Then Unanswered is raised in place of Unavailable.
    """
    if not isinstance(fault, (Stale, Missing)):
        raise fault
    try:
        yield from _recover(cache, keys, fault, round)
    except ServerFault as exc:
        if not in_doubt or isinstance(exc, Unanswered):
            raise
        raise Unanswered(
            f"an answer of shard {keys.shard} was lost, and it could not be asked again: {exc}; the order may or may "
            "not have been carried out: look, or repeat it where that is safe"
        ) from exc


def _recover(cache: TopologyCache, keys: ShardKeys, fault: Stale | Missing, round: int) -> Operation[None]:
    if round >= ROUNDS:
        raise Unavailable(
            f"the stored topology of {cache.name!r} and its shard {keys.shard} do not agree: {fault}. "
            "A failover or a restore may have lost writes, and no repair of it has lasted: see that the server keeps "
            "what is written, and try again"
        ) from fault
    yield from refresh(cache)
    if isinstance(fault, Missing):
        if keys.shard in cache.topology.span():
            yield from open_shards(cache, [keys])
    elif cache.topology.epoch < fault.epoch:
        # The change is just being published. After a while it counts as interrupted, or lost by a failover.
        yield Pause(min(0.1, 0.002 * 2.0**round))
        if round >= REPAIR_ROUND:
            yield from _repair(cache, keys, fault.epoch)


def _repair(cache: TopologyCache, keys: ShardKeys, epoch: int) -> Operation[None]:
    """Repairs a control slot that lacks a topology of this epoch, which a shard has seen: completes it, or restores it
    from a copy, the shard's or another's. If nobody has a copy that topology is lost, and the present one takes its
    place.
    """
    known = cache.topology
    if known.pending is not None:
        yield from put_in_force(cache)
        return
    own = yield control.read_copy(keys)
    if not (newest := _newest([own], known)):
        answers = yield Many({other: control.read_copy(other) for other in cache.span()})
        newest = _newest([copy for _, copy in answers if isinstance(copy, bytes)], known)
    if newest:
        yield from declare(cache, known.epoch, newest)
        return
    # Past the lost topology, and the one that comes in force after it: whoever knows them must learn this one.
    following = msgspec.structs.replace(known, epoch=epoch + 2)
    if (yield from declare(cache, known.epoch, following)):
        yield from open_shards(cache, cache.span())


def _newest(copies: Iterable[bytes | None], known: Topology) -> Topology | None:
    """The newest of some copies, if it is newer than the known one."""
    newest = max((Topology.from_text(copy) for copy in copies if copy), key=lambda copy: copy.epoch, default=known)
    return newest if newest.epoch > known.epoch else None


Make = Callable[[ShardKeys, int], Call[T]]
"""Makes a call for a shard under the topology of an epoch."""


def resending(make: Make[T]) -> Make[T]:
    """Makes the same calls in the form in which they are sent after a lost answer."""
    return lambda keys, epoch: make(keys, epoch).after_loss()


def call_shard(cache: TopologyCache, shard: Callable[[], ShardKeys], make: Make[T]) -> Operation[T]:
    """Makes one call on the shard that ``shard`` names under the present topology, again under a newer one."""
    round = 0
    while True:
        epoch, keys = cache.topology.epoch, shard()
        call = make(keys, epoch)
        try:
            return (yield call)  # type: ignore[no-any-return]  # what a yield gives back is untyped
        except ShardqError as fault:
            yield from recover(cache, keys, fault, round, in_doubt=call.in_doubt)
        if call.in_doubt:
            make = resending(make)
        round += 1


Part = tuple[ShardKeys, Make[T]]


def call_shards(
    cache: TopologyCache, parts: Sequence[Part[T]], *, broken: list[tuple[Part[T], ShardqError]] | None = None
) -> Operation[list[T]]:
    """Makes calls on given shards, under whatever topology, in no order. Calls refused by the guard, before anything
    was written, are sent again. Failed parts are noted in ``broken`` if it is given; otherwise the first error is
    raised when all the rest is done.
    """
    done: list[T] = []
    failures: list[tuple[Part[T], ShardqError]] = []
    waiting: list[tuple[Part[T], Make[T]]] = [(part, part[1]) for part in parts]
    """The parts as given, and how their calls are made now."""
    round = 0
    while waiting:
        epoch = cache.topology.epoch
        sent = [(part, make, make(part[0], epoch)) for part, make in waiting]
        waiting = []
        faults: dict[int, tuple[ShardKeys, ShardqError]] = {}
        doubted: set[int] = set()
        for number, result in (yield Many({number: call for number, (_, _, call) in enumerate(sent)})):
            part, make, call = sent[number]
            if isinstance(result, (Stale, Missing)):
                faults[part[0].shard] = part[0], result
                if call.in_doubt:
                    doubted.add(part[0].shard)
                    make = resending(make)
                waiting.append((part, make))
            elif isinstance(result, ShardqError):
                failures.append((part, result))
            else:
                done.append(result)
        for keys, fault in faults.values():
            try:
                yield from recover(cache, keys, fault, round, in_doubt=keys.shard in doubted)
            except ShardqError as exc:
                failures += [(part, exc) for part, _ in waiting if part[0].shard == keys.shard]
                waiting = [(part, make) for part, make in waiting if part[0].shard != keys.shard]
        round += 1
    if broken is not None:
        broken += failures
    elif failures:
        raise failures[0][1]
    return done


def call_every_shard(
    cache: TopologyCache, make: Make[T], *, broken: dict[int, ShardqError] | None = None
) -> Operation[list[tuple[ShardKeys, T]]]:
    """Makes one call on every shard. Returns the results by shard. Shards that can't be asked are noted in ``broken``
    and left out if it is given; otherwise the first error is raised.
    """
    done: dict[int, T] = {}
    skipped: dict[int, ShardqError] = {} if broken is None else broken
    makes: dict[int, Make[T]] = {}
    """Shard whose answer was lost → how its call is made now."""
    round = 0
    while True:
        epoch = cache.topology.epoch
        calls = {
            keys: makes.get(keys.shard, make)(keys, epoch)
            for keys in cache.span()
            if keys.shard not in done and keys.shard not in skipped
        }
        faults: list[tuple[ShardKeys, ShardqError, bool]] = []
        for keys, result in (yield Many(calls)):
            call = calls[keys]
            if call.in_doubt:
                makes[keys.shard] = resending(make)
            if broken is not None and isinstance(result, ShardqError) and not isinstance(result, (Stale, Missing)):
                broken[keys.shard] = result
            elif isinstance(result, ShardqError):
                faults.append((keys, result, call.in_doubt))
            else:
                done[keys.shard] = result
        if not faults:
            return [(keys, done[keys.shard]) for keys in cache.span() if keys.shard in done]
        for keys, fault, in_doubt in faults:
            yield from recover(cache, keys, fault, round, in_doubt=in_doubt)
        round += 1
