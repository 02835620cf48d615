"""Checks of an engine and its servers, one after the other: what may be wrong, with what to do; and what can be mended
without a risk for tasks. Called by ``shardq doctor``. Judgements on servers are those of ``advice`` and ``servers``;
who serves the shards is judged as by ``health``.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from shardq.core.calls import node_info, observe, resharding
from shardq.core.calls.node_info import Replication
from shardq.core.calls.observe import Fault
from shardq.core.fleet.member import fleet
from shardq.core.layout import formats
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Stamp
from shardq.core.layout.words import raw
from shardq.core.model.ids import topic_of
from shardq.core.model.printable import counted
from shardq.core.operation import Many, Operation, succeeded
from shardq.core.resharding.migration import MigrationPipeline, MoveTokens
from shardq.core.resharding.repair import find_faults, restore
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import call_shard
from shardq.core.topology_upkeep import bring_strays_home, find_strays, open_shards
from shardq.engine.advice import Advice, named, replicas_behind
from shardq.engine.health import Examined, Health, Kind
from shardq.version import __version__

LOOKED_AT = 100
"""The ids of each shard and state that are looked at, unless all are."""

PAGE = 1000
"""The entries of a ready list that are read at a time."""

MOST_PLACED = 100_000
"""The ids of one set of a shard that are looked at with ``--all``."""

EXAMPLES = 3


class Mended(NamedTuple):
    """The outcome for the things that were found."""

    fixed: int
    left: int = 0
    """Faults that the fix has left."""


Mend = Callable[[], Operation[Mended]]
"""Mends what was found."""

OK = {
    "server": "the server is the one that was asked for",
    "versions": "all processes run this build of shardq, in whose format all is stored",
    "coverage": "all shards can be reached",
    "dispatchers": "every shard is served",
    "tasks": "tasks are dispatched, taken and forwarded",
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


def tell_disks(nodes: Mapping[str, int]) -> Operation[str]:
    """Says which servers can't be asked if their disk has a write, behind ``OK["persistence"]``: it is no fault of the
    engine, and shardq knows what to do. ``nodes``: one slot of each.
    """
    told: dict[str, str] = succeeded(
        (yield Many({node: node_info.early_version(slot) for node, slot in nodes.items()}))
    )
    early = [f"{node} ({version})" for node, version in sorted(told.items()) if version]
    if not early:
        return ""
    names = ", ".join(early[:EXAMPLES]) + (f" and {len(early) - EXAMPLES} more" * (len(early) > EXAMPLES))
    return (
        f"; {names} may answer WAITAOF before the disk has the write: with appendfsync everysec, durability='fsynced' "
        "and resizes wait until INFO shows that it has, for 1.2 seconds or longer"
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, with what to do in its text."""

    check: str
    text: str
    fix: str = ""
    """The repair by ``mend``, in words; empty where nothing can be mended without a risk."""
    mend: Mend | None = field(default=None, compare=False, repr=False)


def findings_on_servers(examined: Examined, replication: dict[str, Replication]) -> Iterator[Finding]:
    """``examined``: what ``health`` looks at, too."""
    advised: list[Advice] = [*examined.advised, *replicas_behind(replication)]
    for advice in advised:
        yield Finding(advice.check, advice.text)
    if examined.unserved is not None:
        for reason in examined.unserved.reasons:
            yield Finding("dispatchers", reason.text)


_TOLD_ELSEWHERE: Collection[Kind] = {"unseen_shards", "no_dispatcher", "unserved_shards", "strays"}
"""The kinds of reasons that other checks find."""


def findings_on_tasks(health: Health) -> Iterator[Finding]:
    """The reasons of the verdict that no other check finds."""
    for kind, reason in zip(health.kinds, health.reasons, strict=True):
        if kind not in OK and kind not in _TOLD_ELSEWHERE:
            yield Finding("tasks", reason)


def find_versions(cache: TopologyCache) -> Operation[list[Finding]]:
    """Finds processes of other builds than this one, and an older format than it writes."""
    members = yield from fleet(cache.control)
    found, stored = [], cache.topology.format
    others = Counter(member.version or "unknown" for member in members if member.version != __version__)
    if others:
        told = ", ".join(f"{count} of {version}" for version, count in sorted(others.items()))
        text = f"this is shardq {__version__}, and processes of other versions run: {told}; bring all to one version"
        found.append(Finding("versions", text))
    if stored < formats.FORMAT:
        text = (
            f"the engine is stored in format {stored}, so that builds from before format {formats.FORMAT} can use it: "
            "`shardq upgrade` raises it, when none of them runs any more"
        )
        found.append(Finding("versions", text))
    return found


def find_epochs(cache: TopologyCache) -> Operation[list[Finding]]:
    """Finds shards that missed the last change of the topology, or were lost."""
    topology = cache.topology
    answers = yield Many({keys: resharding.meta_fields(keys, "epoch").briefly() for keys in cache.span()})
    epochs = {keys: Stamp.of(told[0]).epoch for keys, told in succeeded(answers).items()}
    lost = [keys for keys, epoch in epochs.items() if not epoch]
    behind = [keys for keys, epoch in epochs.items() if 0 < epoch < topology.epoch]
    ahead = [keys for keys, epoch in epochs.items() if epoch > topology.epoch]
    found = []
    for some, text in (
        (lost, "was never opened, or its data was lost: the next command on it opens it"),
        (behind, f"missed the change to epoch {topology.epoch}: the next command on it tells it"),
    ):
        if some:
            fix = f"tell {_shards(some)} the topology of epoch {topology.epoch}; no task is touched"
            found.append(Finding("epochs", f"{_shards(some)} {text}", fix, partial(_open, cache, some)))
    if ahead:
        text = (
            f"{_shards(ahead)} knows a newer topology than the one that is stored, which a failover may have lost: any "
            "push or `shardq stats` restores it from the shards"
        )
        fix = f"restore it from {_shards(ahead)}"
        found.append(Finding("epochs", text, fix, partial(_restore_topology, cache, ahead)))
    return found


def _restore_topology(cache: TopologyCache, ahead: Sequence[ShardKeys]) -> Operation[Mended]:
    for keys in ahead:
        yield from call_shard(cache, keys, lambda keys, epoch: observe.peek(keys, epoch, []))
    return Mended(len(ahead))


def find_outside(cache: TopologyCache, *, everything: bool) -> Operation[list[Finding]]:
    """Finds shards out of use that hold tasks: as dispatchers do, or among all shards that there can be."""
    strays = yield from find_strays(cache, all_there_can_be=everything)
    if not strays:
        return []
    text = (
        f"{_shards(strays)} is out of use, and has tasks, or dedup windows of tasks: a server came back older. "
        "Nobody finds or handles them until a dispatcher starts, or looks, which it does each hour"
    )
    fix = "look for tasks there, too; dispatchers then move them home"
    return [Finding("epochs", text, fix, partial(_bring_home, cache, strays))]


def _bring_home(cache: TopologyCache, strays: Sequence[ShardKeys]) -> Operation[Mended]:
    yield from bring_strays_home(cache, strays)
    return Mended(len(strays))


def _open(cache: TopologyCache, shards: Sequence[ShardKeys]) -> Operation[Mended]:
    yield from open_shards(cache, shards)
    return Mended(len(shards))


def find_misplaced(cache: TopologyCache, shards: Sequence[ShardKeys], *, everything: bool) -> Operation[list[Finding]]:
    """Finds records in these shards that do not belong there; while the number of shards changes, some do by right."""
    topology = cache.topology
    if topology.priors or topology.pending:
        return []
    found = []
    for keys in shards:
        ids = yield from _records(cache, keys, everything=everything)
        elsewhere = [
            (home, id) for home, id in zip(topology.shards_of(map(raw, ids)), ids, strict=True) if home != keys.shard
        ]
        if elsewhere:
            text = (
                f"shard {keys.shard}: {len(elsewhere):,} of {len(ids):,} ids belong to another shard, like "
                f"{_examples(id for _, id in elsewhere)}: they are dispatched, but no get, cancel or push finds them"
            )
            fix = "move those of them that are scheduled or dead to where they belong, as a resize does"
            found.append(Finding("places", text, fix, partial(_move, cache, keys, elsewhere)))
    return found


def _move(cache: TopologyCache, keys: ShardKeys, elsewhere: list[tuple[int, str]]) -> Operation[Mended]:
    pipeline = MigrationPipeline(cache, cache.topology, keys, MoveTokens(f"doctor-{secrets.token_hex(4)}"))
    moved = 0
    for at in range(0, len(elsewhere), resharding.BATCH):
        moved += yield from pipeline.advance(elsewhere[at : at + resharding.BATCH])
    moved += yield from pipeline.finish()
    return Mended(moved, len(elsewhere) - moved)


_KINDS: dict[Fault, tuple[str, str, str]] = {
    "lost": (
        "task",
        "with a record in no list or set, like {ids}: nobody will ever get them",
        "schedule them for now, so that they are dispatched at once",
    ),
    "unlaned": (
        "task",
        "scheduled without its key knowing it, like {ids}: nobody will ever get them",
        "have their keys know them, so that they are given when they are due",
    ),
    "empty": (
        "id",
        "in a set without a record, like {ids}: their tasks are gone, by eviction or by hand; the ids are dropped when "
        "they are due, or trimmed",
        "",
    ),
}
"""Fault → what has it, what is said of those, and the repair."""


def find_orphans(cache: TopologyCache, shards: Sequence[ShardKeys], *, everything: bool) -> Operation[list[Finding]]:
    """Finds what no consumer will ever get in these shards: records without a place, places without a record, and tasks
    that their keys don't know.
    """
    found = []
    for keys in shards:
        ids = yield from _records(cache, keys, everything=everything)
        if everything:
            ids = yield from _not_in_ready_lists(keys, ids)
        ids += yield from _placed(keys, everything=everything)
        faults = yield from find_faults(cache, keys, ids)
        for fault, (noun, text, fix) in _KINDS.items():
            if wrong := [id for id, its in faults.items() if its == fault]:
                text = f"shard {keys.shard}: {counted(len(wrong), noun)} {text.format(ids=_examples(wrong))}"
                mend = partial(_restore, cache, keys, wrong) if fix else None
                found.append(Finding("records", text, fix, mend))
    unreadable: dict[ShardKeys, list[str]] = succeeded(
        (yield Many({keys: resharding.unreadable(keys) for keys in shards}))
    )
    for keys, ids in unreadable.items():
        if ids:
            text = (
                f"shard {keys.shard}: {len(ids):,} fields of {keys.moved} can't be read, like {_examples(ids)}: "
                "another program, or another version of shardq, has written them; upgrade, or remove them"
            )
            found.append(Finding("records", text))
    return found


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
    return ", ".join(repr(id) for id, _ in zip(ids, range(EXAMPLES), strict=False))
