"""The upkeep of the stored topology: it is created, read, published, and restored where a server lost it; and shards
are opened under it. Operations, for both drivers. Changes of the number of shards are completed by
``topology_recovery``.

Servers lose what they wrote last, or come back older; addresses come to lead elsewhere. ``relation`` says what a
stored topology is to the one that this process knows, and ``learn`` has one rule for each answer. **A restored topology
never looks at less**: the numbers of shards that servers went back to are among its priors, and all is swept again.

Users of the roles producer and worker may read the topology and not write it. Their processes restore nothing: they go
on by what they know, open shards under that, and wait for a dispatcher where that is not enough.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from enum import Enum, auto

import msgspec

from shardq.core.calls import control
from shardq.core.calls.request import Call, Stale
from shardq.core.layout import formats
from shardq.core.layout.formats import WrittenBeforeFirst
from shardq.core.layout.keys import ControlKeys, ShardKeys, control_keys
from shardq.core.layout.slots import MAX_SHARDS
from shardq.core.layout.topology import EngineSettings, TopicSettings, Topology, UnreadableTopology, new_word
from shardq.core.operation import Many, Operation, succeeded
from shardq.core.roles import roles_of
from shardq.core.scripts import script
from shardq.core.topology_cache import TopologyCache
from shardq.errors import AccessDenied, AnotherEngine, ServerFault, ShardqError, Unavailable

log: logging.Logger = logging.getLogger("shardq")

ROUNDS = 8
"""The most topologies that others publish while one is restored: each follows another change."""

_UNREADABLE = (UnreadableTopology, WrittenBeforeFirst)
"""Copies that a shard of a known engine may have from another program alone."""

STRAYS_AT_ONCE = 64  # shards out of use that are looked at in one trip

WRITERS = " or ".join(roles_of("declare"))
"""The roles whose users may write the topology."""

SLACK_MS = 50
"""The time by which an engine may seem to be older than it is, as instants are read at either end of a trip."""


def create_topology(name: str, shards: int, settings: EngineSettings | None = None) -> Operation[Topology]:
    """Returns the topology of this name: the stored one; where only the shards know one, that; or a new one of
    ``shards`` shards, with all of them opened.
    """
    keys = control_keys(name)
    script(
        "declare"
    )  # reads all scripts: later there may be no file descriptor left, and a child of a fork can't import
    if (stored := (yield from read(keys))) is not None:
        return stored
    first = Topology(
        epoch=1,
        shards=shards,
        settings=settings or EngineSettings(),
        format=formats.FORMAT,
        word=new_word(),
        engine=new_word(),
        created=(yield control.clock_ms(keys)),  # behind the look: so it is later than what was lost before that
    )
    cache = TopologyCache(name, first)
    newest = yield from newest_copy(cache.span())
    if newest is not None:
        cache.replace(newest)
        yield from learn(cache, None)
        return cache.topology
    try:
        yield control.touch_topology(keys)
    except AccessDenied as exc:
        raise AccessDenied(
            f"there is no engine named {name!r} yet, and the user of this process may not create one: start a "
            f"dispatcher first (`shardq run --create --name {name}`), as a user of the role {WRITERS}"
        ) from exc
    answer = yield control.declare(keys, 0, first.to_fields(), whole=True)
    if answer.changed:
        cache.replace(Topology.from_fields(answer.fields))
        yield from open_shards(cache, cache.span())
        return cache.topology
    return (yield from read(keys)) or Topology.from_fields(answer.fields)


def read(keys: ControlKeys, known: Topology | None = None) -> Operation[Topology | None]:
    """Reads the stored topology; None if there is none. What the server has of topics is asked for as far as it
    changed since the known one.
    """
    for _ in range(ROUNDS):
        answer: control.Learnt = yield control.learn(keys, known.stamp if known else 0)
        if not answer.fields:
            return None
        stored = Topology.from_fields(answer.fields)
        if not answer.scan:
            topics = {} if known is None or answer.whole else known.topics
            return msgspec.structs.replace(stored, topics=topics).with_stored(answer.settings)
        # what changes meanwhile is told by the next answer
        settings, cursor = dict[bytes, bytes](), ""
        while cursor != "0":
            cursor, some = yield control.scan_settings(keys, cursor or "0")
            settings |= some
        known = stored.with_stored(settings)
    raise Unavailable("the settings of topics change too often to be read; try again")


def newest_copy(shards: Iterable[ShardKeys], known: Topology | None = None) -> Operation[Topology | None]:
    """The newest of the copies of these shards that can be read; of those of the known one's engine, if it is newer
    than that.
    """
    copies = succeeded((yield Many({keys: control.read_copy(keys) for keys in shards})))
    unreadable = (UnreadableTopology,) if known is None else _UNREADABLE
    while copies:
        newest: tuple[Topology, ShardKeys] | None = None
        for keys, text in copies.items():
            with contextlib.suppress(*unreadable):
                copy = Topology.from_text(text) if text else None
                if copy is None or (known and (copy.engine != known.engine or copy.epoch <= known.epoch)):
                    continue
                if newest is None or (copy.created, copy.epoch) > (newest[0].created, newest[0].epoch):
                    newest = copy, keys
        if newest is None:
            return None
        found, keys = newest
        settings = yield control.read_settings(keys)
        text = yield control.read_copy(keys)
        if text == copies[keys]:  # so they belong together
            with contextlib.suppress(UnreadableTopology):
                return found.with_stored(settings)
            text = None
        copies[keys] = text
    return None


def open_shards(
    cache: TopologyCache,
    shards: Iterable[ShardKeys],
    *,
    topology: Topology | None = None,
    anew: bool = False,
    briefly: bool = False,
) -> Operation[tuple[ShardKeys, Stale] | None]:
    """Writes an epoch and a copy of its topology to these shards, unless they have a newer one. Returns the shard with
    the newest of those, and what it answered.

    A shard may have come back from a number of shards that the topology does not look at: then that is published among
    the priors first, so that no process that dies in between leaves tasks where nobody looks. ``topology``: one that is
    to be published, in place of the known one.

    No process is registered as waiting in a shard that was empty: those who wait are told to register again. ``anew``:
    the shards are to be used from now on. ``briefly``: who meets those that do not answer at once tells them.
    """
    before, known = (cache.before, cache.topology) if topology is None else (cache.topology, topology)
    copy, word = _copy(known, before), new_word()
    ahead: list[tuple[ShardKeys, Stale]] = []
    owed: list[tuple[ShardKeys, control.Owed]] = []
    unrelated: list[ShardKeys] = []
    empty: list[int] = []
    failure: ShardqError | None = None

    def note(keys: ShardKeys, result: bool | ShardqError) -> None:
        nonlocal failure
        if isinstance(result, Stale):
            ahead.append((keys, result))
        elif isinstance(result, control.Owed):
            owed.append((keys, result))
        elif isinstance(result, control.Unrelated):
            unrelated.append(keys)
        elif isinstance(result, ShardqError):
            failure = failure or result
        elif result:
            empty.append(keys.shard)

    def request(keys: ShardKeys, *, whatever: bool = False) -> Call[bool]:
        call = control.open_shard(keys, known, copy, word=word, anew=anew, whatever=whatever)
        return call.briefly() if briefly else call

    for keys, result in (yield Many({keys: request(keys) for keys in shards})):
        note(keys, result)
    if unrelated:
        copy = _copy(known)
        for keys, result in (yield Many({keys: request(keys) for keys in unrelated})):
            note(keys, result)
    if owed:
        came_back, owed = owed, []
        numbers = [number for keys, told in came_back for number in _owed(keys, told.copy)]
        keyed = any(_has_keys(told.copy) for _, told in came_back)
        if topology is None and (yield from widen(cache, numbers, keyed=keyed)):
            return None  # all shards were told what followed
        copy = _copy(known)
        for keys, result in (yield Many({keys: request(keys, whatever=True) for keys, _ in came_back})):
            note(keys, result)
    if empty:
        yield from _check_home(cache, known, [cache.keys(shard) for shard in empty], word)
        # A process that does not hear it asks by itself after a while.
        with contextlib.suppress(ServerFault):
            yield control.tell_opened(cache.control, sorted(empty))
    if failure is not None and not briefly:
        raise failure
    return max(ahead, key=lambda answered: answered[1].epoch, default=None)


def _copy(known: Topology, before: Topology | None = None) -> control.Copy:
    """The copy for shards: of topics what changed since an earlier topology, where their copies can be of that."""
    if before is None or before.engine != known.engine:
        return control.Copy(known.to_text(), _stored(known.topics))
    return control.Copy(known.to_text(), _stored(known.edited_since(before)), before.stamp)


def _stored(topics: Mapping[str, TopicSettings]) -> dict[str, bytes]:
    return {topic: settings.to_text() for topic, settings in topics.items()}


def _check_home(cache: TopologyCache, known: Topology, opened: Iterable[ShardKeys], word: str) -> Operation[None]:
    """Closes the shards that were just opened where there was nothing if that is another engine: its address came to
    lead there since the topology was read. Nothing may be stored there, and ``_meet`` says what it is.
    """
    try:
        stored = yield from read(cache.control, known)
    except ShardqError:  # who reads it next says what is wrong
        return
    if stored is None or relation(known, stored) is not Relation.OTHER:
        return
    words = succeeded((yield Many({keys: control.read_opened(keys) for keys in opened})))
    yield Many({keys: control.close_shard(keys) for keys, found in words.items() if found == word})
    yield from _meet(cache, stored)


def _owed(keys: ShardKeys, copy: bytes) -> tuple[int, ...]:
    """The numbers of shards by which tasks may lie in a shard that knows this copy of a topology."""
    try:
        known = Topology.from_text(copy)
    except _UNREADABLE:
        return ()
    return known.numbers if keys.shard < known.shards else known.priors


def _has_keys(copy: bytes) -> bool:
    """True if the engine has keys, by this copy of a topology."""
    try:
        return Topology.from_text(copy).is_keyed
    except _UNREADABLE:
        return False


def widen(cache: TopologyCache, numbers: Iterable[int], *, keyed: bool = False) -> Operation[bool]:
    """Publishes a topology that looks for tasks by these numbers of shards, too, and has every shard swept again.
    ``keyed``: and for tasks with keys. Returns False if it does all that already.
    """
    wanted = tuple(numbers)
    while True:
        known = cache.topology
        more, begins = sorted(set(wanted) - set(known.numbers)), keyed and not known.is_keyed
        if not more and not begins:
            return False
        if not (yield from may_repair(cache)):
            raise AwaitsRepair(cache.name)
        changes = {"is_keyed": True} if begins else {}
        following = known.widened(wanted, **changes) if more else known.following(**changes)
        if (yield from declare(cache, known, following)):
            named = [f"by {', '.join(map(str, more))} shards"] if more else []
            named += ["by their keys"] if begins else []
            log.warning("%r: a server came back older: tasks are looked for %s, too", cache.name, " and ".join(named))
            yield from open_shards(cache, cache.span(), briefly=True)
            return True


def bring_strays_home(cache: TopologyCache, strays: Iterable[ShardKeys]) -> Operation[bool]:
    """Makes processes look for tasks in these shards, which are out of use: their numbers of shards become priors. Then
    every sweep finds the tasks there, and every look-up that goes by a known number. Returns True if that was not so
    before.
    """
    numbers: list[int] = []
    for keys in strays:
        copy: bytes | None = yield control.read_copy(keys)
        owed = _owed(keys, copy or b"")
        numbers += owed if max(owed, default=0) > keys.shard else (*owed, keys.shard + 1)
    return bool(numbers) and (yield from widen(cache, numbers))


def find_strays(cache: TopologyCache, *, all_there_can_be: bool = False) -> Operation[list[ShardKeys]]:
    """The shards past those that are looked at that hold something that a resize moves. Metas of shards that were in
    use once stay, so the look ends where there is nothing; or it goes through ``all_there_can_be``.
    """
    strays: list[ShardKeys] = []
    for first in range(len(cache.topology.span()), MAX_SHARDS, STRAYS_AT_ONCE):
        some = [cache.keys(shard) for shard in range(first, min(first + STRAYS_AT_ONCE, MAX_SHARDS))]
        looks = {keys: control.exist(keys, keys.meta, *keys.moving).briefly() for keys in some}
        there = succeeded((yield Many(looks)))
        used = [keys for keys in some if there.get(keys)]
        if not used and not all_there_can_be:
            break
        held = succeeded((yield Many({keys: control.exist(keys, *keys.moving).briefly() for keys in used})))
        strays += [keys for keys in used if held.get(keys)]
    return strays


def refresh(cache: TopologyCache) -> Operation[None]:
    """Reads the stored topology, and acts by what it is to the known one (``relation``)."""
    yield from learn(cache, (yield from read(cache.control, cache.topology)))


def declare(cache: TopologyCache, seen: Topology, topology: Topology) -> Operation[bool]:
    """Publishes a topology in place of the one that was seen, and learns what is published then. Returns True if it is
    ours. If not, and a server has lost the known one, that is restored: who begins again meets it.
    """
    settings = _stored(topology.edited_since(seen))
    answer = yield control.declare(cache.control, seen.stamp, topology.to_fields(), settings)
    if answer.changed:
        cache.learn(_published(answer, topology))
    else:
        yield from refresh(cache)
    if cache.awaits_repair:
        yield from check_writer(cache)
    return bool(answer.changed)


class AwaitsRepair(Unavailable):
    """The stored topology has to be restored first, and this process may not write it."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"a server lost a change of the topology of {name!r}, and the user of this process may not write it: see "
            f"that a dispatcher runs, which restores it (`shardq run`; users of the role {WRITERS} may)"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.name,)


def check_writer(cache: TopologyCache) -> Operation[None]:
    """Raises AccessDenied if the user of this process may not write the topology: for changes that change nothing."""
    try:
        yield control.touch_topology(cache.control)
    except AccessDenied as exc:
        raise AccessDenied(f"this is for users of the role {WRITERS} (`shardq acl`): {exc}") from exc
    cache.is_reader = False


def may_repair(cache: TopologyCache) -> Operation[bool]:
    """True if this process may restore the stored topology, which needs that. The server refuses it once at most."""
    if not cache.is_reader:
        try:
            yield control.touch_topology(cache.control)
        except AccessDenied:
            cache.is_reader = True
    if cache.is_reader:
        _await_repair(cache)
    return not cache.is_reader


def _await_repair(cache: TopologyCache) -> None:
    if not cache.awaits_repair:
        cache.awaits_repair = True
        log.warning("%s", AwaitsRepair(cache.name))


class Relation(Enum):
    """A stored topology, beside the one that a process knows."""

    SAME = auto()
    NEWER = auto()
    LOST = auto()
    """There is none, or an older one: a server has lost the known one, and it is restored as the next change."""
    COLLIDING = auto()
    """Another change has the same epoch: the known one was lost before. The stored one holds, and what the known one
    changed is made again as the next change.
    """
    OTHER = auto()
    """It belongs to another engine. Either that began after this process last heard of its own, which is lost then; or
    it was there before, and the address leads to the wrong one. That is left alone.
    """


def relation(known: Topology, stored: Topology | None) -> Relation:
    """The rule by which ``learn`` goes."""
    if stored is None:
        return Relation.LOST
    if stored.engine != known.engine:
        return Relation.OTHER
    if stored.epoch != known.epoch:
        return Relation.NEWER if stored.epoch > known.epoch else Relation.LOST
    return Relation.SAME if stored.word == known.word else Relation.COLLIDING


def _published(answer: control.Declared, topology: Topology) -> Topology:
    """The topology as it is stored now, with the settings of topics that were published."""
    return msgspec.structs.replace(Topology.from_fields(answer.fields), topics=topology.topics)


def learn(cache: TopologyCache, stored: Topology | None) -> Operation[None]:
    """Learns the stored topology, or repairs it. ``stored``: as it was read just now, None where there is none."""
    for round in range(ROUNDS):
        known = cache.topology
        found = relation(known, stored)
        if found is Relation.SAME:
            cache.heard_at, cache.awaits_repair = time.monotonic(), False
            return
        if stored is not None and found is Relation.NEWER:
            cache.learn(stored)
            return
        if stored is not None and found is Relation.OTHER:
            yield from _meet(cache, stored)
            return
        if cache.is_reader and round == 0:
            stored = yield from read(cache.control, known)  # another thread may have learnt a newer one meanwhile
            continue
        if cache.is_reader:
            _await_repair(cache)
            if stored is not None and found is Relation.COLLIDING:
                cache.replace(stored)  # no other process may know the known one; shards that do have it restored
            return
        is_lost = stored is None or found is Relation.LOST
        if stored is None or is_lost:
            following = known.widened(stored.numbers if stored else ())
            settings = _stored(following.topics)
        else:
            following = _made_again(cache, stored)
            settings = _stored(following.edited_since(stored))
        try:
            answer = yield control.declare(
                cache.control, stored.stamp if stored else 0, following.to_fields(), settings, whole=is_lost
            )
        except AccessDenied:
            cache.is_reader = True
            continue
        if answer.changed:
            cache.learn(_published(answer, following))
            log.warning(
                "%r: a server lost a change of the topology; it is there again as epoch %d",
                cache.name,
                following.epoch,
            )
            yield from open_shards(cache, cache.span(), briefly=True)
            return
        stored = yield from read(cache.control, cache.topology)
    raise Unavailable(f"the topology of {cache.name!r} changes too often to be restored; try again")


def _made_again(cache: TopologyCache, stored: Topology) -> Topology:
    """The lost change made again: two changes have the same epoch, and the stored one holds."""
    known, before = cache.topology, cache.before
    if before is None or before.epoch != known.epoch - 1:
        log.warning("%r: the change of epoch %d was lost: look at pauses, limits and routes", cache.name, known.epoch)
        before = known
    return stored.with_change(before, known).widened(known.numbers)


def _meet(cache: TopologyCache, stored: Topology) -> Operation[None]:
    """Learns another engine's topology if that was begun after this process last heard of its own; else raises
    AnotherEngine.
    """
    now_ms: int = yield control.clock_ms(cache.control)
    heard_ms = now_ms - (time.monotonic() - cache.heard_at) * 1000
    if stored.created >= heard_ms - SLACK_MS:
        log.error(
            "the engine %r that this process knew is lost, and begun anew with %d shards: it goes on with that; what "
            "was stored before is gone",
            cache.name,
            stored.shards,
        )
        cache.replace(stored)
        return
    raise AnotherEngine(cache.name, known=cache.topology.engine, found=stored.engine)
