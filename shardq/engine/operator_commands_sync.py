# Generated from operator_commands_aio.py by `make fmt`: change that one.
"""The operator's commands to an engine as a whole: routes, the number of shards, pauses, limits, purges,
stats, and health.

``Engine`` inherits them.
"""

from __future__ import annotations

import datetime as dt
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeVar

from shardq.core import recovery
from shardq.core.calls.control import living
from shardq.core.dispatcher.membership import dispatchers
from shardq.core.fleet.member import Member, fleet
from shardq.core.model.checks import check_shards, check_topic
from shardq.core.model.ids import shown_topic
from shardq.core.operation import Operation, run
from shardq.core.resharding.handle_sync import Growth
from shardq.core.resharding.preview import Preview
from shardq.core.resharding.resizing import preview_resize, progress, resize
from shardq.core.topology_cache import TopologyCache
from shardq.engine import control
from shardq.engine.arguments import ResizeVerb, check_purge, check_resize, limit_of, route_of
from shardq.engine.base import EngineBase
from shardq.engine.changes import Change, noted, read_changes
from shardq.engine.health import MAX_DEAD, MAX_LATE_S, MAX_READY_AGE_S, Health, check_bound, check_max_dead
from shardq.engine.options import STATS_TIMEOUT_S, settings_given
from shardq.engine.stats import Stats
from shardq.errors import InvalidOption
from shardq.features.schedules import declaring
from shardq.features.sinks.function import BatchFunction
from shardq.features.spool import sync as spool

if TYPE_CHECKING:
    from shardq.core.drivers.sync import Driver
    from shardq.core.subscriber import Subscriber

T = TypeVar("T")


class OperatorCommands(EngineBase, ABC):
    """The commands of ``Engine`` on the whole."""

    @abstractmethod
    def _open_driver(self, deadline: float) -> Driver: ...

    @abstractmethod
    def _carry_out(self, make: Callable[[TopologyCache], Operation[T]]) -> T: ...

    @abstractmethod
    def _present_subscriber(self) -> Subscriber | None: ...

    def forward(
        self,
        topic: str,
        *,
        to: str | BatchFunction | None,
        side: Literal["right", "left"] = "right",
        maxlen: int | None = None,
        keep: bool = False,
    ) -> None:
        """Forwards the topic's payloads from now on, byte for byte, with those that are ready already. ``to=None`` ends
        it. Consumers of shardq get nothing of the topic meanwhile.

        ``to`` is the name of a list on the engine's own server (``side="left"``: LPUSH), ``stream:NAME`` for a stream
        there, a URL of another Redis, a broker or an HTTP endpoint, or a function that takes a list of deliveries. The
        page ``sinks/README.md`` tells which URLs there are. A URL is stored with the engine's settings: write
        ``${NAME}`` for a password, which the processes that forward read from their environment. ``maxlen``: about how
        many entries a stream keeps, here or elsewhere; older ones are trimmed (``MAXLEN ~``).

        A list or stream on the same server gets each task exactly once, everything else at least once, with the id to
        tell duplicates by. Whoever runs pollers forwards; a function only this process, once it has called ``start``.

        The route to a function ends with the last process that serves it: then its tasks are for consumers again.
        ``keep=True`` leaves it, and its tasks wait as ready for a process that has the function.

        >>> engine.forward("emails", to="mail-queue")
        >>> engine.forward("events", to="stream:events", maxlen=100_000)
        >>> engine.forward("letters", to="redis://10.0.0.7:6379/0#letters")
        """
        route = route_of(topic, to, side, maxlen, keep=keep)
        function = self._batch_function(to) if callable(to) else None
        what = f"topic {shown_topic(topic)}: forwarded {f'to {route.named}' if route else 'no more'}"
        self._carry_out(lambda cache: noted(cache, control.route(cache, topic, route), what))
        if route is None or function is None:
            self._functions.pop(topic, None)
        else:
            self._functions[topic] = route, function
        if self._sinks is not None:
            self._sinks.follow()
        if self._dispatcher is not None:
            self._dispatcher.report_soon()

    def resize(self, shards: int, *, rate: float | None = None) -> Growth:
        """Changes the number of shards, up or down, while everything runs. Returns when new tasks go by the new number;
        dispatchers move the rest, and serve shards that fall away until those are empty.

        ``rate``: tasks a second to move at most. A repeated call, by anybody, goes on with an interrupted change, at
        the rate given now. Raises ChangeUnderWay when another number was announced before.

        >>> growth = engine.resize(8)
        >>> growth.wait(timeout=600)
        True
        """
        return self._resize(shards, rate)

    def expand(self, shards: int, *, rate: float | None = None) -> Growth:
        """Resizes to more shards; a smaller number than the present one is refused.

        >>> growth = engine.expand(8, rate=1000)
        """
        return self._resize(shards, rate, "expand")

    def shrink(self, shards: int, *, rate: float | None = None) -> Growth:
        """Resizes to fewer shards; a larger number than the present one is refused.

        >>> growth = engine.shrink(2)
        """
        return self._resize(shards, rate, "shrink")

    def _resize(self, shards: int, rate: float | None, verb: ResizeVerb = "resize") -> Growth:
        deadline = self._deadline()
        driver = self._open_driver(deadline)
        cache = self._map()
        run(driver, recovery.refresh(cache), deadline=deadline)
        check_resize(cache.topology, shards, rate, verb)
        members = driver.call(living(cache.control), deadline=deadline)
        change = resize(cache, shards, rate=rate, members=members)
        what = "" if cache.topology.shards == shards else f"resized from {cache.topology.shards} to {shards} shards"
        run(driver, noted(cache, change, what), deadline=deadline)
        return self._growth(driver)

    def preview(self, shards: int) -> Preview:
        """Estimates what ``resize(shards)`` would move, by shard and by node. Moves nothing.

        >>> preview = engine.preview(64)
        >>> print(preview.tasks, preview.bytes, preview.nodes)
        """
        check_shards(shards)
        deadline = self._deadline()
        driver = self._open_driver(deadline)
        return run(driver, preview_resize(self._map(), shards, driver.node_of), deadline=deadline)

    def growth(self) -> Growth:
        """Returns the change of the number of shards that is under way, or the last one: to wait for it, or to look.

        >>> growth = engine.growth()
        >>> growth.wait(timeout=600)
        True
        """
        return self._growth(self._open_driver(self._deadline()))

    def _growth(self, driver: Driver) -> Growth:
        cache = self._map()
        span = len(cache.topology.span())
        return Growth(driver, lambda: progress(cache, shards=span), lambda: dispatchers(cache.control))

    def pause(self, topic: str) -> None:
        """Stops giving out the topic's tasks, over the whole fleet. Handlers finish, and tasks still become ready.

        >>> engine.pause("mail")
        """
        check_topic(topic)
        what = f"topic {shown_topic(topic)}: paused"
        self._carry_out(lambda cache: noted(cache, control.pause(cache, topic, pause=True), what))

    def resume(self, topic: str) -> None:
        """Gives out the topic's tasks again.

        >>> engine.resume("mail")
        """
        check_topic(topic)
        what = f"topic {shown_topic(topic)}: resumed"
        self._carry_out(lambda cache: noted(cache, control.pause(cache, topic, pause=False), what))

    def limit(self, topic: str, *, rate: float | None = None, concurrency: int | None = None) -> None:
        """Limits the topic to ``rate`` tasks a second and ``concurrency`` at once, over all shards and workers of the
        fleet; without either its limits end. It holds at once, also for consumers that wait under the limit before. A
        forwarded topic takes a rate only: its tasks leave, and are not counted.

        >>> engine.limit("invoice", rate=100, concurrency=20)
        """
        limit = limit_of(topic, rate, concurrency)
        bounds = f"rate {rate}, concurrency {concurrency}" if rate or concurrency else "none"
        what = f"topic {shown_topic(topic)}: limits: {bounds}"
        self._carry_out(lambda cache: noted(cache, control.limit(cache, topic, limit), what))

    def configure(
        self,
        *,
        max_attempts: int | None = None,
        dead_age: float | dt.timedelta | None = None,
        dead_count: int | None = None,
    ) -> None:
        """Changes settings of the engine, for all of its processes; None leaves one as it is. ``stats().settings`` has
        the present ones.

        ``max_attempts``: the attempts of a task that brings no limit of its own, and whose handler has none. Dead tasks
        are kept for ``dead_age`` seconds, ``dead_count`` at most; what is beyond that goes within five minutes.

        >>> engine.configure(max_attempts=10, dead_age=7 * 86_400)
        """
        changes = settings_given(max_attempts, dead_age, dead_count)
        if not changes:
            raise InvalidOption(
                "configure needs a setting to change: give max_attempts=, dead_age= or dead_count=; "
                "stats().settings has the present ones"
            )
        what = "configured: " + ", ".join(f"{name}={value}" for name, value in changes.items())
        self._carry_out(lambda cache: noted(cache, control.configure(cache, changes), what))

    def purge(self, topic: str | None = None, *, everything: bool = False) -> int:
        """Removes the topic's tasks, or all, that nobody holds: scheduled, ready and dead. Returns how many.

        Running tasks finish. Tasks that are pushed meanwhile may stay; those that are moved to another shard meanwhile
        are removed. Each of its requests has the engine's timeout for itself.

        >>> print(engine.purge("mail"), "tasks removed")
        """
        check_purge(topic, everything)
        driver = self._open_driver(self._deadline())
        # No deadline for the whole: it goes through all tasks.
        cache, which = self._map(), "every topic" if topic is None else f"topic {shown_topic(topic)}"
        purge = control.purge(cache, topic)
        return run(driver, noted(cache, purge, lambda removed: f"{which}: purged of {removed:,} tasks"))

    def changes(self) -> list[Change]:
        """Returns the last hundred changes that operators made, the newest first: who, when and what.

        >>> for change in engine.changes():
        ...     print(change.at, change.by, change.what)
        """
        return self._carry_out(read_changes)

    def fleet(self) -> list[Member]:
        """Returns the processes of the engine that live: dispatchers and workers, with what each says of itself. A
        process that was killed is in it until it was silent for some time: a dispatcher for 3 seconds, or 8 where it
        was the only one, a worker for 30.

        >>> for member in engine.fleet():
        ...     print(member.kind, member.host, member.pid, member.handled, member.failed, member.last_error)
        """
        driver, deadline = self._begin_look()
        return run(driver, fleet(self._map().control), deadline=deadline)

    def stats(self, *, shards: bool = True) -> Stats:
        """Returns the counts of each shard and topic, and their totals. They are no snapshot: shards are read one after
        the other. A shard that can't be read within 1.5 seconds says why. ``shards=False`` leaves the list of shards
        empty.

        It costs each shard one script, by the number of its topics and not of its tasks. What the server does not count
        by topic is estimated; see ``TopicStats``. ``health()`` judges it.

        >>> stats = engine.stats()
        >>> print(stats.scheduled, stats.ready, stats.leased, stats.dead, stats.head_age)
        >>> print({topic: seen.ready for topic, seen in stats.topics.items()})
        """
        driver, deadline = self._begin_look()
        return self._look(driver, self._count(driver, deadline), deadline, shards=shards)

    def health(
        self, max_late: float = MAX_LATE_S, max_ready_age: float = MAX_READY_AGE_S, max_dead: int = MAX_DEAD
    ) -> Health:
        """Looks at the shards, their servers and the dispatchers, and says if all is well; if not, why. True if it is.

        A scheduled task that is overdue by more than ``max_late`` seconds is a reason; so is a ready one that nobody
        took for more than ``max_ready_age`` seconds, unless its topic is paused. How long a task has been ready is
        known from the second look on: see ``TopicStats.oldest_ready``. More than ``max_dead`` tasks that died in the
        last ten minutes are a reason. It raises only what keeps it from looking at all.

        >>> health = engine.health(max_late=5.0, max_ready_age=60.0, max_dead=100)
        >>> if not health:
        ...     print(health.ok, health.reasons)
        """
        check_bound(max_late, "max_late")
        check_bound(max_ready_age, "max_ready_age")
        check_max_dead(max_dead)
        driver, deadline = self._begin_look()
        counts_by_shard = self._count(driver, deadline)
        stats = self._look(driver, counts_by_shard, deadline, shards=True)
        asked = self._examine(driver, counts_by_shard, subscriber=self._present_subscriber(), max_dead=max_dead)
        return self._judge(stats, run(driver, asked, deadline=deadline), max_late, max_ready_age, max_dead)

    def _begin_look(self) -> tuple[Driver, float]:
        """Returns the driver, and the deadline of a look."""
        deadline = self._deadline()
        driver = self._open_driver(deadline)
        return driver, min(deadline, time.monotonic() + STATS_TIMEOUT_S)

    def _read(self, driver: Driver, steps: Operation[T], deadline: float) -> T:
        """Reads a part of a look in half of the time that is left: what does not answer leaves the other half to what
        does.
        """
        half_s = max(0.0, deadline - time.monotonic()) / 2
        return run(driver, steps, half_s, deadline=deadline - half_s)

    def _count(self, driver: Driver, deadline: float) -> control.CountsByShard:
        return self._read(driver, control.count_shards(self._map(), self._topics_of_shard), deadline)

    def _look(self, driver: Driver, counts_by_shard: control.CountsByShard, deadline: float, *, shards: bool) -> Stats:
        nodes = {keys.slot: driver.node_of(keys.slot) for keys, _ in counts_by_shard}
        return self._stats(
            counts_by_shard,
            nodes,
            shards=shards,
            replication=self._read(driver, control.replication(counts_by_shard, nodes), deadline),
            schedules=self._read(driver, declaring.summary(self._map()), deadline),
            server=driver.server_version,
            connections=driver.connections(),
            spool=spool.stats(self._spool),
        )
