"""A process's report about itself: its form in Redis, its bounds, and when it is sent. Used by ``member``, which reads
reports, and by dispatchers and workers, which send theirs. No I/O.

A report is a msgpack map, whose fields are those of ``Report``; ``lua/README.md`` has them for other clients. It takes
``MOST_BYTES`` at most, whatever a process serves.
"""

from __future__ import annotations

import heapq
import math
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from shardq.core.fleet.lateness import BINS, EXACT, MOST_TOPICS, OTHERS, PER_DOUBLING, Lateness
from shardq.core.layout import formats
from shardq.core.layout.slots import MAX_SHARDS
from shardq.core.layout.words import UNDECODABLE
from shardq.core.model.checks import MAX_AT_MS, MAX_WAIT_S

S = TypeVar("S", bound=msgspec.Struct)

MOST_BYTES = 8192

MOST_ERROR = 300
"""Characters of an error."""

MOST_ROUTES = 16
MOST_ROUTE_TEXT = 120
"""Characters of the URL of a route, and of its error."""

MOST_TASKS = 32
MOST_UNKNOWN = 8
MOST_RUNNING = 4
MOST_PROBLEMS = 4
MOST_NAME = 120
"""Characters of the name of a call, of an id, and of a problem."""

LONG_S = 10.0
"""A task that runs for less is not named: a worker reports every ten seconds."""

LEAST_GAP_S = 5.0
"""The time between two reports that differ in counters only."""


CircuitState = Literal["closed", "open", "half-open"]


class RouteStats(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of what a process has sent of a topic whose route leads elsewhere, since the route was set or the
    process started.

    >>> for each in engine.stats().sinks:
    ...     print(each.topic, each.to, each.circuit, each.sent, each.failed, each.retried, each.buried, each.error)
    """

    topic: str
    to: str
    """The URL, without its secrets."""
    circuit: CircuitState = "closed"
    """``open``: the other side is down, and nothing is sent for a moment; ``half-open``: a few tasks are tried."""
    sent: int = 0
    """Tasks that the other side has taken."""
    failed: int = 0
    """Tries that it has not taken, for any reason."""
    retried: int = 0
    """Failed tries that count as an attempt of the task, which is tried again later."""
    buried: int = 0
    """Tasks that are dead: the other side refused them for good, or they had no attempt left."""
    error: str = ""
    """Why the circuit is not closed; empty while it is."""


def together(reports: Iterable[RouteStats]) -> tuple[RouteStats, ...]:
    """One for each topic, of what several processes have sent of it: the worse circuit, and the sums of the counters.

    >>> one, other = (RouteStats(topic="mail", to="nats://n", sent=sent) for sent in (2, 3))
    >>> together([one, other])[0].sent
    5
    """
    added: dict[str, RouteStats] = {}
    for route in reports:
        known = added.get(route.topic)
        added[route.topic] = route if known is None else _added(known, route)
    return tuple(route for _, route in sorted(added.items()))


def _added(one: RouteStats, other: RouteStats) -> RouteStats:
    worse = other if one.circuit == "closed" else one
    sums = {name: getattr(one, name) + getattr(other, name) for name in ("sent", "failed", "retried", "buried")}
    return msgspec.structs.replace(worse, **sums)


def first_routes(routes: Iterable[RouteStats]) -> tuple[RouteStats, ...]:
    """Those that a report names: that fail, and then those that have sent most."""
    return tuple(heapq.nsmallest(MOST_ROUTES, routes, key=lambda route: (route.circuit == "closed", -route.sent)))


class UnknownCall(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one named task that a worker was given lately, and does not know.

    >>> for call in UNKNOWN:
    ...     print(call.task, call.topic, call.count, call.seconds)
    """

    task: str
    """The name of the function."""
    topic: str
    count: int
    """How often the worker has given such a call back."""
    seconds: float
    """The time since it met the first of them."""


class RunningTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task whose handler has been running for ten seconds or longer.

    >>> for task in LONGEST:
    ...     print(task.id, task.topic, task.seconds)
    """

    id: str
    topic: str
    seconds: float
    """The time for which its handler has been running."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a process that its report has as ``engine.fleet()`` shows them."""

    host: str = ""
    """Empty, like all that follows, for a process that has sent no report that can be read."""
    pid: int = 0
    version: str = ""
    """Its build of shardq: a version, of a checkout with its revision."""
    format: int = 0
    """The newest format of an engine's data that it reads."""
    features: tuple[str, ...] = ()
    """The features of engines that it knows."""
    since: float = 0.0
    """When it started, in seconds since 1970 by its own clock. All counters count since then."""
    topics: tuple[str, ...] = ()
    """The topics that a worker serves, in their order of priority; of more than 64 the first, and ``*``."""
    concurrency: int = 0
    """The handlers that a worker runs at once, at most."""
    running: int = 0
    """The handlers that ran when it made its report."""
    dispatched: int = 0
    """Tasks that a dispatcher has moved to ready lists."""
    handled: int = 0
    """Tasks whose handler returned."""
    failed: int = 0
    """Attempts that failed: the handler raised, or took too long."""
    retried: int = 0
    """Failed attempts after which the task came again, or died of its last one."""
    snoozed: int = 0
    """Tasks whose handler gave them back for later (``Snooze``)."""
    batches: int = 0
    """The calls of a worker's handlers of batches."""
    batched: int = 0
    """The tasks that these calls got: by ``batches``, how large a batch was."""
    tasks: tuple[str, ...] = ()
    """The named tasks that a worker knows; of more than 32 the first, and ``*``."""
    unknown: tuple[UnknownCall, ...] = ()
    """The calls that a worker was given lately, and does not know: the 8 that it gave back most often."""
    longest: tuple[RunningTask, ...] = ()
    """The 4 tasks of a worker whose handlers have been running longest, of those that run for ten seconds or more."""
    stuck: int = 0
    """The handlers of a worker that have been running for longer than their timeout, or ten minutes without one."""
    problems: tuple[str, ...] = ()
    """The reasons why a worker is not healthy, ``Worker.problems``, or why a dispatcher can't load far tasks."""
    sinks: tuple[RouteStats, ...] = ()
    """The routes elsewhere that a dispatcher serves, by topic; of more than 16 those that fail, and then those that
    have sent most.
    """
    forwards: int = 0
    """The number of topics that a dispatcher forwards elsewhere, named or not."""
    loads: bool = False
    """True for a dispatcher that loads what waits in another store and falls due."""
    loads_from: str = ""
    """The place of that store; empty where it is not known."""


class Report(Facts, frozen=True, kw_only=True, omit_defaults=True):
    """The report of a process on itself, as it is stored. ``Reports`` adds which process it is."""

    alive_s: float
    """The time for which a heartbeat says that it lives."""
    shards: tuple[int, ...] = ()
    """The shards that a dispatcher serves, as the first and the last of each run."""
    error: str = ""
    dispatch: dict[str, list[int]] = {}
    """Topic → its dispatch lateness, as ``sparse``."""
    pickup: dict[str, list[int]] = {}
    """Topic → the pick-up lateness, in the same form."""
    key_wait: dict[str, list[int]] = {}
    """Topic → how long its tasks with a key waited, in the same form."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Report)


def encode(report: Report) -> bytes:
    """The stored form. If it took too many bytes, topics with few tasks are put together, and in the end bins."""
    most = MOST_TOPICS
    while True:
        routes = _first(first_routes(report.sinks), most, lambda _: 0, to=MOST_ROUTE_TEXT, error=MOST_ROUTE_TEXT)
        fitting = msgspec.structs.replace(
            report,
            host=_text(report.host, 64),
            topics=named(report.topics, most),
            error=_text(report.error, MOST_ERROR),
            tasks=_named_tasks(report.tasks, min(most, MOST_TASKS)),
            unknown=_first(report.unknown, min(most, MOST_UNKNOWN), lambda call: -call.count, task=MOST_NAME),
            longest=_first(report.longest, min(most, MOST_RUNNING), lambda task: -task.seconds, id=MOST_NAME),
            problems=tuple(_text(each, MOST_NAME) for each in report.problems[: min(most, MOST_PROBLEMS)]),
            dispatch=_fewer(report.dispatch, most),
            pickup=_fewer(report.pickup, most),
            key_wait=_fewer(report.key_wait, most),
            sinks=tuple(sorted(routes, key=lambda route: route.topic)),
            forwards=max(report.forwards, len(report.sinks)),
        )
        text = _encoder.encode(fitting)
        if len(text) <= MOST_BYTES:
            return text
        if not most:
            coarse = {name: _coarse(getattr(fitting, name)) for name in ("dispatch", "pickup", "key_wait")}
            return _encoder.encode(msgspec.structs.replace(fitting, **coarse))
        most //= 2


def decode(text: bytes) -> Report | None:
    """None: a report of another form, or of what can't be, which says nothing to this version."""
    try:
        report = _decoder.decode(text)
    except UNDECODABLE:
        return None
    times = [each.seconds for each in report.unknown] + [each.seconds for each in report.longest]
    is_sound = (
        all(0 <= each <= MAX_WAIT_S for each in (report.alive_s, *times))
        and 0 <= report.since <= MAX_AT_MS / 1000
        and all(0 <= shard < MAX_SHARDS for shard in report.shards)
    )
    return report if is_sound else None


def named(topics: Iterable[str], most: int = MOST_TOPICS) -> tuple[str, ...]:
    """The first of these topics, and ``OTHERS`` if there are more."""
    topics = tuple(topics)
    return topics if len(topics) <= most else (*topics[:most], OTHERS)


def _text(text: str, most: int) -> str:
    """Its first characters, of which none is half of a pair: no heartbeat may fail for what an error says."""
    return text[:most].encode("utf-8", "replace").decode()


def _fewer(histograms: dict[str, list[int]], most: int) -> dict[str, list[int]]:
    if len(histograms) <= most:
        return histograms
    by_count = sorted(histograms, key=lambda topic: (topic == OTHERS, -sum(histograms[topic][2::2])))
    kept, rest = by_count[:most], by_count[most:]
    others = Lateness.total(dense(histograms[topic]) for topic in rest)
    return {topic: histograms[topic] for topic in kept} | {OTHERS: sparse(others)}


def _first(parts: Iterable[S], most: int, order: Callable[[S], Any], **texts: int) -> tuple[S, ...]:
    """The first of some parts in an order. ``texts``: the most characters of each of these fields."""
    return tuple(
        msgspec.structs.replace(each, **{name: _text(getattr(each, name), size) for name, size in texts.items()})
        for each in sorted(parts, key=order)[:most]
    )


def _named_tasks(tasks: tuple[str, ...], most: int) -> tuple[str, ...]:
    """Returns the names that fit, and ``OTHERS`` if there are more."""
    fitting = tuple(task for task in tasks if _text(task, MOST_NAME) == task)[:most]
    return fitting if fitting == tasks else (*fitting, OTHERS)


def _coarse(histograms: dict[str, list[int]]) -> dict[str, list[int]]:
    """All tasks of a doubling in its last bin: none reads lower than it was."""
    found: dict[str, list[int]] = {}
    for topic, flat in histograms.items():
        lateness = dense(flat)
        counts = [0] * BINS
        for at, count in enumerate(lateness.counts):
            counts[at if at < EXACT else min(at | (PER_DOUBLING - 1), BINS - 1)] += count
        found[topic] = sparse(Lateness(tuple(counts), lateness.early))
    return found


def sparse(lateness: Lateness) -> list[int]:
    """The stored form of a histogram: tasks that were early, then each bin that is not empty and the tasks in it."""
    flat = [lateness.early]
    for at, count in enumerate(lateness.counts):
        if count:
            flat += (at, count)
    return flat


def dense(flat: list[int]) -> Lateness:
    """The histogram of a stored form."""
    bins = dict(zip(flat[1::2], flat[2::2], strict=False))
    counts = [max(0, bins.get(at, 0)) for at in range(min(max(bins, default=-1) + 1, BINS))]
    return Lateness(tuple(counts), flat[0] if flat else 0)


def by_topic(histograms: Mapping[str, Lateness]) -> dict[str, list[int]]:
    return {topic: sparse(lateness) for topic, lateness in histograms.items()}


def runs(shards: Iterable[int]) -> tuple[int, ...]:
    """Shards as the first and the last of each run.

    >>> runs([0, 1, 2, 7])
    (0, 2, 7, 7)
    """
    flat: list[int] = []
    for shard in sorted(shards):
        if flat and flat[-1] == shard - 1:
            flat[-1] = shard
        else:
            flat += (shard, shard)
    return tuple(flat)


def shards_of(flat: tuple[int, ...]) -> tuple[int, ...]:
    """The shards of such runs."""
    pairs = zip(flat[0::2], flat[1::2], strict=False)
    return tuple(sorted({shard for first, last in pairs for shard in range(first, last + 1)}))


def _signed(report: Report) -> Report:
    """The report as that of this process."""
    from shardq.version import __version__  # here: it brings importlib.metadata

    return msgspec.structs.replace(
        report,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=__version__,
        format=formats.FORMAT,
        features=tuple(sorted(formats.FEATURES)),
    )


class Reports:
    """Decides which report goes with each heartbeat of one process: none while it is as before. One thread calls it."""

    def __init__(self, make: Callable[[float], Report]) -> None:
        """``make``: makes the present report, given the time for which the heartbeat counts."""
        self._make = make
        self._sent = b""
        self._sent_at = -math.inf
        self._known: object = None
        """The part of the last report that others should know at once."""

    def next(self, now: float, alive_s: float) -> bytes:
        """The report to send at ``now``; empty when none is needed."""
        report = self._make(alive_s)
        if self._news_of(report) == self._known and now - self._sent_at < LEAST_GAP_S:
            return b""
        text = encode(_signed(report))
        return b"" if text == self._sent else text

    def sent(self, text: bytes, now: float) -> None:
        """Notes what was stored."""
        if text:
            self._sent, self._sent_at, self._known = text, now, self._news_of(_decoder.decode(text))

    def forgotten(self) -> None:
        """Notes that nothing of this process is stored any more."""
        self._sent, self._sent_at, self._known = b"", -math.inf, None

    def has_news(self, alive_s: float) -> bool:
        """True if something has changed that others should know at once: not a counter."""
        return self._news_of(self._make(alive_s)) != self._known

    @staticmethod
    def _news_of(report: Report) -> object:
        # of more topics than it names, others may be named each time
        every = report.forwards == len(report.sinks)
        routes = sorted((route.topic, route.circuit) for route in report.sinks if every or route.circuit != "closed")
        return report.alive_s, report.shards, report.forwards, [(topic, how == "closed") for topic, how in routes]
