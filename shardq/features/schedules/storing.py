"""Reading schedules and writing their states, many in one trip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shardq.core.calls import control as calls
from shardq.core.calls.control import BATCH, Change
from shardq.core.calls.request import Call
from shardq.core.operation import Many, Operation, values
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ShardqError
from shardq.features.schedules.entry import Entry, State, Unreadable, decode_entry


@dataclass(slots=True)
class Found:
    """Schedules as they were read, and the clock of the control slot's master."""

    now_ms: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)
    unreadable: dict[str, Unreadable] = field(default_factory=dict)

    def get(self, name: str) -> Entry | Unreadable | None:
        return self.entries.get(name) or self.unreadable.get(name)


def read(cache: TopologyCache, names: Iterable[str], *, briefly: bool = False) -> Operation[Found]:
    """Reads the schedules of these names."""
    result, left = Found(), list(names)
    while left:
        parts, left = _parts(left), []
        requests = {at: _brief(calls.schedules(cache.control, part), briefly) for at, part in enumerate(parts)}
        for at, found in values((yield Many(requests))).items():
            result.now_ms = found.now_ms
            left += parts[at][found.looked_for :]
            for name, (state, declaration) in found.stored.items():
                entry = decode_entry(name, state, declaration)
                if isinstance(entry, Entry):
                    result.entries[name] = entry
                else:
                    result.unreadable[name] = entry
    return result


def read_all(cache: TopologyCache, *, briefly: bool = False) -> Operation[Found]:
    """Reads all schedules. Where there are none, one command says so."""
    names = calls.schedule_names(cache.control)
    return (yield from read(cache, (yield names.briefly() if briefly else names), briefly=briefly))


def _parts(names: list[str]) -> list[list[str]]:
    return [names[at : at + BATCH] for at in range(0, len(names), BATCH)]


def _brief(call: Call[calls.Schedules], briefly: bool) -> Call[calls.Schedules]:
    return call.briefly() if briefly else call


@dataclass(slots=True)
class Written:
    """The result of writing states. Schedules that somebody else has changed meanwhile are in neither."""

    entries: dict[str, Entry] = field(default_factory=dict)
    """Name → the schedule as it is then."""
    errors: dict[str, ShardqError] = field(default_factory=dict)


def write(cache: TopologyCache, states: Mapping[str, tuple[Entry, State]]) -> Operation[Written]:
    """Writes following states of schedules that were read. Nobody is told: these are written while occurrences are
    pushed, or taken back.
    """
    result = Written()
    following = {name: entry.following(state) for name, (entry, state) in states.items()}
    parts = _parts(list(states))
    requests = {at: _set(cache, states, following, part) for at, part in enumerate(parts)}
    for at, written in (yield Many(requests)):
        if isinstance(written, ShardqError):
            result.errors |= dict.fromkeys(parts[at], written)
        else:
            result.entries |= {name: following[name] for name, done in zip(parts[at], written, strict=True) if done}
    return result


def _set(
    cache: TopologyCache,
    states: Mapping[str, tuple[Entry, State]],
    following: Mapping[str, Entry],
    names: Sequence[str],
) -> Call[list[bool]]:
    changes = [Change(name, states[name][0].stored, following[name].stored) for name in names]
    return calls.set_schedule(cache.control, changes, tell=False)
