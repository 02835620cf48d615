"""The common base of both engines: their options, the topology cache, and what they make of it without waiting."""

from __future__ import annotations

import datetime as dt
import os
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from shardq.core import forks
from shardq.core.consumer.claim_planner import ReadyCounts
from shardq.core.consumer.claim_state import Claims, Decode
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.missing import DispatcherLook
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import EngineSettings, Topology
from shardq.core.model.checks import MAX_PAYLOAD, Topics, check_name, checked_topics, duration_ms
from shardq.core.model.record import Codec, codec_named, decode_payload
from shardq.core.operation import Operation, run, succeeded
from shardq.core.producer.packing import Packer
from shardq.core.resharding.resizing import held_up
from shardq.core.subscriber import Subscriber
from shardq.core.topology_cache import TopologyCache
from shardq.engine import servers
from shardq.engine.deaf import find_deaf
from shardq.engine.engine_wide import CountsByShard, RateMeter, link_far
from shardq.engine.findings import FirstSeen, found, in_order
from shardq.engine.health import (
    Bounds,
    Examined,
    Health,
    find_deaths,
    find_out_of_use,
    find_own_far,
    find_unserved,
    judge,
)
from shardq.engine.options import (
    DEFAULT_CONNECT_TIMEOUT_S,
    DEFAULT_NAME,
    DEFAULT_SPOOL_BYTES,
    DEFAULT_TIMEOUT_S,
    Options,
    server_given,
    settings_given,
    topics_given,
)
from shardq.engine.stats import Seen, Stats, stats_of
from shardq.engine.topic_keys import find_stuck_keys
from shardq.engine.wiring import DriverFactory, Running, Tracing
from shardq.errors import AccessDenied, EngineClosed, InvalidOption, ServerFault, ShardqError
from shardq.features import embedded
from shardq.features.replay.journal import DEFAULT_BYTES, Journal
from shardq.features.sinks.egress import Egress
from shardq.features.transfer.importing import Importer
from shardq.worker.handlers import Registered, Registry, TaskFunction

if TYPE_CHECKING:
    from shardq.core.dispatcher import Dispatcher
    from shardq.core.drivers.aio import AsyncDriver
    from shardq.core.drivers.clients import RedisClient
    from shardq.core.drivers.credentials import CredentialProvider
    from shardq.features.far.far import Far
    from shardq.features.far.loader import Loader
    from shardq.features.far.report import FarStats
    from shardq.features.sinks.routes import Routes
    from shardq.features.spool.spool import Spool
    from shardq.relay.report import SpoolStats
    from shardq.worker.handlers import Plan

LISTENING = 1
"""Connections of a subscriber to each node."""


class EngineBase(forks.OfOneProcess, ABC):
    """The base of ``Engine`` and ``AsyncEngine``. No I/O but the embedded server's coming and going."""

    def __init__(
        self,
        url: str | RedisClient | None = None,
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
        credentials: CredentialProvider | None = None,
        far: str | os.PathLike[str] | None = None,
        ahead: float | dt.timedelta | None = None,
        sinks: Iterable[str] | None = None,
        secrets: str | os.PathLike[str] | None = None,
    ) -> None:
        """Checks its arguments; connects later.

        ``url``: redis[s]://, unix://, redis[s]+cluster://, redis[s]+sentinel:// or embedded://; none: $SHARDQ_URL,
        else an embedded server in the user's data directory, which the log and ``health().warnings`` tell, and which
        $SHARDQ_EMBEDDED=never forbids. Or a client of redis-py: a ``Redis``, ``RedisCluster`` or a Sentinel's master,
        for threads or for asyncio. The engine opens connections of its own by the client's settings, and refuses those
        that it can't keep. ``credentials``: a provider of a user and a password that run out, such as one of redis-py's
        ``CredentialProvider``; live connections are given the newer ones.

        ``timeout``: the seconds in which every call of the engine ends, with all of its retries, through failovers,
        moving slots and loading servers; a ``claim`` has its ``wait`` beside it. ``connect_timeout``: the seconds of
        them for a server that is not there when the engine opens. Calls that go through any number of tasks have the
        timeout for each page, chunk or request. ``fsync``: how often an embedded server forces its writes to the disk,
        "everysec" or "always".

        ``shards``, ``max_attempts``, ``dead_age`` and ``dead_count`` count when the name is new; otherwise the stored
        ones do, and ``resize`` and ``configure`` change them for the whole fleet. A new engine has 16 shards if none
        are given. ``max_attempts`` (25) holds for tasks that bring no limit of their own, and whose handler has none.
        Dead tasks are kept for ``dead_age`` seconds (30 days), ``dead_count`` (100,000) at most.

        ``spool``: a file that takes pushes, cancels and reschedules while no server can be reached, at most
        ``spool_bytes`` of them. They are acknowledged as spooled, and replayed when a server is back, also by another
        process. A durable push is never spooled.

        ``replay``: the seconds of acknowledged pushes, cancels and reschedules that this process remembers, in
        ``replay_bytes`` at most, and sends again when a new master lacks them after a failover.

        ``far``: a database in which tasks wait whose ids are made here, and that are due later than ``ahead`` seconds
        (3600, if it is new) and a margin of 15 minutes: ``postgresql://…``, or the path of an SQLite file. Every
        process of the engine needs the same; dispatchers load what falls due within ``ahead``.

        ``sinks``: the servers to which this process may send forwarded topics, as patterns of scheme and host, such as
        ``https://*.example.org``; none given: $SHARDQ_SINKS, else every server but link-local ones. ``secrets``: a
        folder with a file for each secret that routes may name, beside the variables $SHARDQ_SECRET_NAME; none given:
        $SHARDQ_SECRETS.
        """
        where, access = server_given(url, credentials)
        self._options = Options(
            url=where,
            access=access,
            name=name,
            shards=shards,
            codec=codec_named(codec),
            max_payload=max_payload,
            given=settings_given(max_attempts, dead_age, dead_count),
            timeout=timeout,
            connect_timeout=connect_timeout,
            protocol=protocol,
            fsync=fsync,
            replay=replay,
            replay_bytes=replay_bytes,
            egress=Egress.given(sinks, secrets),
        )
        self._packer = Packer(self._options.codec, max_payload=self._options.max_payload)
        self._tasks = Registry(max_attempts=None, backoff=None)
        """The functions that are pushed by name."""
        self._declared: dict[str, set[str]] = {}
        """Owner → the names of the schedules that were declared with it here."""
        self._factory = DriverFactory()
        self._tracing: Tracing | None = None
        """Traces what is pushed, if it is wanted."""
        self._embedded: embedded.Embedded | None = None
        self._topics_of_shard: dict[int, list[str]] = {}
        self._closed = False
        self._ready_counts = ReadyCounts()
        self._running = Running(self._ready_counts.key_waits)
        self._spool = self._spool_at(spool, spool_bytes)
        self._far = self._far_at(far, ahead)
        self._forked()
        forks.watch(self, type(self)._forked)

    def _forked(self) -> None:
        """Resets the engine: nothing is open, and the first use opens it. The child of a fork keeps the parent's share
        of the embedded server, if there is one, until it closes the engine or ends.
        """
        self._cache: TopologyCache | None = None
        self._ready_counts = ReadyCounts()
        self._rates = RateMeter()
        self._first_seen = FirstSeen()
        self._forwarded: dict[str, object] = {}
        self._running = Running(self._ready_counts.key_waits, counts_outcomes=self._running.counts_outcomes)
        self._packer.pushed, self._packer.cache = 0, None
        replay = self._options.replay
        self._journal = None if replay is None else Journal(replay, self._options.replay_bytes)
        """The calls acknowledged to this process; the parent of a fork replays its own."""

    def _spool_at(self, path: str | os.PathLike[str] | None, limit: int) -> Spool | None:
        if path is None:
            return None
        from shardq.engine.wiring import spool_mover  # here: they bring sqlite3
        from shardq.features.spool.spool import Spool

        options = self._options
        if options.is_embedded:
            raise InvalidOption(
                "spool= is not possible with an embedded server, whose data is on the same disk, and which the next "
                "process that needs it starts again; leave spool= out, or give the url of a server"
            )
        return Spool(
            path,
            engine=options.name,
            shards=options.shards,
            limit=limit,
            timeout=options.timeout,
            mover=partial(spool_mover, options=options),
        )

    def _far_at(self, url: str | os.PathLike[str] | None, ahead: float | dt.timedelta | None) -> Far | None:
        if url is None:
            if ahead is not None:
                raise InvalidOption("ahead= is for an engine with a far store: give far= as well")
            return None
        from shardq.features.far.far import Far, ahead_checked  # here: most engines have none

        return Far(self._options.name, url, ahead_checked(ahead))

    def _can_spool(self, error: ShardqError) -> bool:
        """True if the engine can be used without the servers for now, as they can't be reached and it has a spool."""
        return self._spool is not None and self._spool.takes(error)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._cache.topology.shards} shards" if self._cache else "not open yet"
        return f"<{type(self).__name__} {self._options.name!r}: {state}>"

    @property
    def name(self) -> str:
        """The name under which the engine's tasks and settings are kept on its servers."""
        return self._options.name

    @property
    def topology(self) -> Topology:
        """The present topology, once the engine is open."""
        return self._map().topology

    def _deadline(self) -> float:
        """The end of a command that begins now. All that it does gets what is left until then."""
        return time.monotonic() + self._options.timeout

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
            return self._options.settings_of(self._embedded), self._embedded
        return self._options.enter()

    def _leave(self) -> None:
        server, self._embedded = self._embedded, None
        if server is not None:
            server.leave()

    def _find_settings(
        self, driver: Driver | AsyncDriver, shards: Iterable[ShardKeys] | None = None, *, pollers: Driver | None = None
    ) -> Operation[servers.Found]:
        """Looks at how the servers of these shards are set up; None: all servers of this engine. ``pollers``: the
        driver of the pollers that run here, or are about to.
        """
        cache, nodes = self._map(), dict[str, int]()
        if shards is None:
            shards = cache.span()
            if node := driver.node_of(cache.control.slot):
                nodes[node] = cache.control.slot
        by_node = {node: keys for keys in shards if (node := driver.node_of(keys.slot))}
        nodes |= {node: keys.slot for node, keys in by_node.items()}
        needs = self._needs(pollers) if pollers is not None else {}
        told = yield from servers.find_settings(nodes, by_node, driver.unserved, needs)
        if self._options.url is None and self._embedded is not None:
            told[found("unasked_server", path=self._embedded.path)] = ""
        return told

    def _new_routes(self, driver: Driver, subscriber: Subscriber) -> Routes:
        """Inert until the dispatcher starts it."""
        from shardq.features.sinks.routes import Routes

        return Routes(driver, self._map(), subscriber, egress=self._options.egress)

    def _new_loader(self, driver: Driver) -> Callable[[Dispatcher], Loader] | None:
        """Makes what loads from the far store in a dispatcher."""
        if self._far is None:
            return None
        return lambda dispatcher: self._loader(driver, dispatcher.process, lambda: dispatcher.members)

    def _loader(self, driver: Driver, process: str, members: Callable[[], tuple[str, ...]]) -> Loader:
        from shardq.features.far.loader import Loader

        far = self._far
        assert far is not None, "there is a far store"

        def ready() -> None:
            if not far.is_ours:
                deadline = self._deadline()
                identity = far.opened(deadline)
                linking = link_far(self._map(), identity, far.store.place)
                far.accept(identity, run(driver, linking, deadline=deadline))

        return Loader(
            driver,
            self._map(),
            store=far.store,
            packer=self._packer,
            ready=ready,
            process=process,
            members=members,
        )

    def _needs(self, driver: Driver) -> dict[str, int]:
        """Counts the further connections to each node that this process opens if it has to serve every shard."""
        polled = Counter(driver.node_of(keys.slot) for keys in self._map().span())
        open_now = driver.connections()
        needs = {}
        for node in filter(None, polled):
            has = open_now.get(node)
            needs[node] = polled[node] + LISTENING + driver.settings.connections - (has.shared + has.own if has else 0)
        return needs

    def _new_map(self, topology: Topology) -> TopologyCache:
        self._options.compare(topology)
        self._packer.cache = TopologyCache(self._options.name, topology)
        return self._packer.cache

    def _watch_masters(self, driver: Driver) -> None:
        """Starts the replay after failovers, if it is wanted."""
        if self._journal is not None and self._running.replayer is None:
            from shardq.features.replay.replayer import Replayer  # here: most engines have none

            driver.journal = self._journal  # what it sends again can be lost, too
            self._running.replayer = Replayer(driver, self._map(), self._journal, self._packer)
            self._running.replayer.start()

    # ---- arguments

    def _claims(
        self,
        topics: Topics,
        lease: float,
        name: str | None,
        topic_attempts: Mapping[str, int] | None = None,
        *,
        decode: Decode = decode_payload,
    ) -> Callable[[], Claims]:
        """Checks the arguments of a consumer. Returns what makes its claims, for when the engine is open."""
        names, weights = checked_topics(topics)
        if name is not None:
            check_name(name, of="consumer")
        lease_ms = duration_ms(lease, "lease")

        def make() -> Claims:
            claims = Claims(
                self._map(),
                names,
                # its leases must never be taken for another's, whatever name the caller gives
                name=f"{name or socket.gethostname()[:32]}-{secrets.token_hex(6)}",
                lease_ms=lease_ms,
                codec=self._options.codec,
                ready_counts=self._ready_counts,
                forwarded=self._forwarded,
                weights=weights,
                topic_attempts=topic_attempts,
                decode=decode,
            )
            if topic_attempts is None and self._factory.has_threads:  # a worker looks by itself
                claims.look = DispatcherLook()
            claims.log_if_all_forwarded()
            return claims

        return make

    def _planned_claims(self, plan: Plan) -> Claims:
        """The claims of a worker. The engine is open."""
        return self._claims(plan.weights or tuple(plan.handlers), plan.lease, plan.name, plan.attempts)()

    def _importer(self, **options: Any) -> Importer:
        """An import into the engine. ``options``: as of ``Importer``."""
        return Importer(
            self._packer,
            max_payload=self._options.max_payload,
            codec=self._options.codec,
            given=partial(topics_given, egress=self._options.egress),
            given_of_engine=lambda settings: settings_given(*map(settings.get, EngineSettings.__struct_fields__)),
            **options,
        )

    def _add_task(self, task: TaskFunction) -> None:
        self._tasks.add(task)

    def _stats(self, seen: Seen, spool: SpoolStats | None, far: FarStats | None, *, shards: bool) -> Stats:
        interval = self._rates.note(seen.counts, time.monotonic())
        return stats_of(self._map(), seen, self._running.here(spool, far), interval, shards=shards)

    def _examine(
        self,
        driver: Driver | AsyncDriver,
        counts_by_shard: CountsByShard,
        bounds: Bounds,
        *,
        subscriber: Subscriber | None,
    ) -> Operation[Examined]:
        """Looks at the servers on which a shard was seen, and for dispatchers that serve each."""
        dispatcher, cache = self._running.dispatcher, self._map()
        seen = succeeded(counts_by_shard)
        slots = {node: keys.slot for keys in seen if (node := driver.node_of(keys.slot))}
        told = list((yield from self._find_settings(driver, seen, pollers=dispatcher.driver if dispatcher else None)))
        told += servers.unsubscribed(subscriber.refusals() if subscriber else {})
        told += yield from servers.find_faults(slots, cache)
        if driver.settings.kind == "sentinel":
            told += yield from servers.find_disagreement(driver.survey)
        fleet = None
        try:
            forwarded = [sink.topic for sink in dispatcher.sent_elsewhere()] if dispatcher else ()
            unserved, fleet = yield from find_unserved(cache, forwarded)
            told += unserved
        except ServerFault as exc:
            told.append(
                found("unseen_fleet", severity="warning" if isinstance(exc, AccessDenied) else "red", error=exc)
            )
        deaths = yield from find_deaths(counts_by_shard, bounds.dead)
        if fleet is not None:
            told += yield from find_deaf(cache, counts_by_shard, fleet)
        told += yield from find_stuck_keys(cache, counts_by_shard, fleet or (), bounds.ready_age_s)
        if len(seen) == len(counts_by_shard):
            # where some can't be seen, a look beyond them would take the time that the others have
            told += yield from find_out_of_use(cache)
            if self._far is not None:
                told += yield from find_own_far(cache, self._far.store.horizon.far_ms)
        return Examined(told, fleet, deaths)

    def _judge(self, stats: Stats, examined: Examined, bounds: Bounds) -> Health:
        own, ours = self._running.findings(), self._running.names()
        topology = self._map().topology
        told = judge(stats, examined, bounds, own=own, ours=ours, has_far=bool(topology.links))
        if waits := held_up(topology, {name: topic.ready for name, topic in stats.topics.items()}):
            told.append(found("held_resize", problem=waits))
        dated = self._first_seen.dated(told, dt.datetime.now(dt.UTC))
        return Health(findings=in_order(dated), stats=stats, fleet=examined.fleet or [])

    @abstractmethod
    def _open_driver(self, deadline: float) -> Any:
        """Opens the engine if it is not open. Returns its driver; for asyncio it is awaited."""

    @abstractmethod
    def _trace_by(self, tracing: Tracing | None) -> None:
        """Traces pushes from now on, or no more."""

    @abstractmethod
    def _declare_recurring(self, functions: Iterable[Registered]) -> Any:
        """Declares the schedules of tasks that are to be served; for asyncio it is awaited."""
