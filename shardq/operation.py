"""Operations of several dependent trips, written once and driven twice.

An operation is a generator. It yields a request and is resumed with its result, or with its ShardqError thrown in;
or it yields ``Many`` requests and gets a list of (request, result or error); or a ``Confirm``, and gets what replicas
have; or a ``Pause``. ``run`` drives it on the sync driver, ``arun`` on the asyncio one; they differ in the awaiting
only.

Here also: what to do when a shard says that the caller's topology is old (``Stale``) or that it was never opened
(``Missing``). Both come from the guard of every script, before anything was written; but an earlier send, whose answer
was lost, may have been executed by the older topology. Such a request is ``in_doubt``, and what takes its place is sent
as after a lost answer, wherever it goes. And, because that may need it: the completion of a change of the number of
shards, by whoever comes by.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from shardq.atlas import Atlas
from shardq.calls import control, copies, grow
from shardq.calls.answers import Missing, Stale
from shardq.calls.grow import Parcel
from shardq.calls.request import Call, Command
from shardq.errors import EngineClosed, ServerFault, ShardqError, Unanswered, Unavailable
from shardq.layout.keys import ShardKeys, control_keys
from shardq.layout.topology import Topology

if TYPE_CHECKING:
    from shardq.drivers.aio import AsyncDriver

T = TypeVar("T")

REPAIR_ROUND = 8
"""After some half a second."""

ROUNDS = 40
"""Refreshes before giving up on a topology that stays behind its shards: with the pauses about 4 s, longer than any
change of topology needs to reach both."""


ARRIVAL_ROUNDS = 3
"""In each the replicas have a second to confirm what has arrived."""


@dataclass(frozen=True, slots=True)
class Many(Generic[T]):
    """Requests that do not wait for each other; taken lazily, so that later ones are made while earlier ones run."""

    requests: Iterable[Command[T]]

    @property
    def alone(self) -> Command[T] | None:
        """The only request, where there is one: most claims and acks are one, and need no loop over the nodes."""
        requests = self.requests
        return requests[0] if isinstance(requests, list) and len(requests) == 1 else None


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Confirm:
    """Asks if everything that was written on some nodes until now is on their replicas, too: answered by slot, with
    the name of the history that the node's writes are part of, or None while a replica is behind. After a failover the
    history has another name: what was written before it may be lost. A node without replicas has nothing to wait for.
    """

    seals: Sequence[Call[None]]
    """One for each slot that is asked for: a write to wait for."""


Histories = dict[int, str | None]

Answered = list[tuple[Command[T], T | ShardqError]]
Operation = Generator[Command[Any] | Many[Any] | Confirm | Pause, Any, T]


class Carrier(Protocol):
    """What carries requests for ``run``: the sync driver, or what stands in its place."""

    def call(self, call: Command[T], timeout: float | None = None) -> T: ...

    def call_all(
        self, calls: Iterable[Command[T]], *, timeout: float | None = None
    ) -> Iterator[tuple[Command[T], T | ShardqError]]: ...

    def confirm(self, seals: Sequence[Call[None]]) -> Histories: ...


def run(driver: Carrier, operation: Operation[T], timeout: float | None = None) -> T:
    """Carries an operation out. ``timeout`` bounds each trip; None is the driver's default."""
    try:
        step = next(operation)
        while True:
            try:
                if isinstance(step, Command):
                    result: Any = driver.call(step, timeout=timeout)
                elif isinstance(step, Many):
                    alone = step.alone
                    if alone is None:
                        result = list(driver.call_all(step.requests, timeout=timeout))
                    else:
                        try:
                            result = [(alone, driver.call(alone, timeout=timeout))]
                        except ShardqError as exc:
                            result = [(alone, _told(exc))]
                elif isinstance(step, Confirm):
                    result = driver.confirm(step.seals)
                else:
                    time.sleep(step.seconds)
                    result = None
            except ShardqError as exc:
                step = operation.throw(exc)
            else:
                step = operation.send(result)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # a generator's value is untyped at StopIteration


# a bound of each trip, handed on to the driver: cancelling from outside would not tell sent from unsent
async def arun(driver: AsyncDriver, operation: Operation[T], timeout: float | None = None) -> T:  # noqa: ASYNC109
    """The same on asyncio."""
    try:
        step = next(operation)
        while True:
            try:
                if isinstance(step, Command):
                    result: Any = await driver.call(step, timeout=timeout)
                elif isinstance(step, Many):
                    alone = step.alone
                    if alone is None:
                        result = [answer async for answer in driver.call_all(step.requests, timeout=timeout)]
                    else:
                        try:
                            result = [(alone, await driver.call(alone, timeout=timeout))]
                        except ShardqError as exc:
                            result = [(alone, _told(exc))]
                elif isinstance(step, Confirm):
                    result = await driver.confirm(step.seals)
                else:
                    # here, so that programs of threads need not load it; pauses are rare
                    import asyncio

                    await asyncio.sleep(step.seconds)
                    result = None
            except ShardqError as exc:
                step = operation.throw(exc)
            else:
                step = operation.send(result)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # a generator's value is untyped at StopIteration


def _told(error: ShardqError) -> ShardqError:
    """The result of a request among many; a closed engine is one of all, and raised."""
    if isinstance(error, EngineClosed):
        raise error
    return error


def created(name: str, shards: int) -> Operation[Topology]:
    """The topology of this name: the stored one, or a new one of ``shards`` shards with all of them opened."""
    first = Topology(epoch=1, shards=shards)
    answer = yield control.declare(control_keys(name), 0, first.to_fields())
    topology = Topology.from_fields(answer.fields)
    if answer.changed:
        atlas = Atlas(name, topology)
        yield from opened(atlas, atlas.span())
    return topology


def opened(
    atlas: Atlas, shards: Iterable[ShardKeys], *, topology: Topology | None = None, anew: bool = False
) -> Operation[None]:
    """Brings an epoch (the present one) with a copy of its topology to these shards. A newer one there is left.

    Where nothing was, nobody's name is: who waits is told to leave it again. ``anew``: they are to be used from now on.
    """
    known = atlas.topology if topology is None else topology
    text = known.to_text()
    asked = [(keys.shard, control.open_shard(keys, known.epoch, text, anew=anew)) for keys in shards]
    numbers = {id(request): shard for shard, request in asked}
    empty: list[int] = []
    failure: ShardqError | None = None
    for request, result in (yield Many([request for _, request in asked])):
        if isinstance(result, ShardqError):
            failure = failure or (None if isinstance(result, Stale) else result)
        elif result:
            empty.append(numbers[id(request)])
    if empty:
        # who does not hear it looks by itself after a while
        with contextlib.suppress(ServerFault):
            yield control.tell_opened(atlas.control, sorted(empty))
    if failure is not None:
        raise failure


def refreshed(atlas: Atlas) -> Operation[None]:
    """Reads the topology again. One that lags behind what this process knows (a failover lost it) is restored."""
    fields = yield control.read_topology(atlas.control)
    stored = Topology.from_fields(fields) if fields else None
    known = atlas.topology
    if stored is not None and stored.epoch >= known.epoch:
        atlas.learn(stored)
        return
    yield from declared(atlas, stored.epoch if stored else 0, known)


def declared(atlas: Atlas, seen_epoch: int, topology: Topology) -> Operation[bool]:
    """Publishes a topology in place of the one of ``seen_epoch``. Learns what is published then; says if it is ours."""
    answer = yield control.declare(atlas.control, seen_epoch, topology.to_fields())
    atlas.learn(Topology.from_fields(answer.fields))
    return bool(answer.changed)


def come_in_force(atlas: Atlas) -> Operation[None]:
    """Completes an announced change of the number of shards; anybody may, and repeat it.

    Every shard is told before it is published: once a producer knows the new number, no other can still push by the
    old one. Between the two a producer that meets a shard already told waits for the moment.

    First, what is on its way since an earlier change arrives, and nothing more is taken: so tasks move in one direction
    only, the one in which they are looked for, and none gets into a shard that was found swept.
    """
    announced = atlas.topology
    if announced.pending is None:
        return
    following = announced.in_force()
    span = [atlas.keys(shard) for shard in following.span()]
    yield from opened(atlas, span, topology=announced)
    yield from _arrived(atlas, span)
    yield from opened(atlas, span, topology=following)
    yield from declared(atlas, announced.epoch, following)


def _arrived(atlas: Atlas, shards: Sequence[ShardKeys]) -> Operation[None]:
    """Everything that is on its way out of these shards."""
    for _ in range(ARRIVAL_ROUNDS):
        asked = [(keys, grow.parcels(keys)) for keys in shards]
        sources = {id(request): keys for keys, request in asked}
        left = []
        for request, count in (yield Many([request for _, request in asked])):
            if isinstance(count, ShardqError):
                raise count
            if count:
                left.append(sources[id(request)])
        if not left:
            return
        for source in left:
            yield from emptied(atlas, source)
    raise Unavailable(
        "tasks that were moved are not on all replicas yet, and until then the number of shards can't change again: "
        "see that the replicas are connected and keep up (`shardq stats`), and repeat it"
    )


def emptied(atlas: Atlas, source: ShardKeys) -> Operation[bool]:
    """Brings whatever is on its way out of a shard to where it goes; says whether there was something."""
    found = False
    cursor = ""
    while cursor != "0":
        cursor, parcels = yield grow.scan_moved(source, cursor or "0", count=grow.SCAN)
        if parcels:
            found = True
            yield from delivered(atlas, source, parcels)
    return found


def delivered(atlas: Atlas, source: ShardKeys, parcels: Sequence[Parcel]) -> Operation[None]:
    """Brings parcels that were taken to where they go, under whatever topology, and forgets them at the source: those
    that are on the replicas there. Whoever comes next goes on with the others."""
    targets = [atlas.keys(target) for target in sorted({parcel.target for parcel in parcels})]
    barrier = Barrier(atlas)
    yield from barrier.behind(targets)
    yield from put(atlas, parcels)
    behind = yield from barrier.behind(targets)
    arrived = grow.loads(parcel for parcel in parcels if parcel.target not in behind)
    clears: list[Part[None]] = [(source, partial(grow.clear, parcels=some)) for _, some in arrived]
    yield from each(atlas, clears)


def put(atlas: Atlas, parcels: Iterable[Parcel]) -> Operation[None]:
    """Puts parcels that were taken in force where they go, under whatever topology."""
    puts: list[Part[None]] = [
        (atlas.keys(target), partial(grow.put, parcels=some)) for target, some in grow.loads(parcels)
    ]
    yield from each(atlas, puts)


class Barrier:
    """Knows what is on the replicas, too: what was written to a shard between two questions of one barrier is there if
    the second says so, whatever became of its node in between."""

    def __init__(self, atlas: Atlas) -> None:
        self._atlas = atlas
        self._histories: dict[int, str] = {}
        """The history of each shard, as last confirmed."""

    def knows(self, shard: int) -> bool:
        return shard in self._histories

    def behind(self, shards: Iterable[ShardKeys]) -> Operation[set[int]]:
        """Those shards of which it can't be said, among them all that are asked about for the first time."""
        asked, epoch = list(shards), self._atlas.topology.epoch
        histories: Histories = yield Confirm([copies.seal(keys.meta, keys.slot, epoch) for keys in asked])
        behind = set()
        for keys in asked:
            history = histories[keys.slot]
            if history is None or self._histories.get(keys.shard) != history:
                behind.add(keys.shard)
            if history is not None:
                self._histories[keys.shard] = history
        return behind


def mended(atlas: Atlas, keys: ShardKeys, fault: ShardqError, round: int, *, in_doubt: bool = False) -> Operation[None]:
    """After ``fault`` of a call on a shard: makes another try worth while, or raises the fault.

    ``in_doubt``: of a call that may have been executed. Raises Unanswered where another would get Unavailable.
    """
    if not isinstance(fault, (Stale, Missing)):
        raise fault
    try:
        yield from _mended(atlas, keys, fault, round)
    except ServerFault as exc:
        if not in_doubt or isinstance(exc, Unanswered):
            raise
        raise Unanswered(
            f"an answer of shard {keys.shard} was lost, and it could not be asked again: {exc}; the order may or may "
            "not have been carried out: look, or repeat it where that is safe"
        ) from exc


def _mended(atlas: Atlas, keys: ShardKeys, fault: Stale | Missing, round: int) -> Operation[None]:
    if round >= ROUNDS:
        raise Unavailable(
            f"the stored topology of {atlas.name!r} and its shard {keys.shard} do not agree: {fault}. "
            "A failover or a restore may have lost writes, and no repair of it has lasted: see that the server keeps "
            "what is written, and try again"
        ) from fault
    yield from refreshed(atlas)
    if isinstance(fault, Missing):
        if keys.shard in atlas.topology.span():
            yield from opened(atlas, [keys])
    elif atlas.topology.epoch < fault.epoch:
        # the change is just being published; after a while it is taken for interrupted, or lost by a failover
        yield Pause(min(0.1, 0.002 * 2.0**round))
        if round >= REPAIR_ROUND:
            yield from _repaired(atlas, keys, fault.epoch)


def _repaired(atlas: Atlas, keys: ShardKeys, epoch: int) -> Operation[None]:
    """The control slot lacks what a shard has seen, a topology of this epoch: it is completed, or restored from a copy:
    the shard's or another's. A topology that nobody has a copy of is lost, and the present one takes its place."""
    known = atlas.topology
    if known.pending is not None:
        yield from come_in_force(atlas)
        return
    own = yield control.read_copy(keys)
    if not (newest := _newest([own], known)):
        answers = yield Many([control.read_copy(other) for other in atlas.span()])
        newest = _newest([copy for _, copy in answers if isinstance(copy, bytes)], known)
    if newest:
        yield from declared(atlas, known.epoch, newest)
        return
    # past the one that was lost, and the one that comes in force after it: whoever knows them must learn this one
    following = msgspec.structs.replace(known, epoch=epoch + 2)
    if (yield from declared(atlas, known.epoch, following)):
        yield from opened(atlas, atlas.span())


def _newest(copies: Iterable[bytes | None], known: Topology) -> Topology | None:
    """The newest of some copies, if it is newer than the one that is known."""
    newest = max((Topology.from_text(copy) for copy in copies if copy), key=lambda copy: copy.epoch, default=known)
    return newest if newest.epoch > known.epoch else None


Make = Callable[[ShardKeys, int], Call[T]]
"""Makes a call for a shard under the topology of an epoch."""


def resending(make: Make[T]) -> Make[T]:
    """Makes the same calls as they are sent after a lost answer."""
    return lambda keys, epoch: make(keys, epoch).after_loss()


def on_shard(atlas: Atlas, shard: Callable[[], ShardKeys], make: Make[T]) -> Operation[T]:
    """One call on the shard that ``shard`` names under the present topology, repeated under a newer one."""
    round = 0
    while True:
        epoch, keys = atlas.topology.epoch, shard()
        call = make(keys, epoch)
        try:
            return (yield call)  # type: ignore[no-any-return]  # what a yield gives back is untyped
        except ShardqError as fault:
            yield from mended(atlas, keys, fault, round, in_doubt=call.in_doubt)
        if call.in_doubt:
            make = resending(make)
        round += 1


Part = tuple[ShardKeys, Make[T]]


def each(
    atlas: Atlas, parts: Sequence[Part[T]], *, broken: list[tuple[Part[T], ShardqError]] | None = None
) -> Operation[list[T]]:
    """Calls on given shards, whatever the topology, in no order. Those refused by the guard, before anything was
    written, are sent again. With ``broken`` the parts that fail are noted there; without, the first of their errors is
    raised when all the rest are done.
    """
    done: list[T] = []
    failures: list[tuple[Part[T], ShardqError]] = []
    waiting: list[tuple[Part[T], Make[T]]] = [(part, part[1]) for part in parts]
    """Parts as given, and how their calls are made now."""
    round = 0
    while waiting:
        epoch = atlas.topology.epoch
        sent = {id(call): (part, make, call) for part, make in waiting for call in [make(part[0], epoch)]}
        waiting = []
        faults: dict[int, tuple[ShardKeys, ShardqError]] = {}
        doubted: set[int] = set()
        for answered, result in (yield Many([call for _, _, call in sent.values()])):
            part, make, call = sent[id(answered)]
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
                yield from mended(atlas, keys, fault, round, in_doubt=keys.shard in doubted)
            except ShardqError as exc:
                failures += [(part, exc) for part, _ in waiting if part[0].shard == keys.shard]
                waiting = [(part, make) for part, make in waiting if part[0].shard != keys.shard]
        round += 1
    if broken is not None:
        broken += failures
    elif failures:
        raise failures[0][1]
    return done


def everywhere(
    atlas: Atlas, make: Make[T], *, broken: dict[int, ShardqError] | None = None
) -> Operation[list[tuple[ShardKeys, T]]]:
    """One call on every shard, by shard. With ``broken`` the shards that can't be asked are noted there and left out;
    without, the first of their errors is raised.
    """
    done: dict[int, T] = {}
    skipped: dict[int, ShardqError] = {} if broken is None else broken
    makes: dict[int, Make[T]] = {}
    """How calls are made for shards whose answer was lost."""
    round = 0
    while True:
        epoch = atlas.topology.epoch
        asked = {
            id(call): (keys, call)
            for keys in atlas.span()
            if keys.shard not in done and keys.shard not in skipped
            for call in [makes.get(keys.shard, make)(keys, epoch)]
        }
        faults: list[tuple[ShardKeys, ShardqError, bool]] = []
        for answered, result in (yield Many([call for _, call in asked.values()])):
            keys, call = asked[id(answered)]
            if call.in_doubt:
                makes[keys.shard] = resending(make)
            if broken is not None and isinstance(result, ShardqError) and not isinstance(result, (Stale, Missing)):
                broken[keys.shard] = result
            elif isinstance(result, ShardqError):
                faults.append((keys, result, call.in_doubt))
            else:
                done[keys.shard] = result
        if not faults:
            return [(keys, done[keys.shard]) for keys in atlas.span() if keys.shard in done]
        for keys, fault, in_doubt in faults:
            yield from mended(atlas, keys, fault, round, in_doubt=in_doubt)
        round += 1
