"""The common base of both engines: their options, the topology cache, and what they make of it without waiting."""

from __future__ import annotations

import datetime as dt
import inspect
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from shardq.core import forks
from shardq.core.calls.node_info import Replication
from shardq.core.consumer.claim_planner import ReadyCounts
from shardq.core.consumer.claims import Claims
from shardq.core.dispatcher import Dispatcher
from shardq.core.drivers.router import ConnectionCounts
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.layout.topology import Route, Topology
from shardq.core.model.checks import MAX_PAYLOAD, Topics, check_name, checked_topics
from shardq.core.model.record import Codec
from shardq.core.model.task import Task
from shardq.core.operation import Operation
from shardq.core.producer.packing import Entries, Packer
from shardq.core.subscriber import Subscriber
from shardq.core.topology_cache import TopologyCache
from shardq.engine import advice, servers
from shardq.engine.advice import Advice
from shardq.engine.arguments import check_batch
from shardq.engine.control import CountsByShard, edit_topology
from shardq.engine.health import MAX_DEAD, Examined, Health, Reason, find_deaths, find_unserved, judge
from shardq.engine.options import (
    DEFAULT_CONNECT_TIMEOUT_S,
    DEFAULT_NAME,
    DEFAULT_SPOOL_BYTES,
    DEFAULT_TIMEOUT_S,
    Options,
    lease_ms,
)
from shardq.engine.parts import Parts
from shardq.engine.rates import RateMeter
from shardq.engine.stats import Relay, Stats, stats_of
from shardq.errors import AccessDenied, EngineClosed, InvalidOption, ServerFault, ShardqError
from shardq.features import embedded
from shardq.features.replay.journal import DEFAULT_BYTES, Journal
from shardq.features.schedules.declaring import Summary
from shardq.features.sinks.functions import BatchFunction
from shardq.features.sinks.senders import Senders
from shardq.worker.handlers import Registry, TaskFunction

if TYPE_CHECKING:
    from shardq.core.drivers.aio import AsyncDriver
    from shardq.engine.tracing import Tracing
    from shardq.features.replay.replayer import Replayer
    from shardq.features.spool.spool import Spool
    from shardq.features.spool.stats import SpoolStats
    from shardq.worker.handlers import Plan
    from shardq.worker.processor import Processor
    from shardq.worker.report import Outcomes

LISTENING = 1
"""Connections of a subscriber to each node."""


class EngineBase(forks.OfOneProcess):
    """The base of ``Engine`` and ``AsyncEngine``. No I/O but the embedded server's coming and going."""

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str = DEFAULT_NAME,
        shards: int | None = None,
        codec: str | Codec = "json",
        max_payload: int = MAX_PAYLOAD,
        max_attempts: int | None = None,
        dead_age: float | dt.timedelta | None = None,
        dead_count: int | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        connect_timeout: float = DEFAULT_CONNECT_TIMEOUT_S,
        protocol: int = 3,
        fsync: embedded.Fsync = "everysec",
        spool: str | os.PathLike[str] | None = None,
        spool_bytes: int = DEFAULT_SPOOL_BYTES,
        replay: float | None = None,
        replay_bytes: int = DEFAULT_BYTES,
    ) -> None:
        """Checks its arguments; connects later.

        ``url``: redis://, rediss://, unix://, redis+cluster://, redis+sentinel:// or embedded://; none: $SHARDQ_URL,
        else an embedded server in the user's data directory, which the log and ``health().warnings`` tell, and which
        $SHARDQ_EMBEDDED=never forbids. ``timeout``: the seconds in which every call of the engine ends, with all of its
        retries, through failovers, moving slots and loading servers; a ``claim`` has its ``wait`` beside it.
        ``connect_timeout``: the seconds of them for a server that is not there when the engine opens. Calls that go
        through any number of tasks have the timeout for each page, window or request. ``fsync``: how often an embedded
        server forces its writes to the disk, "everysec" or "always".

        ``shards``, ``max_attempts``, ``dead_age`` and ``dead_count`` count when the name is new; otherwise the stored
        ones do, and ``resize`` and ``configure`` change them for the whole fleet. A new engine has 16 shards if none
        are given. ``max_attempts`` (25) holds for tasks that bring no limit of their own, and whose handler has none.
        Dead tasks are kept for ``dead_age`` seconds (30 days), ``dead_count`` (100,000) at most.

        ``spool``: a file that takes pushes, cancels and reschedules while no server can be reached, at most
        ``spool_bytes`` of them. They are acknowledged as spooled, and replayed when a server is back, also by another
        process. A durable push is never spooled.

        ``replay``: the seconds of acknowledged pushes, cancels and reschedules that this process remembers, in
        ``replay_bytes`` at most, and sends again when a new master lacks them after a failover.
        """
        self.options = Options.checked(
            url,
            name=name,
            shards=shards,
            codec=codec,
            max_payload=max_payload,
            max_attempts=max_attempts,
            dead_age=dead_age,
            dead_count=dead_count,
            timeout=timeout,
            connect_timeout=connect_timeout,
            protocol=protocol,
            fsync=fsync,
            replay=replay,
            replay_bytes=replay_bytes,
        )
        self._packer = Packer(self.options.codec, max_payload=self.options.max_payload)
        self._tasks = Registry(max_attempts=None, backoff=None)
        """The functions that are pushed by name."""
        self._declared: dict[str, set[str]] = {}
        """Owner → the names of the schedules that were declared with it here."""
        self._parts = Parts()
        self._tracing: Tracing | None = None
        """Traces what is pushed, if it is wanted."""
        self._embedded: embedded.Embedded | None = None
        self._topics_of_shard: dict[int, list[str]] = {}
        self._closed = False
        self._has_metrics = False
        """True if somebody asked for metrics: workers count how tasks end."""
        self._functions: dict[str, tuple[Route, BatchFunction]] = {}
        """Topic → the route and the function that it is forwarded to in this process."""
        self._spool = self._spool_at(spool, spool_bytes)
        self._forked()
        forks.watch(self, type(self)._forked)

    def _forked(self) -> None:
        """Resets the engine: nothing is open, and the first use opens it. The child of a fork keeps the parent's share
        of the embedded server, if there is one, until it closes the engine or ends.
        """
        self._cache: TopologyCache | None = None
        self._ready_counts = ReadyCounts()
        self._rates = RateMeter()
        self._forwarded: dict[str, object] = {}
        self._dispatcher: Dispatcher | None = None
        self._sinks: Senders | None = None
        """The senders of routes to URLs and functions, while the pollers run."""
        self._processors: WeakSet[Processor] = WeakSet()
        self._outcomes: Outcomes | None = None
        self._packer.pushed = 0
        self.relays: WeakSet[Relay] = WeakSet()
        """The outbox relays of this process, which ``stats`` tells of."""
        replay = self.options.replay
        self._journal = None if replay is None else Journal(replay, self.options.replay_bytes)
        """The calls acknowledged to this process; the parent of a fork replays its own."""
        self._replayer: Replayer | None = None

    def _spool_at(self, path: str | os.PathLike[str] | None, limit: int) -> Spool | None:
        if path is None:
            return None
        from shardq.features.spool.spool import Spool  # here: it brings sqlite3

        return Spool(path, self.options, limit=limit)

    def _can_spool(self, error: ShardqError) -> bool:
        """True if the engine can be used without the servers for now, as they can't be reached and it has a spool."""
        return self._spool is not None and self._spool.takes(error)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._cache.topology.shards} shards" if self._cache else "not open yet"
        return f"<{type(self).__name__} {self.options.name!r}: {state}>"

    @property
    def name(self) -> str:
        return self.options.name

    @property
    def topology(self) -> Topology:
        """The present topology, once the engine is open."""
        return self._map().topology

    def _deadline(self) -> float:
        """The end of a command that begins now. All that it does gets what is left until then."""
        return time.monotonic() + self.options.timeout

    def _map(self) -> TopologyCache:
        if self._cache is None:
            raise EngineClosed("the engine is not open: call open(), or use it in a with block")
        return self._cache

    def _check_not_closed(self) -> None:
        if self._closed:
            raise EngineClosed("the engine is closed: make another, or open() it again")

    def _entered(self) -> tuple[Settings, embedded.Embedded | None]:
        if self._embedded is not None:
            # it was entered before: by the parent of a fork, or in an event loop that has ended
            return self.options.settings_of(self._embedded), self._embedded
        return self.options.enter()

    def _leave(self) -> None:
        server, self._embedded = self._embedded, None
        if server is not None:
            server.leave()

    def _advice(
        self,
        driver: Driver | AsyncDriver,
        counts_by_shard: CountsByShard | None = None,
        *,
        pollers: Driver | None = None,
    ) -> Operation[list[Advice]]:
        """Finds advice on the servers of this engine, or on those where a shard was seen. ``pollers``: the driver of
        the pollers that run here, or are about to.
        """
        cache = self._map()
        if counts_by_shard is None:
            shards, slots = list(cache.span()), [cache.control.slot]
        else:
            shards, slots = [keys for keys, seen in counts_by_shard if not isinstance(seen, ShardqError)], []
        by_node = {node: keys for keys in shards if (node := driver.node_of(keys.slot))}
        nodes = {node: slot for slot in slots if (node := driver.node_of(slot))}
        nodes |= {node: keys.slot for node, keys in by_node.items()}
        found = yield from advice.find_advice(
            nodes, by_node, driver.unserved, self._needs(pollers) if pollers is not None else {}
        )
        if self.options.url is None and self._embedded is not None:
            found.insert(0, advice.unasked(self._embedded.path))
        return found

    def _pollers_driver(self) -> Driver | None:
        """The driver of the pollers, while they run in this process."""
        dispatcher = self._dispatcher
        return dispatcher.driver if dispatcher is not None else None

    def _new_sinks(self, driver: Driver, subscriber: Subscriber) -> Senders:
        """Inert until the dispatcher starts it."""
        self._sinks = Senders(
            driver,
            self._map(),
            subscriber,
            codec=self.options.codec,
            functions=self._functions,
            edit=partial(edit_topology, self._map()),
        )
        return self._sinks

    def _batch_function(self, function: BatchFunction) -> BatchFunction:
        """The function as a sender's thread calls it."""
        if inspect.iscoroutinefunction(function):
            raise InvalidOption("a coroutine function needs an event loop: forward to it with AsyncEngine")
        return function

    def _needs(self, driver: Driver) -> dict[str, int]:
        """Counts the further connections to each node that this process opens if it has to serve every shard."""
        polled = Counter(driver.node_of(keys.slot) for keys in self._map().span())
        open_now = driver.connections()
        needs = {}
        for node in filter(None, polled):
            has = open_now.get(node)
            needs[node] = polled[node] + LISTENING + driver.settings.connections - (has.shared + has.own if has else 0)
        return needs

    def _learn(self, topology: Topology) -> None:
        self.options.compare(topology)
        self._cache = TopologyCache(self.options.name, topology)

    def _watch_masters(self, driver: Driver) -> None:
        """Starts the replay after failovers, if it is wanted."""
        if self._journal is not None and self._replayer is None:
            from shardq.features.replay.replayer import Replayer  # here: most engines have none

            driver.note_in(self._journal)  # what it sends again can be lost, too
            self._replayer = Replayer(driver, self._map(), self._journal, self._packer)
            self._replayer.start()

    # ---- arguments

    def _packed(self, payload: Any, options: dict[str, Any]) -> Entries:
        task = payload if isinstance(payload, Task) and not options else Task(payload, **options)
        return self._packer.one(task if self._tracing is None else self._tracing.create(task))

    def _packed_many(self, tasks: Iterable[Task], batch: int) -> Entries:
        check_batch(batch)
        return self._packer.many(tasks)

    def _claims(
        self, topics: Topics, lease: float, name: str | None, topic_attempts: Mapping[str, int] | None = None
    ) -> Callable[[], Claims]:
        """Checks the arguments of a consumer. Returns what makes its claims, for when the engine is open."""
        names, weights = checked_topics(topics)
        if name is not None:
            check_name(name, of="consumer")
        own_lease_ms = lease_ms(lease)

        def make() -> Claims:
            claims = Claims(
                self._map(),
                names,
                # its leases must never be taken for another's, whatever name the caller gives
                name=f"{name or socket.gethostname()[:32]}-{secrets.token_hex(6)}",
                lease_ms=own_lease_ms,
                codec=self.options.codec,
                ready_counts=self._ready_counts,
                forwarded=self._forwarded,
                weights=weights,
                topic_attempts=topic_attempts,
            )
            claims.log_if_all_forwarded()
            return claims

        return make

    def _planned_claims(self, plan: Plan) -> Claims:
        """The claims of a worker. The engine is open."""
        return self._claims(plan.weights or tuple(plan.handlers), plan.lease, plan.name, plan.attempts)()

    def _add_task(self, task: TaskFunction) -> None:
        self._tasks.add(task)

    def _noted(self, processor: Processor) -> Processor:
        """Registers a worker's running part, whose problems ``health`` tells."""
        self._processors.add(processor)
        processor.outcomes = self._counted_outcomes()
        return processor

    def _counted_outcomes(self) -> Outcomes | None:
        """The counters of how tasks end in workers of this process; None until somebody asks for metrics."""
        if self._has_metrics and self._outcomes is None:
            from shardq.worker.report import Outcomes  # here: most engines have none

            self._outcomes = Outcomes()
        return self._outcomes

    def _stats(
        self,
        counts_by_shard: CountsByShard,
        nodes: dict[int, str],
        *,
        shards: bool,
        replication: dict[str, Replication],
        schedules: Summary | None,
        server: str,
        connections: dict[str, ConnectionCounts],
        spool: SpoolStats | None,
    ) -> Stats:
        dispatcher = self._dispatcher
        return stats_of(
            self._map(),
            counts_by_shard,
            nodes=nodes,
            shards=shards,
            interval=self._rates.note(counts_by_shard, time.monotonic()),
            replication=replication,
            server=server,
            reports=dispatcher.reports() if dispatcher else {},
            failing_routes=dispatcher.failing_routes() if dispatcher else (),
            sinks=dispatcher.sinks() if dispatcher else (),
            schedules=schedules,
            scheduler=dispatcher.scheduler() if dispatcher else None,
            dispatchers=dispatcher.members if dispatcher else (),
            connections=connections,
            relays=tuple(relay.stats() for relay in list(self.relays)),
            spool=spool,
            replay=self._replayer.stats() if self._replayer else None,
        )

    def _examine(
        self,
        driver: Driver | AsyncDriver,
        counts_by_shard: CountsByShard,
        *,
        subscriber: Subscriber | None,
        pollers: Driver | None = None,
        max_dead: int = MAX_DEAD,
    ) -> Operation[Examined]:
        """Looks at the servers on which a shard was seen, and for dispatchers that serve each. ``pollers``: as of
        ``_advice``; those of this process if there are any.
        """
        dispatcher = self._dispatcher
        slots = {
            node: keys.slot
            for keys, seen in counts_by_shard
            if not isinstance(seen, ShardqError) and (node := driver.node_of(keys.slot))
        }
        found = yield from self._advice(driver, counts_by_shard, pollers=pollers or self._pollers_driver())
        found += advice.unsubscribed(subscriber.refusals() if subscriber else {})
        found += yield from servers.find_faults(slots, self._map())
        try:
            forwarded = [sink.topic for sink in dispatcher.sinks()] if dispatcher else ()
            serving = yield from find_unserved(self._map(), forwarded)
        except ServerFault as exc:
            text = f"it can't be told who serves the shards: {exc}"
            found.append(Advice("", "coverage", text, problem=not isinstance(exc, AccessDenied)))
            serving = None
        return Examined(found, serving, (yield from find_deaths(counts_by_shard, max_dead)))

    def _judge(self, stats: Stats, examined: Examined, max_late: float, max_ready_age: float, max_dead: int) -> Health:
        dispatcher = self._dispatcher
        ours = [processor.name for processor in list(self._processors)]
        if dispatcher is not None:
            ours.append(dispatcher.process)
        own = self._own_reasons()
        return judge(
            stats, examined, max_late=max_late, max_ready_age=max_ready_age, max_dead=max_dead, own=own, ours=ours
        )

    def _own_reasons(self) -> list[Reason]:
        """The reasons in parts of this process that no look at the servers finds."""
        dispatcher = self._dispatcher
        problems = [problem for processor in list(self._processors) for problem in processor.problems]
        own = [Reason("worker", f"a worker of this process: {each}") for each in problems]
        if dispatcher is not None:
            own += (Reason("schedule", each) for each in dispatcher.scheduler().problems)
        return own
