"""The look of ``deaf``: ready tasks for which nobody was woken although a process waits for their topic.

Servers keep the names of waiting processes by list, ``waiting/TOPIC`` of each shard, and draw one for each task that
arrives. A process that is drawn takes the task or has another one drawn. So names go while a list has something in it,
until it is empty or no name is left; names are added to empty lists only. **A list is deaf where nothing of this goes
on for a while**: the same task is at its head, and the same names of living processes are beside it.

Names of processes at work are beside a list, too, where tasks came while nobody was woken for them: the topic was
paused, limited or forwarded. Such topics are left out, also for a while after that; and so are those whose workers have
no free place.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from shardq.core.calls import observe
from shardq.core.calls.request import Command
from shardq.core.fleet.member import Member, serves, workers
from shardq.core.layout.keys import ShardKeys
from shardq.core.model.ids import quoted_topic, shown_topic
from shardq.core.operation import Many, Operation, Pause, succeeded
from shardq.core.topology_cache import TopologyCache
from shardq.engine.engine_wide import CountsByShard, read_changes
from shardq.engine.findings import Finding, found, named

DEAF_S = 5.0
"""A task that is ready for less may be on its way to a process: a hundred that are at work are drawn in a second."""

AGAIN_S = 1.2
"""The time between two looks. A process that is drawn and has no time for the task has another one drawn within a
second, also when it does not reach the server at first. Less than half of the time for a look at an engine.
"""

HELD_S = 600.0
"""How long a topic is left out after an operator's change of it."""

MOST_LISTS = 64
"""The lists that are looked at, the oldest tasks first."""

MOST_NAMES = 128
"""The names of a list that are looked at: those that are drawn next."""

_List = tuple[ShardKeys, str]

T = TypeVar("T")


class _Look(NamedTuple):
    head: str
    names: tuple[str, ...]
    """The living processes that wait."""


def find_deaf(
    cache: TopologyCache, counts_by_shard: CountsByShard, fleet: Sequence[Member]
) -> Operation[list[Finding]]:
    """Looks at the lists whose tasks have waited for a while, and again after a moment at those that seem deaf."""
    topology = cache.topology
    held = {*topology.paused, *topology.limits, *topology.routes}
    waited_ms = {
        (keys, topic): ms
        for keys, counts in succeeded(counts_by_shard).items()
        for topic, ms in counts.waited_ms.items()
        if ms >= DEAF_S * 1000 and topic not in held and _has_time(fleet, topic)
    }
    first = yield from _look(sorted(waited_ms, key=waited_ms.__getitem__, reverse=True)[:MOST_LISTS])
    if not first:
        return []
    changed = yield from _changed_lately(cache, {topic for _, topic in first})
    began = time.monotonic()
    yield Pause(AGAIN_S)
    if time.monotonic() < began + AGAIN_S:
        return []  # the time of the whole look is over
    again = yield from _look(each for each in first if each[1] not in changed)
    of_topic: dict[str, list[ShardKeys]] = {}
    for (keys, topic), look in again.items():
        if look == first[keys, topic]:
            of_topic.setdefault(topic, []).append(keys)
    return [_deaf(topic, some, waited_ms, again) for topic, some in of_topic.items()]


def _deaf(
    topic: str, some: Sequence[ShardKeys], waited_ms: Mapping[_List, int], looks: Mapping[_List, _Look]
) -> Finding:
    oldest = max(some, key=lambda keys: waited_ms[keys, topic])
    return found(
        "deaf",
        about=topic,
        topic=quoted_topic(topic),
        shards=named([keys.shard for keys in some]),
        seconds=waited_ms[oldest, topic] / 1000 + AGAIN_S,
        process=looks[oldest, topic].names[0],
    )


def _has_time(fleet: Sequence[Member], topic: str) -> bool:
    """False if every worker that serves the topic is busy. Programs with consumers of their own report nothing."""
    serving = [worker for worker in workers(fleet) if serves(worker, topic)]
    return not serving or any(worker.running < worker.concurrency for worker in serving)


def _look(lists: Iterable[_List]) -> Operation[dict[_List, _Look]]:
    """Returns the lists that are not empty and have living processes that wait for their tasks."""
    names = yield from _answers({each: observe.waiting(*each, MOST_NAMES) for each in lists})
    living = yield from _answers({each: observe.listening(each[0], those) for each, those in names.items()})
    heads = yield from _answers({each: observe.head(*each) for each in living})
    return {each: _Look(head, tuple(living[each])) for each, head in heads.items()}


def _answers(looks: dict[_List, Command[T]]) -> Operation[dict[_List, T]]:
    """The answers that say something."""
    answers = (yield Many({each: look.briefly() for each, look in looks.items()})) if looks else []
    return {each: answer for each, answer in succeeded(answers).items() if answer}


def _changed_lately(cache: TopologyCache, topics: Collection[str]) -> Operation[set[str]]:
    """Returns the topics that an operator has changed lately."""
    since = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=HELD_S)
    lately = [change.what for change in (yield from read_changes(cache)) if change.at >= since]
    return {topic for topic in topics if any(what.startswith(f"topic {shown_topic(topic)}: ") for what in lately)}
