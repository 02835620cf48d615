"""Takes back what was pushed ahead of a schedule that was then changed, paused or removed.

An id is pushed before it is cancelled. So a dispatcher that was stopped on its way to push it, and goes on later, finds
it taken, or remembered. Between the two it is held back at the end of the year 9999, where everybody who repeats this
finds it: so that one that was held back is never taken for one that ran.
"""

from __future__ import annotations

import msgspec

from shardq.calls import schedules
from shardq.calls.request import Call
from shardq.errors import Unanswered
from shardq.model.checks import MAX_AT_MS
from shardq.model.record import RAW, encode_head, encode_record
from shardq.model.task import Outcome
from shardq.operation import Operation
from shardq.producer import by_id
from shardq.producer.pushing import push_unique
from shardq.schedules.entry import Entry, State, encode
from shardq.schedules.planning import DAY_MS
from shardq.topology_cache import TopologyCache

_NOTHING = encode_record(RAW, b"", encode_head(expires=1))
"""A task that has expired since 1970."""

_TRIES = 5


def retract(cache: TopologyCache, entry: Entry) -> Operation[State | None]:
    """Takes back what the state says, and returns the state after that; None if somebody else changed it meanwhile."""
    state, stored = entry.state, entry.stored
    if state.retract:
        held, ran = [], []
        for id, occurrence in state.retract:
            if (yield from _hold(cache, id)):
                held.append(id)
            else:
                ran.append(occurrence)
        following = msgspec.structs.replace(
            state,
            retract=(),
            held=(*state.held, *held),
            since_ms=max(state.since_ms, *ran) if ran else state.since_ms,
            last_ms=max(ran, default=state.last_ms),
        )
        if not (yield _set(cache, entry.name, stored, following)):
            return None
        state, stored = following, encode(following)
    if state.held:
        for id in state.held:
            yield from by_id.cancel(cache, id)
        following = msgspec.structs.replace(state, held=())
        if not (yield _set(cache, entry.name, stored, following)):
            return None
        state = following
    return state


def _hold(cache: TopologyCache, id: str) -> Operation[bool]:
    """Returns True if the task is held back; False if it ran, or is about to."""
    yield from push_unique(cache, [id, MAX_AT_MS, _NOTHING, "keep", DAY_MS])
    for _ in range(_TRIES):
        outcome = yield from by_id.reschedule(cache, id, MAX_AT_MS)
        if outcome is not Outcome.UNKNOWN:
            return outcome is Outcome.MOVED
        # an answer was lost; if it had been moved by that call, the next one moves it once more
    raise Unanswered(f"answers about {id!r} were lost again and again; repeat it")


def _set(cache: TopologyCache, name: str, seen: bytes, state: State) -> Call[bool]:
    return schedules.set_schedule(cache.control, name, seen=seen, state=encode(state), tell=False)
