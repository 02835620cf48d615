"""Announcing another number of shards, bringing it in force, and forgetting the earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from shardq.atlas import Atlas
from shardq.calls import grow
from shardq.calls.observe import peek
from shardq.errors import ChangeUnderWay, ShardqError
from shardq.growth.handle import Progress
from shardq.growth.preview import Holding, Preview, preview
from shardq.layout.keys import ShardKeys
from shardq.operation import Barrier, Many, Operation, Pause, come_in_force, declared, everywhere, opened, refreshed

LOOK_S = 0.02
PATIENCE_S = 3.0
"""For the dispatchers to begin with the new shards: the time in which a dead one is noticed."""


def resized(atlas: Atlas, shards: int, *, rate: float | None, members: int) -> Operation[None]:
    """Returns when ``shards`` is in force. Begins the change, or goes on with one that was interrupted, then at this
    rate.

    ``members``: how many dispatchers live; without any nobody has to be waited for.
    """
    yield from refreshed(atlas)
    yield from _announced(atlas, shards, rate)
    if atlas.topology.pending is None:
        yield from _paced(atlas, shards, rate)
        return
    new = [atlas.keys(shard) for shard in range(atlas.topology.shards, atlas.topology.pending)]
    yield from opened(atlas, new, anew=True)
    waited = 0.0
    while members and waited < PATIENCE_S and not (yield from _all_polled(new)):
        yield Pause(LOOK_S)
        waited += LOOK_S
    yield from come_in_force(atlas)
    yield from _paced(atlas, shards, rate)


def _announced(atlas: Atlas, shards: int, rate: float | None) -> Operation[None]:
    while True:
        known = atlas.topology
        if known.pending not in (None, shards):
            assert known.pending is not None, "just compared"
            raise ChangeUnderWay(known.pending, shards)
        if known.pending == shards or known.shards == shards:
            return
        announced = msgspec.structs.replace(known, epoch=known.epoch + 1, pending=shards, move_rate=rate)
        if (yield from declared(atlas, known.epoch, announced)):
            return


def _paced(atlas: Atlas, shards: int, rate: float | None) -> Operation[None]:
    """Gives a change that is in force another rate. One that is announced is left: anybody may be completing it."""
    while True:
        known = atlas.topology
        if not known.priors or (known.shards, known.pending) != (shards, None) or known.move_rate == rate:
            return
        paced = msgspec.structs.replace(known, epoch=known.epoch + 1, move_rate=rate)
        if (yield from declared(atlas, known.epoch, paced)):
            # whoever moves by the old one is refused, and begins anew by this one
            yield from opened(atlas, atlas.span())
            return


def _all_polled(shards: list[ShardKeys]) -> Operation[bool]:
    """A poller's first step writes the instant up to which it sleeps."""
    answers = yield Many([grow.meta_fields(keys, "wake_at") for keys in shards])
    return all(not isinstance(fields, ShardqError) and fields[0] is not None for _, fields in answers)


def unswept(atlas: Atlas, shards: Sequence[int]) -> Operation[list[ShardKeys]]:
    """Those of some shards in which something may belong elsewhere since the present number came in force."""
    since = b"%d" % atlas.topology.since
    asked = [(atlas.keys(shard), grow.meta_fields(atlas.keys(shard), "swept")) for shard in shards]
    keys_of = {id(request): keys for keys, request in asked}
    answers = yield Many([request for _, request in asked])
    return [
        keys_of[id(request)] for request, fields in answers if isinstance(fields, ShardqError) or fields[0] != since
    ]


def progress(atlas: Atlas, *, shards: int = 0) -> Operation[Progress]:
    """How far the change is, by the topology as it is stored now.

    ``shards``: how many there were at some time: what was moved out of those no longer used counts, too.
    """
    yield from refreshed(atlas)
    topology = atlas.topology
    span = topology.span()
    asked = [grow.meta_fields(atlas.keys(shard), "swept", "moved") for shard in range(max(shards, len(span)))]
    within = {id(request) for request in asked[: len(span)]}
    since = b"%d" % topology.since
    swept = moved = 0
    for request, fields in (yield Many(asked)):
        if not isinstance(fields, ShardqError):
            swept += id(request) in within and fields[0] == since
            moved += int(fields[1] or 0)
    return Progress(
        shards=topology.shards,
        in_force=topology.pending is None,
        swept=swept if topology.priors else len(span),
        of=len(span),
        moved=moved,
        done=topology.pending is None and not topology.priors,
    )


def forgotten(atlas: Atlas) -> Operation[bool]:
    """Forgets the earlier numbers when every shard is swept; says whether they are forgotten now."""
    topology = atlas.topology
    if topology.pending is not None:
        return False
    if not topology.priors:
        return True
    state = yield from progress(atlas)
    if state.swept < state.of:
        return False
    # what was said of a shard, and all that was done before it, is on the replicas: else a failover could bring back
    # what belongs elsewhere when nobody looks for it any more
    span, barrier = atlas.span(), Barrier(atlas)
    yield from barrier.behind(span)
    state = yield from progress(atlas)
    if atlas.topology.epoch != topology.epoch or state.swept < state.of or (yield from barrier.behind(span)):
        return False
    # shards that are no longer used are told too: their metas stay and refuse whoever still knows them
    following = msgspec.structs.replace(topology, epoch=topology.epoch + 1, priors=(), move_rate=None)
    if (yield from declared(atlas, topology.epoch, following)):
        yield from opened(atlas, span)
        # only now, and nowhere where a failover may undo that: whoever left a mark and stands still can take nothing
        if not (yield from barrier.behind(span)):
            yield Many([grow.unmark(keys, following.epoch) for keys in span])
    return not atlas.topology.priors


def previewed(atlas: Atlas, shards: int, node_of: Callable[[int], str]) -> Operation[Preview]:
    """What a change to ``shards`` would move now. ``node_of`` says which node serves a slot."""
    yield from refreshed(atlas)
    topology = atlas.topology
    holdings: dict[int, Holding] = {}
    for keys, glance in (yield from everywhere(atlas, lambda keys, epoch: peek(keys, epoch, []))):
        size = yield grow.record_bytes(keys)
        records = yield grow.records(keys)
        tasks = glance.scheduled + glance.dead
        # those that are ready or running stay, and so do their bytes
        holdings[keys.shard] = Holding(tasks, size * tasks // max(tasks, records, 1), node_of(keys.slot))
    targets = {shard: node_of(atlas.keys(shard).slot) for shard in range(shards)}
    return preview(topology.shards, shards, holdings, targets)
