"""The operator's commands to an engine as a whole: routes, the number of shards, pauses, limits, dead tasks, purges.

The twins side by side; ``Engine`` and ``AsyncEngine`` are made of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Literal

from shardq import operation, recovery
from shardq.calls.control import living
from shardq.dispatcher.membership import dispatchers
from shardq.drivers.sync import Driver
from shardq.engine import control
from shardq.engine.core import Core, check_purge, check_resize, limit_of, route_of
from shardq.model.checks import check_shards, check_topic
from shardq.model.ids import topic_of
from shardq.model.task import DeadTask
from shardq.producer import by_id
from shardq.resharding.handle import AsyncGrowth, Growth
from shardq.resharding.preview import Preview
from shardq.resharding.resizing import preview_resize, progress, resize

if TYPE_CHECKING:
    from shardq.drivers.aio import AsyncDriver

NOW = 0
"""The due word of a task that is due at once."""


class OperatorCommands(Core, ABC):
    """The commands for threads."""

    @abstractmethod
    def _open_driver(self) -> Driver: ...

    def forward(self, topic: str, *, to: str | None, side: Literal["right", "left"] = "right") -> None:
        """From now on the topic's payloads go to that list, byte for byte, also those ready already; None: no longer.

        Exactly once to a list on the same server, at least once to one in another slot of a cluster. A rate given with
        ``limit`` holds for it; a topic with limited concurrency is refused. Consumers of ours get nothing of the topic
        meanwhile.
        """
        route = route_of(topic, to, side)
        driver = self._open_driver()
        operation.run(driver, control.route(self._map(), topic, route))

    def expand(self, shards: int, *, rate: float | None = None) -> Growth:
        """More shards, while everything runs. Returns when new tasks go by the new number; dispatchers move the rest.

        ``rate``: tasks a second to move at most. Again, by anybody, goes on with a change that was interrupted, at the
        rate given now; raises ChangeUnderWay when another number was announced before.
        """
        return self._resize(shards, rate, grows=True)

    def shrink(self, shards: int, *, rate: float | None = None) -> Growth:
        """Fewer shards, likewise. Those that fall away are served until they are empty."""
        return self._resize(shards, rate, grows=False)

    def _resize(self, shards: int, rate: float | None, *, grows: bool) -> Growth:
        driver, cache = self._open_driver(), self._map()
        operation.run(driver, recovery.refresh(cache))
        check_resize(cache.topology, shards, rate, grows=grows)
        members = driver.call(living(cache.control))
        operation.run(driver, resize(cache, shards, rate=rate, members=members))
        span = len(cache.topology.span())
        return Growth(
            lambda: operation.run(driver, progress(cache, shards=span)),
            lambda: operation.run(driver, dispatchers(cache.control)),
        )

    def preview(self, shards: int) -> Preview:
        """Estimates what ``expand(shards)`` or ``shrink(shards)`` would move, by shard and by node. Moves nothing."""
        check_shards(shards)
        driver = self._open_driver()
        return operation.run(driver, preview_resize(self._map(), shards, driver.node_of))

    def growth(self) -> Growth:
        """The change of the number of shards that is under way, or the last one: to wait for it, or to look."""
        driver, cache = self._open_driver(), self._map()
        span = len(cache.topology.span())
        return Growth(
            lambda: operation.run(driver, progress(cache, shards=span)),
            lambda: operation.run(driver, dispatchers(cache.control)),
        )

    def pause(self, topic: str) -> None:
        """Gives out no more of the topic, over the whole fleet; what runs goes on, and tasks still become ready."""
        check_topic(topic)
        driver = self._open_driver()
        operation.run(driver, control.pause(self._map(), topic, pause=True))

    def resume(self, topic: str) -> None:
        """Gives the topic out again."""
        check_topic(topic)
        driver = self._open_driver()
        operation.run(driver, control.pause(self._map(), topic, pause=False))

    def limit(self, topic: str, *, rate: float | None = None, concurrency: int | None = None) -> None:
        """At most ``rate`` tasks a second and ``concurrency`` at once of the topic, over all shards and workers of the
        fleet; neither ends the limits. Of a forwarded topic the rate only: its tasks leave, and are not counted.
        """
        limit = limit_of(topic, rate, concurrency)
        driver = self._open_driver()
        operation.run(driver, control.limit(self._map(), topic, limit))

    def dead(self, topic: str | None = None) -> Iterator[DeadTask]:
        """The dead tasks (of one topic), shard by shard, those that died first coming first; read page by page. Also
        while tasks are moved between shards each is met, and once.
        """
        if topic is not None:
            check_topic(topic)
        driver, pages = self._open_driver(), control.DeadPages(self._map())
        while page := operation.run(driver, pages.following()):
            for dead_record in page:
                if topic is None or topic_of(dead_record.id) == topic:
                    yield self._dead_task(dead_record)

    def requeue_all(self, topic: str | None = None) -> int:
        """Schedules all dead tasks (of one topic) again, now and with all their attempts; answers how many."""
        # all listed before the first is requeued: those that die again meanwhile would be met again, without end
        driver = self._open_driver()
        ids = [task.id for task in self.dead(topic)]
        return operation.run(driver, by_id.requeue_all(self._map(), ids, NOW))

    def purge(self, topic: str | None = None, *, everything: bool = False) -> int:
        """Removes the topic's tasks, or all, that nobody holds: scheduled, ready and dead. Answers how many.

        Those that are running finish. What is pushed meanwhile may stay; what is moved to another shard meanwhile goes.
        """
        check_purge(topic, everything)
        driver = self._open_driver()
        return operation.run(driver, control.purge(self._map(), topic))


class AsyncOperatorCommands(Core, ABC):
    """The commands for asyncio."""

    @abstractmethod
    async def _open_driver(self) -> AsyncDriver: ...

    async def forward(self, topic: str, *, to: str | None, side: Literal["right", "left"] = "right") -> None:
        """From now on the topic's payloads go to that list, byte for byte, also those ready already; None: no longer.

        Exactly once to a list on the same server, at least once to one in another slot of a cluster. A rate given with
        ``limit`` holds for it; a topic with limited concurrency is refused. Consumers of ours get nothing of the topic
        meanwhile.
        """
        route = route_of(topic, to, side)
        driver = await self._open_driver()
        await operation.arun(driver, control.route(self._map(), topic, route))

    async def expand(self, shards: int, *, rate: float | None = None) -> AsyncGrowth:
        """More shards, while everything runs. Returns when new tasks go by the new number; dispatchers move the rest.

        ``rate``: tasks a second to move at most. Again, by anybody, goes on with a change that was interrupted, at the
        rate given now; raises ChangeUnderWay when another number was announced before.
        """
        return await self._resize(shards, rate, grows=True)

    async def shrink(self, shards: int, *, rate: float | None = None) -> AsyncGrowth:
        """Fewer shards, likewise. Those that fall away are served until they are empty."""
        return await self._resize(shards, rate, grows=False)

    async def _resize(self, shards: int, rate: float | None, *, grows: bool) -> AsyncGrowth:
        driver = await self._open_driver()
        cache = self._map()
        await operation.arun(driver, recovery.refresh(cache))
        check_resize(cache.topology, shards, rate, grows=grows)
        members = await driver.call(living(cache.control))
        await operation.arun(driver, resize(cache, shards, rate=rate, members=members))
        span = len(cache.topology.span())
        return AsyncGrowth(
            lambda: operation.arun(driver, progress(cache, shards=span)),
            lambda: operation.arun(driver, dispatchers(cache.control)),
        )

    async def preview(self, shards: int) -> Preview:
        """Estimates what ``expand(shards)`` or ``shrink(shards)`` would move, by shard and by node. Moves nothing."""
        check_shards(shards)
        driver = await self._open_driver()
        return await operation.arun(driver, preview_resize(self._map(), shards, driver.node_of))

    async def growth(self) -> AsyncGrowth:
        """The change of the number of shards that is under way, or the last one: to wait for it, or to look."""
        driver = await self._open_driver()
        cache = self._map()
        span = len(cache.topology.span())
        return AsyncGrowth(
            lambda: operation.arun(driver, progress(cache, shards=span)),
            lambda: operation.arun(driver, dispatchers(cache.control)),
        )

    async def pause(self, topic: str) -> None:
        """Gives out no more of the topic, over the whole fleet; what runs goes on, and tasks still become ready."""
        check_topic(topic)
        driver = await self._open_driver()
        await operation.arun(driver, control.pause(self._map(), topic, pause=True))

    async def resume(self, topic: str) -> None:
        """Gives the topic out again."""
        check_topic(topic)
        driver = await self._open_driver()
        await operation.arun(driver, control.pause(self._map(), topic, pause=False))

    async def limit(self, topic: str, *, rate: float | None = None, concurrency: int | None = None) -> None:
        """At most ``rate`` tasks a second and ``concurrency`` at once of the topic, over all shards and workers of the
        fleet; neither ends the limits. Of a forwarded topic the rate only: its tasks leave, and are not counted.
        """
        limit = limit_of(topic, rate, concurrency)
        driver = await self._open_driver()
        await operation.arun(driver, control.limit(self._map(), topic, limit))

    async def dead(self, topic: str | None = None) -> AsyncIterator[DeadTask]:
        """The dead tasks (of one topic), shard by shard, those that died first coming first; read page by page. Also
        while tasks are moved between shards each is met, and once.
        """
        if topic is not None:
            check_topic(topic)
        driver = await self._open_driver()
        pages = control.DeadPages(self._map())
        while page := await operation.arun(driver, pages.following()):
            for dead_record in page:
                if topic is None or topic_of(dead_record.id) == topic:
                    yield self._dead_task(dead_record)

    async def requeue_all(self, topic: str | None = None) -> int:
        """Schedules all dead tasks (of one topic) again, now and with all their attempts; answers how many."""
        # all listed before the first is requeued: those that die again meanwhile would be met again, without end
        driver = await self._open_driver()
        ids = [task.id async for task in self.dead(topic)]
        return await operation.arun(driver, by_id.requeue_all(self._map(), ids, NOW))

    async def purge(self, topic: str | None = None, *, everything: bool = False) -> int:
        """Removes the topic's tasks, or all, that nobody holds: scheduled, ready and dead. Answers how many.

        Those that are running finish. What is pushed meanwhile may stay; what is moved to another shard meanwhile goes.
        """
        check_purge(topic, everything)
        driver = await self._open_driver()
        return await operation.arun(driver, control.purge(self._map(), topic))
