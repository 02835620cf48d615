"""The deep looks of the table of findings, and what mends without a risk for tasks what they find. ``shardq doctor``
makes them, beside those of ``health()``.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from shardq.core.calls import node_info, observe, resharding
from shardq.core.calls.observe import Fault
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.member import fleet
from shardq.core.layout import formats
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Stamp
from shardq.core.layout.words import raw
from shardq.core.model.ids import topic_of
from shardq.core.model.printable import counted
from shardq.core.operation import Many, Operation, run, succeeded
from shardq.core.resharding.migration import MigrationPipeline, MoveTokens
from shardq.core.resharding.repair import find_faults, restore
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import call_shard
from shardq.core.topology_upkeep import bring_strays_home, find_strays, open_shards
from shardq.engine.access import EngineAccess
from shardq.engine.findings import EXAMPLES, TABLE, Finding, found, listed, named
from shardq.engine.options import STATS_TIMEOUT_S
from shardq.engine.sync import Engine
from shardq.errors import ShardqError

LOOKED_AT = 100
"""The ids of each shard and state that are looked at, unless all are."""

PAGE = 1000
"""The entries of a ready list that are read at a time."""

MOST_PLACED = 100_000
"""The ids of one set of a shard that are looked at with ``--all``."""


class Mended(NamedTuple):
    """The outcome for the things that were found."""

    fixed: int
    left: int = 0
    """Faults that the fix has left."""


Mend = Callable[[], Operation[Mended]]
"""Mends what was found."""


class Wrong(NamedTuple):
    """A finding, and what mends it; None where nothing does without a risk."""

    finding: Finding
    mend: Mend | None = None


OK = {
    "server": "the server is the one that was asked for",
    "versions": "all processes run this build of shardq, in whose format all is stored",
    "coverage": "all shards can be reached",
    "dispatchers": "every shard is served",
    "tasks": "tasks are dispatched in time",
    "routes": "topics are forwarded",
    "topics": "ready tasks are taken",
    "workers": "workers are well, and know the calls that wait",
    "deaths": "few tasks die, and none was removed before its time",
    "schedules": "schedules are served",
    "outbox": "no outbox relay of this process is stuck",
    "spool": "no spool of this process is",
    "far": "what the far store holds, if there is one, is loaded in time",
    "sentinels": "the sentinels, if there are any, name one master, and no other server is one",
    "eviction": "no server evicts tasks",
    "memory": "no server is full",
    "persistence": "every server keeps its data",
    "replicas": "the replicas, if there are any, follow their masters",
    "clocks": "the clocks agree",
    "commands": "the servers allow what is needed",
    "clients": "the servers take enough connections",
    "files": "this machine allows enough open files",
    "epochs": "every shard knows the present topology",
    "places": "the ids that were looked at are in the shards where they belong",
    "records": "the records that were looked at have a place, and the ids a record",
}
"""Each check, in the order in which they are told → what is said when nothing was found."""


def find_all(engine: Engine, driver: Driver, *, everything: bool) -> Iterator[tuple[str, list[Wrong]]]:
    """Each check with what it found, in their order."""
    cache = EngineAccess(engine).cache
    # first: every other look tells a shard the topology that it missed
    told = _carried_out(driver, "epochs", find_epochs(cache))
    told += _carried_out(driver, "epochs", find_outside(cache, everything=everything))
    health = engine.health()
    slots = {driver.node_of(keys.slot): keys.slot for keys in cache.span()}
    settings = run(driver, EngineAccess(engine).find_settings(driver), STATS_TIMEOUT_S)
    servers = [*settings, *run(driver, find_early(slots), STATS_TIMEOUT_S)]
    # what needs the pollers of a process is told of this one
    deeper = {"strays", *(each.name for each in servers)}
    told += map(Wrong, [*servers, *(each for each in health.findings if each.name not in deeper)])
    seen = [keys for keys in cache.span() if keys.shard not in health.stats.missing]
    later = {
        "versions": find_versions(cache),
        "places": find_misplaced(cache, seen, everything=everything),
        "records": find_orphans(cache, seen, everything=everything),
    }
    for check in OK:
        if check in later:
            told += _carried_out(driver, check, later[check])
        yield check, [each for each in told if check in (TABLE[each.finding.name].check, each.finding.about)]


def _carried_out(driver: Driver, check: str, operation: Operation[list[Wrong]]) -> list[Wrong]:
    try:
        return run(driver, operation, STATS_TIMEOUT_S)
    except ShardqError as exc:
        return [Wrong(found("unlooked", about=check, check=check, error=exc))]


def find_early(nodes: Mapping[str, int]) -> Operation[list[Finding]]:
    """Finds servers that can't be asked if their disk has a write: it is no fault of the engine, and shardq knows what
    to do. ``nodes``: one slot of each.
    """
    answers = yield Many({node: node_info.early_version(slot) for node, slot in nodes.items()})
    told: dict[str, str] = succeeded(answers)
    early = [f"{node} ({version})" for node, version in sorted(told.items()) if version]
    return [found("early_fsync", nodes=listed(early))] if early else []


def find_versions(cache: TopologyCache) -> Operation[list[Wrong]]:
    """Finds processes of other builds than this one, and an older format than it writes."""
    members = yield from fleet(cache.control)
    told, stored = [], cache.topology.format
    from shardq.version import __version__  # here: it takes a while to load

    others = Counter(member.version or "unknown" for member in members if member.version != __version__)
    if others:
        counts = ", ".join(f"{count} of {version}" for version, count in sorted(others.items()))
        told.append(Wrong(found("other_versions", version=__version__, others=counts)))
    if stored < formats.FORMAT:
        told.append(Wrong(found("old_format", stored=stored, format=formats.FORMAT)))
    return told


def find_epochs(cache: TopologyCache) -> Operation[list[Wrong]]:
    """Finds shards that missed the last change of the topology, or were lost."""
    topology = cache.topology
    answers = yield Many({keys: resharding.meta_fields(keys, "epoch").briefly() for keys in cache.span()})
    epochs = {keys: Stamp.of(told[0]).epoch for keys, told in succeeded(answers).items()}
    lost = [keys for keys, epoch in epochs.items() if not epoch]
    behind = [keys for keys, epoch in epochs.items() if 0 < epoch < topology.epoch]
    ahead = [keys for keys, epoch in epochs.items() if epoch > topology.epoch]
    mends: tuple[tuple[str, list[ShardKeys], Callable[..., Operation[Mended]]], ...] = (
        ("lost_shard", lost, _open),
        ("behind_shard", behind, _open),
        ("ahead_shard", ahead, _restore_topology),
    )
    return [
        Wrong(found(name, shards=_shards(some), epoch=topology.epoch), partial(mend, cache, some))
        for name, some, mend in mends
        if some
    ]


def _restore_topology(cache: TopologyCache, ahead: Sequence[ShardKeys]) -> Operation[Mended]:
    for keys in ahead:
        yield from call_shard(cache, keys, lambda keys, epoch: observe.peek(keys, epoch, []))
    return Mended(len(ahead))


def find_outside(cache: TopologyCache, *, everything: bool) -> Operation[list[Wrong]]:
    """Finds shards out of use that hold tasks: as dispatchers do, or among all shards that there can be."""
    strays = yield from find_strays(cache, all_there_can_be=everything)
    return [Wrong(found("strays", shards=_shards(strays)), partial(_bring_home, cache, strays))] if strays else []


def _bring_home(cache: TopologyCache, strays: Sequence[ShardKeys]) -> Operation[Mended]:
    yield from bring_strays_home(cache, strays)
    return Mended(len(strays))


def _open(cache: TopologyCache, shards: Sequence[ShardKeys]) -> Operation[Mended]:
    yield from open_shards(cache, shards)
    return Mended(len(shards))


def find_misplaced(cache: TopologyCache, shards: Sequence[ShardKeys], *, everything: bool) -> Operation[list[Wrong]]:
    """Finds records in these shards that do not belong there; while the number of shards changes, some do by right."""
    topology = cache.topology
    if topology.priors or topology.pending:
        return []
    told = []
    for keys in shards:
        ids = yield from _records(cache, keys, everything=everything)
        elsewhere = [
            (home, id) for home, id in zip(topology.shards_of(map(raw, ids)), ids, strict=True) if home != keys.shard
        ]
        if elsewhere:
            examples, wrong = _examples(id for _, id in elsewhere), len(elsewhere)
            finding = found(
                "misplaced", about=keys.shard, shard=keys.shard, wrong=wrong, ids=len(ids), examples=examples
            )
            told.append(Wrong(finding, partial(_move, cache, keys, elsewhere)))
    return told


def _move(cache: TopologyCache, keys: ShardKeys, elsewhere: list[tuple[int, str]]) -> Operation[Mended]:
    pipeline = MigrationPipeline(cache, cache.topology, keys, MoveTokens(f"doctor-{secrets.token_hex(4)}"))
    moved = 0
    for at in range(0, len(elsewhere), resharding.BATCH):
        moved += yield from pipeline.advance(elsewhere[at : at + resharding.BATCH])
    moved += yield from pipeline.finish()
    return Mended(moved, len(elsewhere) - moved)


_ROWS: dict[Fault, tuple[str, str]] = {
    "lost": ("lost_task", "task"),
    "unlaned": ("unlaned_task", "task"),
    "empty": ("empty_id", "id"),
}
"""Fault → its row, and what has it."""


def find_orphans(cache: TopologyCache, shards: Sequence[ShardKeys], *, everything: bool) -> Operation[list[Wrong]]:
    """Finds what no consumer will ever get in these shards: records without a place, places without a record, and tasks
    that their keys don't know.
    """
    told = []
    for keys in shards:
        ids = yield from _records(cache, keys, everything=everything)
        if everything:
            ids = yield from _not_in_ready_lists(keys, ids)
        ids += yield from _placed(keys, everything=everything)
        faults = yield from find_faults(cache, keys, ids)
        for fault, (name, noun) in _ROWS.items():
            if wrong := [id for id, its in faults.items() if its == fault]:
                what, examples = counted(len(wrong), noun), _examples(wrong)
                finding = found(name, about=keys.shard, shard=keys.shard, what=what, examples=examples)
                told.append(Wrong(finding, partial(_restore, cache, keys, wrong) if TABLE[name].fix else None))
    unread: dict[ShardKeys, list[str]] = succeeded((yield Many({keys: resharding.unreadable(keys) for keys in shards})))
    for keys, ids in unread.items():
        if ids:
            shard, examples = keys.shard, _examples(ids)
            finding = found(
                "unread_field", about=shard, shard=shard, fields=len(ids), key=keys.moved, examples=examples
            )
            told.append(Wrong(finding))
    return told


def _records(cache: TopologyCache, keys: ShardKeys, *, everything: bool) -> Operation[list[str]]:
    if not everything:
        drawn: list[str] = yield observe.some_records(keys, LOOKED_AT)
        return drawn
    ids: list[str] = []
    cursor = "0"
    while True:
        page = yield resharding.stock(keys, cache.topology.stamp, cursor, count=resharding.SCAN)
        ids += page.ids
        cursor = page.cursor
        if cursor == "0":
            return list(dict.fromkeys(ids))


def _placed(keys: ShardKeys, *, everything: bool) -> Operation[list[str]]:
    ids: list[str] = []
    for key in (keys.due, keys.leased, keys.dead):
        ids += yield observe.some_members(keys, key, MOST_PLACED if everything else LOOKED_AT)
    return ids


def _not_in_ready_lists(keys: ShardKeys, ids: Sequence[str]) -> Operation[list[str]]:
    """Leaves out those that are in their ready list, and not as ghosts alone: one pass over a list costs its server
    less than a search for each of its entries.
    """
    known: set[str] = set()
    for topic in sorted({topic_of(id) for id in ids}):
        start, entries = 0, Counter[str]()
        while page := (yield observe.ready_ids(keys, topic, start, PAGE)):
            entries.update(page)
            start += len(page)
        listed = list(entries)
        for at in range(0, len(listed), PAGE):
            some = listed[at : at + PAGE]
            ghosts = yield observe.ghosts(keys, some)
            known.update(id for id, stale in zip(some, ghosts, strict=True) if entries[id] > stale)
    return [id for id in ids if id not in known]


def _restore(cache: TopologyCache, keys: ShardKeys, ids: Sequence[str]) -> Operation[Mended]:
    return Mended((yield from restore(cache, keys, ids)))


def _shards(some: Sequence[ShardKeys]) -> str:
    return named([keys.shard for keys in some])


def _examples(ids: Iterable[str]) -> str:
    return ", ".join(map(repr, islice(ids, EXAMPLES)))
