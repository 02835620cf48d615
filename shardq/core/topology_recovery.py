"""Recovery from an old topology. Operations, for both drivers.

A shard may answer that the caller's topology is old (``Stale``), that it missed a change itself (``Behind``), or that
it was never opened (``Missing``). The guard of every script answers so before anything is written. A ``Recovery`` then
refreshes or repairs the topology, and the request is sent again. An earlier send whose answer was lost may have been
executed under the older topology: such a request is ``in_doubt``, and what takes its place is sent as after a lost
answer, wherever it goes.

Calls on given shards go by ``call_shards``; a search for an id, from shard to shard, by ``walk_shards``.

A repair may have to complete a change of the number of shards that another process began; so that is here, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from shardq.core.calls import node_info, resharding
from shardq.core.calls.request import Behind, Call, Command, Epoch, Missing, Stale
from shardq.core.calls.resharding import MovingTask
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Topology
from shardq.core.operation import Many, Operation, Pause, values
from shardq.core.replicas import ReplicaBarrier
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_upkeep import AwaitsRepair, declare, may_repair, newest_copy, open_shards, refresh
from shardq.errors import AccessDenied, AnotherEngine, EngineClosed, ServerFault, ShardqError, Unanswered, Unavailable

K = TypeVar("K")
T = TypeVar("T")

REPAIR_ROUND = 8  # about half a second of rounds

ANNOUNCED_PAUSE_S = 0.05  # the time between two looks at an announced change: most come in force at the first

ROUNDS = 40
"""Refreshes before giving up on a topology that stays behind its shards. With the pauses that is about 4 s, longer than
any change of topology needs to reach both.
"""


MOST_SENT = 50_000
"""Tasks that are put before the disks of their targets are waited for: a second with ``appendfsync everysec``."""

ARRIVAL_ROUNDS = 10  # in each round the replicas have a second to confirm what has arrived

REPLICAS_BEHIND = (
    "nothing is changed: tasks that were moved are not on all replicas yet; an announced resize waits for that, and so "
    "do pauses, limits and routes: see that the replicas are connected and keep up (`shardq stats`), and repeat it"
)

TAKEN_ROUNDS = 3  # in each round the replicas have a second to confirm what was taken


def put_in_force(cache: TopologyCache) -> Operation[bool]:
    """Completes an announced change of the number of shards. Any process may call it, any number of times. Returns
    False if it was announced on a topology that a failover had taken back: the one that followed it is restored then.

    Every shard is told before the change is published: once a producer knows the new number, no other can still push by
    the old one. Between the two, a producer that meets a shard already told waits for the publication.

    First, what is still moving since an earlier change arrives, and nothing more is taken. So tasks move in one
    direction only, the one in which they are looked for, and none gets into a shard that was found swept.
    """
    announced = cache.topology
    if announced.pending is None:
        return True
    following = announced.in_force()
    span = [cache.keys(shard) for shard in following.span()]
    ahead = yield from open_shards(cache, span)
    if cache.topology.stamp != announced.stamp:
        return False  # a server came back older: the change goes on under the topology that looks at that, too
    if ahead is not None and ahead[1].stamp != following.stamp:
        # published before the shard was told: so it is in force, and another process was first, or it is lost
        yield from refresh(cache)
        if cache.topology.stamp == announced.stamp:
            yield from _repair(cache, *ahead)
            return False
        return True
    yield from _wait_for_arrival(cache, span)
    yield from open_shards(cache, span, topology=following)
    yield from declare(cache, announced, following)
    return True


def catch_up(cache: TopologyCache, keys: ShardKeys, stale: Stale) -> Operation[None]:
    """Returns when the known topology is not older than the one that this shard has seen. What was published before
    may have followed one that a failover had taken back, and may not be in force now.
    """
    recovery = Recovery(cache)
    while cache.topology.epoch <= stale.epoch and cache.topology.stamp != stale.stamp:
        yield from recovery.recover(keys, stale)


def topology_in_force(cache: TopologyCache) -> Operation[Topology]:
    """Returns the present topology once no change of the number of shards is announced. After a while an announced one
    counts as interrupted, and is completed.
    """
    round = 0
    while (known := cache.topology).pending is not None:
        yield Pause(ANNOUNCED_PAUSE_S)
        yield from refresh(cache) if round < REPAIR_ROUND else put_in_force(cache)
        round += 1
    return known


def _wait_for_arrival(cache: TopologyCache, shards: Sequence[ShardKeys]) -> Operation[None]:
    """Delivers everything that is moving out of these shards."""
    are_behind = False
    try:
        for _ in range(ARRIVAL_ROUNDS):
            counts: dict[ShardKeys, int] = values(
                (yield Many({keys: resharding.moving_tasks(keys) for keys in shards}))
            )
            found = False
            for source, count in counts.items():
                try:
                    found = (count > 0 and (yield from deliver_all(cache, source))) or found
                except NotConfirmed:
                    found = are_behind = True
            if not found:
                return
    except Unavailable as exc:
        if not are_behind:
            raise
        # the caller's time is over, and the server that was asked last is not at fault
        raise Unavailable(REPLICAS_BEHIND) from exc
    raise Unavailable(REPLICAS_BEHIND)


def deliver_all(cache: TopologyCache, source: ShardKeys) -> Operation[bool]:
    """Delivers what is moving out of a shard. Returns True if there was something. What can't be read stays there: no
    other task waits for it. Raises NotConfirmed if the replicas of the shard do not have what is moving as taken.
    """
    found, is_asked, cursor = False, False, ""
    barrier, targets = ReplicaBarrier(cache), ReplicaBarrier(cache)
    sent: list[MovingTask] = []
    while cursor != "0":
        following, moving_tasks = yield resharding.scan_moved(source, cursor or "0", count=resharding.SCAN)
        if moving_tasks and not is_asked:
            is_asked = True
            yield from barrier.behind([source])
            continue  # it is read again, after the first question
        if moving_tasks:
            found = True
            if (yield from barrier.behind([source])):
                raise NotConfirmed([source.shard])
            yield from _met(cache, targets, moving_tasks)
            moving_tasks = yield from _mark_again(cache, source, moving_tasks)
            yield from put(cache, moving_tasks)
            sent += [moving_task.receipt for moving_task in moving_tasks]
        cursor = following
        if len(sent) >= MOST_SENT or (sent and cursor == "0"):
            yield from _clear_safe(cache, source, targets, sent)
            sent = []
    return found


def _met(cache: TopologyCache, barrier: ReplicaBarrier, moving_tasks: Iterable[MovingTask]) -> Operation[None]:
    """Asks about the targets of these for the first time: before anything is put there."""
    targets = {moving_task.target for moving_task in moving_tasks}
    if new := [cache.keys(target) for target in sorted(targets) if not barrier.knows(target)]:
        yield from barrier.behind(new, disk=True)  # no history from before a restart a moment ago


def _clear_safe(
    cache: TopologyCache, source: ShardKeys, barrier: ReplicaBarrier, sent: Sequence[MovingTask]
) -> Operation[set[int]]:
    """Clears at the source those that are safe at their target: on its replicas, and on its disk. A later call delivers
    the others. Returns the shards that these go to.
    """
    targets = [cache.keys(target) for target in sorted({moving_task.target for moving_task in sent})]
    behind = yield from barrier.behind(targets, disk=True)
    arrived = resharding.loads(moving_task for moving_task in sent if moving_task.target not in behind)
    clears = [partial(resharding.clear, moving_tasks=some) for _, some in arrived]
    results = yield from call_shards(cache, {number: (source, clear) for number, clear in enumerate(clears)})
    values(results.items())
    return behind


class NotConfirmed(Unavailable):
    """The replicas of these shards do not confirm what was moved. Tasks wait for that where they are."""

    def __init__(self, shards: Iterable[int]) -> None:
        named = ", ".join(map(str, sorted(shards)))
        super().__init__(
            f"tasks that move wait for the replicas, or the disk, of shard {named}, which do not confirm what was "
            "written there: see that replicas are connected and keep up (`shardq stats`), and that the disk does"
        )


def taken(cache: TopologyCache, source: ShardKeys, look: Callable[[], Command[T]]) -> Operation[T]:
    """Looks at what is moving out of a shard, and returns what is seen once the replicas of the shard have it as taken.
    Without that, no task may be put where it goes: a failover would bring it back, and it would be in two shards.
    Raises NotConfirmed if they do not have it in three seconds, or in the caller's time.
    """
    barrier = ReplicaBarrier(cache)
    yield from barrier.behind([source])
    is_behind = False
    try:
        for _ in range(TAKEN_ROUNDS):
            seen: T = yield look()
            if not seen or not (yield from barrier.behind([source])):
                return seen
            is_behind = True
    except Unavailable as exc:
        if not is_behind:
            raise
        raise NotConfirmed([source.shard]) from exc
    raise NotConfirmed([source.shard])


def deliver(cache: TopologyCache, source: ShardKeys, moving_tasks: Sequence[MovingTask]) -> Operation[set[int]]:
    """Delivers moving tasks that were ``taken``, under whatever topology, and clears those that are safe. Returns the
    shards that the others go to.
    """
    barrier = ReplicaBarrier(cache)
    yield from _met(cache, barrier, moving_tasks)
    moving_tasks = yield from _mark_again(cache, source, moving_tasks)
    yield from put(cache, moving_tasks)
    return (yield from _clear_safe(cache, source, barrier, moving_tasks))


def put_or_deliver(cache: TopologyCache, source: ShardKeys, moving_tasks: Sequence[MovingTask]) -> Operation[None]:
    """Puts moving tasks that were ``taken`` into their targets. Those that could be put once more after a restart are
    cleared, too: what is done to them next must not be undone by that. Raises NotConfirmed where that can't be.
    """
    volatile = [moving_task for moving_task in moving_tasks if moving_task.run]
    yield from put(cache, [moving_task for moving_task in moving_tasks if not moving_task.run])
    if volatile and (behind := (yield from deliver(cache, source, volatile))):
        raise NotConfirmed(behind)


def _mark_again(
    cache: TopologyCache, source: ShardKeys, moving_tasks: Sequence[MovingTask]
) -> Operation[list[MovingTask]]:
    """Marks tasks again whose target has neither replicas nor an append-only file, and was started since: it may have
    lost the mark, and the task with it. Returns the tasks to put: without those that another process has put and
    cleared meanwhile, which may be done or cancelled by now.
    """
    kept = [moving_task for moving_task in moving_tasks if not moving_task.run]
    for target, some in resharding.loads(moving_task for moving_task in moving_tasks if moving_task.run):
        keys = cache.keys(target)
        run: str = yield node_info.run_id(keys.slot)
        lost: dict[str, list[MovingTask]] = {}
        for moving_task in some:
            if moving_task.run == run:
                kept.append(moving_task)
            else:
                lost.setdefault(moving_task.number, []).append(moving_task)
        marks = {
            number: (keys, partial(resharding.reserve, number=number, ids=[each.id for each in each_of]))
            for number, each_of in lost.items()
        }
        values((yield from call_shards(cache, marks)).items())
        for each_of in lost.values():
            looks = values((yield Many((each, resharding.moving_task_of(source, each.id)) for each in each_of)))
            kept += [each for each, there in looks.items() if there is not None and there.number == each.number]
    return kept


def put(cache: TopologyCache, moving_tasks: Sequence[MovingTask]) -> Operation[None]:
    """Puts moving tasks that were ``taken`` into their targets, under whatever topology."""
    puts = [
        (cache.keys(target), partial(resharding.put, moving_tasks=some))
        for target, some in resharding.loads(moving_tasks)
    ]
    values((yield from call_shards(cache, dict(enumerate(puts)))).items())


Refusal = Stale | Behind | Missing
REFUSALS = (Stale, Behind, Missing)
"""The guard's answers to a call under a topology that is not the shard's. Nothing was written."""


@dataclass(slots=True, eq=False)
class Routed(Generic[T]):
    """A call on its way to a shard, and the key of that call. Subclasses say what it is about."""

    keys: ShardKeys
    call: Call[T]


R = TypeVar("R", bound=Routed[Any])


@dataclass(slots=True, eq=False)
class Recovery:
    """The recovery of one operation from an old topology. It goes by rounds: each takes longer than the one before, and
    the later ones repair what no other process has.
    """

    _cache: TopologyCache
    rounds: int = field(default=0, init=False)

    def over(self) -> None:
        """Forgets the rounds so far, when a trip met no refusal: for loops, whose next one is a first one."""
        self.rounds = 0

    def recover(self, keys: ShardKeys, refusal: Refusal, *, in_doubt: bool = False) -> Operation[None]:
        """Makes one round after a shard's refusal of a call, so that it can be sent again. Raises why it can't be.

        ``in_doubt``: an earlier send may have been executed. Then Unanswered is raised in place of Unavailable.
        """
        failed = yield from self.recover_all([(keys, refusal)])
        if failed:
            raise _told(failed[keys.shard], keys, in_doubt=in_doubt)

    def recover_all(self, refusals: Iterable[tuple[ShardKeys, Refusal]]) -> Operation[dict[int, ShardqError]]:
        """Makes one round after the refusals of several shards. Returns, by shard, why calls can't be sent again."""
        round, self.rounds = self.rounds, self.rounds + 1
        failed: dict[int, ShardqError] = {}
        for keys, refusal in {keys.shard: (keys, refusal) for keys, refusal in refusals}.values():
            try:
                yield from _recover(self._cache, keys, refusal, round)
            except EngineClosed:
                raise
            except ShardqError as exc:
                failed[keys.shard] = exc
        return failed

    def send(
        self, calls: Iterable[tuple[R, Call[Any]]], told: Callable[[R, Any], None] | None = None
    ) -> Operation[list[tuple[R, Any]]]:
        """Sends calls together, and returns each with its result or error. A refusal among these has been recovered
        from: its call can be sent again. ``told``: called at each answer, see ``Many``.
        """
        answers = yield Many(calls, told=told)
        for _, result in answers:
            if not isinstance(result, ShardqError):
                self._cache.heard_at = time.monotonic()
                break
        refusals = [(routed.keys, result) for routed, result in answers if isinstance(result, REFUSALS)]
        if refusals and (failed := (yield from self.recover_all(refusals))):
            return [
                (routed, _told(failed[routed.keys.shard], routed.keys, in_doubt=routed.call.in_doubt))
                if isinstance(result, REFUSALS) and routed.keys.shard in failed
                else (routed, result)
                for routed, result in answers
            ]
        return answers  # type: ignore[no-any-return]  # what a yield gives back is untyped


def _told(error: ShardqError, keys: ShardKeys, *, in_doubt: bool) -> ShardqError:
    """The error of a call that was refused and can't be sent again."""
    if not in_doubt or isinstance(error, Unanswered) or not isinstance(error, ServerFault):
        return error
    unanswered = Unanswered(
        f"an answer of shard {keys.shard} was lost, and it could not be asked again: {error}; the order may or may "
        "not have been carried out: look, or repeat it where that is safe"
    )
    unanswered.__cause__ = error
    return unanswered


def _recover(cache: TopologyCache, keys: ShardKeys, fault: Refusal, round: int) -> Operation[None]:
    if round >= ROUNDS:
        if cache.awaits_repair:
            raise AwaitsRepair(cache.name) from fault
        raise Unavailable(
            f"the stored topology of {cache.name!r} and its shard {keys.shard} do not agree: {fault}. "
            "A failover or a restore may have lost writes, and no repair of it has lasted: see that the server keeps "
            "what is written, and try again"
        ) from fault
    yield from refresh(cache)
    known = cache.topology
    if isinstance(fault, Missing | Behind):
        if isinstance(fault, Behind) or keys.shard in known.span():
            try:
                yield from open_shards(cache, [keys])
            except AwaitsRepair:
                yield Pause(_pause_s(round))
            except AccessDenied:
                # who may not tell it waits for the process that made the change, which does
                if round >= REPAIR_ROUND:
                    raise
                yield Pause(_pause_s(round))
    elif fault.stamp.engine and fault.stamp.engine != known.engine:
        raise AnotherEngine(cache.name, known=known.engine, found=fault.stamp.engine, shard=keys.shard)
    elif known.epoch <= fault.epoch and known.stamp != fault.stamp:
        # The change is just being published. After a while it counts as interrupted, or lost by a failover.
        yield Pause(_pause_s(round))
        if round >= REPAIR_ROUND and (yield from may_repair(cache)):
            yield from _repair(cache, keys, fault)


def _pause_s(round: int) -> float:
    return min(0.1, 0.002 * 2.0**round)


def _repair(cache: TopologyCache, keys: ShardKeys, stale: Stale) -> Operation[None]:
    """Repairs a control slot that lacks a topology that a shard has seen: completes it, or restores it from a copy, the
    shard's or another's. If no shard has a copy, or another change has taken its epoch, that topology is lost, and the
    present one takes its place.
    """
    known, epoch = cache.topology, stale.epoch
    if known.pending is not None and stale.stamp == known.in_force().stamp:
        yield from put_in_force(cache)
        return
    newest = (yield from newest_copy([keys], known)) or (yield from newest_copy(cache.span(), known))
    # Without a copy: past the lost topology, and the one that comes in force after it, as processes that know them must
    # learn this one.
    following = newest.widened(known.numbers) if newest else known.widened((), epoch=epoch + 2)
    if (yield from declare(cache, known, following)):
        yield from open_shards(cache, cache.span())


Make = Callable[[ShardKeys, Epoch], Call[T]]  # makes a call for a shard under the topology of an epoch

Request = tuple[ShardKeys, Make[T]]  # a call for a given shard, under whatever topology


@dataclass(slots=True, eq=False)
class _Keyed(Routed[T], Generic[K, T]):
    key: K


def call_shards(cache: TopologyCache, requests: Mapping[K, Request[T]]) -> Operation[dict[K, T | ShardqError]]:
    """Makes calls on given shards, in no order. Those that are refused are sent again. Returns results and errors by
    key.
    """
    results: dict[K, T | ShardqError] = {}
    recovery, left, doubted = Recovery(cache), dict(requests), set[K]()
    while left:
        epoch = cache.topology.stamp
        calls: list[tuple[_Keyed[K, T], Call[T]]] = []
        for key, (keys, make) in left.items():
            call = make(cache.keys(keys.shard), epoch)  # those of the engine as it is now: it may have taken up keys
            if key in doubted:
                call = call.after_loss()
            calls.append((_Keyed(keys, call, key), call))
        for routed, result in (yield from recovery.send(calls)):
            if not isinstance(result, REFUSALS):
                results[routed.key] = result
                del left[routed.key]
            elif routed.call.in_doubt:
                doubted.add(routed.key)
    return results


def call_shard(cache: TopologyCache, keys: ShardKeys, make: Make[T]) -> Operation[T]:
    """Makes one call on a given shard."""
    results = yield from call_shards(cache, {keys.shard: (keys, make)})
    return values(results.items())[keys.shard]


def call_every_shard(cache: TopologyCache, make: Make[T]) -> Operation[list[tuple[ShardKeys, T | ShardqError]]]:
    """Makes one call on every shard, also of a topology that comes meanwhile. Returns results and errors, by shard."""
    results: dict[int, T | ShardqError] = {}
    span = cache.span()
    while new := {keys.shard: (keys, make) for keys in span if keys.shard not in results}:
        results |= yield from call_shards(cache, new)
        span = cache.span()
    return [(keys, results[keys.shard]) for keys in span]


@dataclass(slots=True, eq=False)
class CallChain(Recovery):
    """Calls about one thing on one shard after another. Once the answer of one was lost, all later ones are sent, and
    their answers read, as after that, wherever they go.
    """

    _in_doubt: bool
    _last: tuple[ShardKeys, Call[Any]] | None = field(default=None, init=False)

    def next(self, keys: ShardKeys, call: Call[T]) -> Call[T]:
        """Returns the call in the form in which it is to be sent now."""
        if self._in_doubt or (self._last is not None and self._last[1].in_doubt):
            self._in_doubt, call = True, call.after_loss()
        self._last = keys, call
        return call

    def refused(self, refusal: Refusal) -> Operation[None]:
        """Recovers from the refusal of the last call."""
        assert self._last is not None, "a refusal follows a call"
        keys, call = self._last
        yield from self.recover(keys, refusal, in_doubt=call.in_doubt)

    def told(self, error: ShardqError) -> ShardqError:
        """The error that ends the chain: of its last call, or of what was to be done before the next one."""
        assert self._last is not None, "an error follows a call"
        keys, call = self._last
        return _told(error, keys, in_doubt=self._in_doubt or call.in_doubt)


def walk_shards(
    cache: TopologyCache, walk: Callable[[CallChain], Operation[T]], *, in_doubt: bool = False
) -> Operation[T]:
    """Carries out a walk over the shards that the topology names; again from its beginning when one refuses a call.

    ``in_doubt``: an earlier send may have been executed.
    """
    chain = CallChain(cache, in_doubt)
    while True:
        try:
            return (yield from walk(chain))
        except REFUSALS as refusal:
            yield from chain.refused(refusal)
        except ServerFault as exc:
            told = chain.told(exc)
            raise told from told.__cause__
