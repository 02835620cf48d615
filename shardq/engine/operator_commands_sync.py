# Generated from operator_commands_aio.py by `make fmt`: change that one.
"""The operator's commands to an engine as a whole: routes, the number of shards, pauses, limits, dead tasks, purges,
stats.

``Engine`` inherits them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from shardq import recovery
from shardq.calls.control import living
from shardq.dispatcher.membership import dispatchers
from shardq.engine import control
from shardq.engine.arguments import ResizeVerb, check_purge, check_resize, limit_of, route_of
from shardq.engine.base import EngineBase
from shardq.engine.options import STATS_TIMEOUT_S
from shardq.engine.stats import Stats
from shardq.model.checks import check_shards, check_topic
from shardq.model.ids import topic_of
from shardq.model.task import DeadTask
from shardq.operation import run
from shardq.producer import by_id
from shardq.resharding.handle_sync import Growth
from shardq.resharding.preview import Preview
from shardq.resharding.resizing import preview_resize, progress, resize

if TYPE_CHECKING:
    from shardq.drivers.sync import Driver
    from shardq.subscriber import Subscriber

NOW = 0
"""The due word of a task that is due at once."""


class OperatorCommands(EngineBase, ABC):
    """The commands of ``Engine`` on the whole."""

    @abstractmethod
    def _open_driver(self) -> Driver: ...

    @abstractmethod
    def _present_subscriber(self) -> Subscriber | None: ...

    def forward(self, topic: str, *, to: str | None, side: Literal["right", "left"] = "right") -> None:
        """From now on the topic's payloads go to that list, byte for byte, also those ready already; None: no longer.

        Exactly once to a list on the same server, at least once to one in another slot of a cluster. A rate given with
        ``limit`` holds for it; a topic with limited concurrency is refused. Consumers of ours get nothing of the topic
        meanwhile.

        >>> engine.forward("emails", to="mail-queue")
        """
        route = route_of(topic, to, side)
        driver = self._open_driver()
        run(driver, control.route(self._map(), topic, route))

    def resize(self, shards: int, *, rate: float | None = None) -> Growth:
        """Another number of shards, more or fewer, while everything runs. Returns when new tasks go by the new number;
        dispatchers move the rest, and shards that fall away are served until they are empty.

        ``rate``: tasks a second to move at most. Again, by anybody, goes on with a change that was interrupted, at the
        rate given now; raises ChangeUnderWay when another number was announced before.

        >>> growth = engine.resize(8)
        >>> growth.wait(timeout=600)
        True
        """
        return self._resize(shards, rate)

    def expand(self, shards: int, *, rate: float | None = None) -> Growth:
        """``resize`` to more shards; fewer than there are is refused.

        >>> growth = engine.expand(8, rate=1000)
        """
        return self._resize(shards, rate, "expand")

    def shrink(self, shards: int, *, rate: float | None = None) -> Growth:
        """``resize`` to fewer shards; more than there are is refused.

        >>> growth = engine.shrink(2)
        """
        return self._resize(shards, rate, "shrink")

    def _resize(self, shards: int, rate: float | None, verb: ResizeVerb = "resize") -> Growth:
        driver = self._open_driver()
        cache = self._map()
        run(driver, recovery.refresh(cache))
        check_resize(cache.topology, shards, rate, verb)
        members = driver.call(living(cache.control))
        run(driver, resize(cache, shards, rate=rate, members=members))
        return self.growth()

    def preview(self, shards: int) -> Preview:
        """Estimates what ``resize(shards)`` would move, by shard and by node. Moves nothing.

        >>> preview = engine.preview(64)
        >>> print(preview.tasks, preview.bytes, preview.nodes)
        """
        check_shards(shards)
        driver = self._open_driver()
        return run(driver, preview_resize(self._map(), shards, driver.node_of))

    def growth(self) -> Growth:
        """The change of the number of shards that is under way, or the last one: to wait for it, or to look.

        >>> growth = engine.growth()
        >>> growth.wait(timeout=600)
        True
        """
        driver = self._open_driver()
        cache = self._map()
        span = len(cache.topology.span())
        return Growth(driver, lambda: progress(cache, shards=span), lambda: dispatchers(cache.control))

    def pause(self, topic: str) -> None:
        """Gives out no more of the topic, over the whole fleet; what runs goes on, and tasks still become ready.

        >>> engine.pause("mail")
        """
        check_topic(topic)
        driver = self._open_driver()
        run(driver, control.pause(self._map(), topic, pause=True))

    def resume(self, topic: str) -> None:
        """Gives the topic out again.

        >>> engine.resume("mail")
        """
        check_topic(topic)
        driver = self._open_driver()
        run(driver, control.pause(self._map(), topic, pause=False))

    def limit(self, topic: str, *, rate: float | None = None, concurrency: int | None = None) -> None:
        """At most ``rate`` tasks a second and ``concurrency`` at once of the topic, over all shards and workers of the
        fleet; neither ends the limits. Of a forwarded topic the rate only: its tasks leave, and are not counted.

        >>> engine.limit("invoice", rate=100, concurrency=20)
        """
        limit = limit_of(topic, rate, concurrency)
        driver = self._open_driver()
        run(driver, control.limit(self._map(), topic, limit))

    def dead(self, topic: str | None = None) -> Iterator[DeadTask]:
        """The dead tasks (of one topic), shard by shard, those that died first coming first; read page by page. Also
        while tasks are moved between shards each is met, and once.

        >>> for task in engine.dead("mail"):
        ...     print(task.id, task.died, task.reason)
        """
        if topic is not None:
            check_topic(topic)
        driver = self._open_driver()
        pages = control.DeadPages(self._map())
        while page := run(driver, pages.following()):
            for dead_record in page:
                if topic is None or topic_of(dead_record.id) == topic:
                    yield self._dead_task(dead_record)

    def requeue_all(self, topic: str | None = None) -> int:
        """Schedules all dead tasks (of one topic) again, now and with all their attempts; answers how many.

        >>> print(engine.requeue_all("mail"), "tasks run again")
        """
        # all listed before the first is requeued: those that die again meanwhile would be met again, without end
        driver = self._open_driver()
        ids = [task.id for task in self.dead(topic)]
        return run(driver, by_id.requeue_all(self._map(), ids, NOW))

    def purge(self, topic: str | None = None, *, everything: bool = False) -> int:
        """Removes the topic's tasks, or all, that nobody holds: scheduled, ready and dead. Answers how many.

        Those that are running finish. What is pushed meanwhile may stay; what is moved to another shard meanwhile goes.

        >>> print(engine.purge("mail"), "tasks removed")
        """
        check_purge(topic, everything)
        driver = self._open_driver()
        return run(driver, control.purge(self._map(), topic))

    def stats(self) -> Stats:
        """Counts for each shard and in total. No snapshot: shards are seen one after the other, and one that can't be
        seen says why.

        >>> stats = engine.stats()
        >>> print(stats.scheduled, stats.ready, stats.dead, stats.healthy, stats.problems)
        """
        driver = self._open_driver()
        timeout = min(self.options.timeout, STATS_TIMEOUT_S)
        counts_by_shard = run(driver, control.count_shards(self._map(), self._topics_of_shard), timeout)
        nodes = {keys.slot: driver.node_of(keys.slot) for keys, _ in counts_by_shard}
        return self._stats(
            counts_by_shard,
            nodes,
            replication=run(driver, control.replication(counts_by_shard, nodes), timeout),
            advised=run(driver, self._advice(driver, counts_by_shard, pollers=self._pollers_driver()), timeout),
            subscriber=self._present_subscriber(),
            server=driver.server_version,
            connections=driver.connections(),
        )
