# Generated from operator_aio.py by `make fmt`: change that one.
"""The operator's commands to an engine as a whole: routes, the number of shards, pauses, limits, stats, health,
and schedules of recurring tasks. ``Engine`` inherits them.
"""

from __future__ import annotations

import datetime as dt
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

import msgspec

from shardq.core import topology_upkeep
from shardq.core.calls.control import living
from shardq.core.fleet.member import Member, fleet
from shardq.core.layout.topology import TopicSettings, Topology
from shardq.core.model.checks import check_key, check_topic, instant_ms, shown_instant
from shardq.core.model.endpoints import default_key
from shardq.core.model.ids import shown_topic
from shardq.core.model.printable import counted
from shardq.core.model.record import encode_head, record_encoder
from shardq.core.model.task import refuse_unknown
from shardq.core.model.task_options import ContentOptions
from shardq.core.operation import Operation, run
from shardq.core.producer import commands_by_id
from shardq.core.producer.pushing import check_hooked
from shardq.core.resharding.handle_sync import Resize
from shardq.core.resharding.resizing import Estimate, estimate_resize, resize
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_edits import edit_topology, take_up_keys, with_pause
from shardq.engine import engine_wide
from shardq.engine.engine_wide import TOPICS_AT_ONCE, Change, noted, read_changes
from shardq.engine.health import MAX_DEAD, MAX_LATE_S, MAX_READY_AGE_S, Bounds, Health, check_bounds
from shardq.engine.options import (
    STATS_TIMEOUT_S,
    OnFailure,
    check_resize,
    limit_of,
    route_of,
    settings_given,
    topics_given,
)
from shardq.engine.stats import Seen, Stats
from shardq.engine.tasks_sync import TaskCommands
from shardq.engine.topic_keys import KeyList, check_limit, largest_keys
from shardq.errors import BadInput, Conflict, InvalidOption, ShardqError
from shardq.features.listing import ends
from shardq.features.listing.query import Filter, Query
from shardq.features.schedules import declaring
from shardq.features.schedules.entry import Declaration
from shardq.features.schedules.every import CatchUp, Every, Overlap, Schedule, check_schedule_name, schedule_name
from shardq.features.schedules.handle_sync import OwnedSchedules, ScheduleHandle
from shardq.features.schedules.ids import schedule_id
from shardq.features.sinks import registry
from shardq.features.transfer.exporting import Export
from shardq.features.transfer.importing import Importer, LineChunk, Lines, Restored
from shardq.worker.handlers import Registered, recurring
from shardq.worker.named import call_of

if TYPE_CHECKING:
    from shardq.core.drivers.sync import Driver
    from shardq.core.subscriber import Subscriber

T = TypeVar("T")


class OperatorCommands(TaskCommands, ABC):
    """The commands of ``Engine`` on the whole."""

    @abstractmethod
    def _present_subscriber(self) -> Subscriber | None: ...

    def forward(
        self,
        topic: str,
        *,
        to: str | None,
        side: Literal["right", "left"] = "right",
        maxlen: int | None = None,
    ) -> None:
        """Forwards the topic's payloads from now on, byte for byte, with those that are ready already. ``to=None`` ends
        it. Consumers of shardq get nothing of the topic meanwhile.

        ``to`` is the name of a list on the engine's own server (``side="left"``: LPUSH), ``stream:NAME`` for a stream
        there, or a URL of another Redis, a broker or an HTTP endpoint (the page ``sinks/README.md`` tells which);
        ``webhook://#sign.key=${MASTER}`` posts each task to the URL that it was pushed with (``url=``). A URL
        is stored with the engine's settings: write ``${NAME}`` for a password, which the processes that forward have as
        the secret NAME ($SHARDQ_SECRET_NAME, or a file of ``secrets=``). ``maxlen``: about how many entries a stream
        keeps. Raises InvalidUrl for a server that ``sinks=`` of this engine does not name.

        A list or stream on the same server gets each task exactly once, everything else at least once, with the id to
        tell duplicates by. The engine keeps no ends of tasks that go to such a list or stream (``done_age`` of
        ``configure``): nothing tells when they are done. Every process that runs pollers forwards. A function of yours
        that takes many tasks at a time is a handler of batches instead: ``@worker.on(topic, batch=100)``.

        >>> engine.forward("emails", to="mail-queue")
        >>> engine.forward("events", to="stream:events", maxlen=100_000)
        >>> engine.forward("letters", to="redis://10.0.0.7:6379/0#letters")
        >>> engine.forward("hooks", to="webhook://#sign.key=${MASTER}")
        """
        route = route_of(topic, to, side, maxlen, egress=self._options.egress)
        what = f"topic {shown_topic(topic)}: forwarded {f'to {route.named}' if route else 'no more'}"
        self._edit(partial(engine_wide.with_route, topic=topic, route=route), what)
        registry.advise(topic, route)

    def resize(self, shards: int | None = None, *, rate: float | None = None, dry_run: bool = False) -> Resize:
        """Changes the number of shards, up or down, while everything runs. Returns when new tasks go by the new number;
        dispatchers move the rest, and serve shards that fall away until those are empty.

        ``rate``: tasks a second to move at most. A repeated call, from any process, goes on with an interrupted change,
        at the rate given now. Raises ChangeUnderWay when another number was announced before.

        ``dry_run=True`` changes nothing: the answer estimates how many tasks and bytes would move. Without a number it
        is the change that is under way, or was the last: to wait for it, or to look.

        >>> resize = engine.resize(8, rate=1000)
        >>> resize.wait(timeout=600)
        True
        >>> would = engine.resize(64, dry_run=True)
        >>> print(would.tasks, would.bytes, would.nodes)
        >>> progress = (engine.resize(dry_run=True)).progress()
        """
        check_resize(shards, rate, dry_run=dry_run)
        deadline = self._deadline()
        driver = self._open_driver(deadline)
        cache = self._map()
        run(driver, topology_upkeep.refresh(cache), deadline=deadline)
        estimated: Estimate | None = None
        if shards is not None and dry_run:
            estimated = run(driver, estimate_resize(cache, shards, driver.node_of), deadline=deadline)
        elif shards is not None:
            members = driver.call(living(cache.control), deadline=deadline)
            before = cache.topology.shards
            change = resize(cache, shards, rate=rate, members=members)
            what = "" if before == shards else f"resized from {before} to {shards} shards"
            run(driver, noted(cache, change, what), deadline=deadline)
        span = len(cache.topology.span())
        return Resize(
            driver,
            cache,
            shards or cache.topology.pending or cache.topology.shards,
            span,
            estimated,
        )

    def pause(self, topic: str, *, until: float | dt.datetime | None = None) -> None:
        """Stops giving out the topic's tasks, over the whole fleet. Handlers finish, and tasks still become ready.

        ``until``: an aware datetime or epoch seconds. The topic is given out again within about a second of it, as long
        as some process dispatches; ``resume`` ends the pause before that. Without it, only ``resume`` does.

        >>> engine.pause("mail")
        >>> engine.pause("mail", until=dt.datetime.now(dt.UTC) + dt.timedelta(minutes=10))
        """
        check_topic(topic)
        until_ms = 0 if until is None else instant_ms(until, "until")
        what = f"topic {shown_topic(topic)}: paused" + (f" until {shown_instant(until_ms)}" if until_ms else "")
        self._edit(partial(with_pause, topic=topic, pause=True, until_ms=until_ms), what)

    def resume(self, topic: str) -> None:
        """Gives out the topic's tasks again.

        >>> engine.resume("mail")
        """
        check_topic(topic)
        self._edit(partial(with_pause, topic=topic, pause=False), f"topic {shown_topic(topic)}: resumed")

    def hold(self, topic: str, *, key: str, until: float | dt.datetime | None) -> None:
        """Has a key of a topic give nothing until an instant: an aware datetime or epoch seconds; None lets it go on.
        What of it is leased ends, and what is ready already goes back.

        >>> engine.hold("webhook", key="customer-7", until=dt.datetime.now(dt.UTC) + dt.timedelta(minutes=10))
        >>> engine.hold("webhook", key="customer-7", until=None)
        """
        check_topic(topic)
        check_key(key)
        until_ms = "" if until is None else instant_ms(until, "until")
        what = f"topic {shown_topic(topic)}: key {key} " + ("goes on" if until is None else f"on hold until {until}")
        holding = partial(commands_by_id.hold, topic=topic, key=key, until=until_ms)
        self._carry_out(lambda cache: noted(cache, holding(cache), what))

    def limit(
        self,
        topic: str,
        rate: float | EllipsisType | None = ...,
        *,
        concurrency: int | EllipsisType | None = ...,
        per_key: int | None = None,
        per_key_rate: float | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        """Limits the topic to ``rate`` tasks a second and ``concurrency`` at once, over all shards and workers of the
        fleet, in place of its earlier limits; ``limit(topic, None)`` lifts them. It holds at once, also for consumers
        that wait under the limit before. A forwarded topic takes a rate only: its tasks leave, and are not counted.

        Of each key (``key=`` of a push) ``per_key`` tasks are out at once, that is ready or taken, and
        ``per_key_rate`` become ready in a second. Without it one is, in due order. With one, a key waits for the retry
        of a task that failed; with ``on_failure="skip"`` it goes on with the next.

        >>> engine.limit("invoice", rate=100, concurrency=20)
        >>> engine.limit("webhook", per_key=20, per_key_rate=5)
        >>> engine.limit("invoice", None)
        """
        limit = limit_of(topic, rate, concurrency, per_key=per_key, per_key_rate=per_key_rate, on_failure=on_failure)
        told = msgspec.structs.asdict(limit).items()
        bounds = ", ".join(f"{name} {value}" for name, value in told if value is not None)
        what = f"topic {shown_topic(topic)}: limits: {bounds or 'none'}"
        if limit.per_key is not None:
            self._carry_out(take_up_keys)
        self._edit(partial(engine_wide.with_limit, topic=topic, limit=limit), what)

    def configure(
        self,
        *,
        topics: Mapping[str, Mapping[str, Any]] | None = None,
        max_attempts: int | None = None,
        dead_age: float | dt.timedelta | None = None,
        dead_count: int | None = None,
        done_age: float | dt.timedelta | None = None,
        done_count: int | None = None,
        dry_run: bool = False,
    ) -> dict[str, TopicSettings]:
        """Changes settings of the engine and of many topics, for all processes; None leaves one as it is.
        ``stats().settings`` has the present ones. Returns the topics whose settings changed, with the new ones.

        ``max_attempts``: the attempts of a task that brings no limit of its own, and whose handler has none. Dead tasks
        are kept for ``dead_age`` seconds, ``dead_count`` at most; what is beyond that goes within five minutes.

        ``done_age``: for so many seconds the engine keeps what became of tasks that are done or cancelled, for
        ``get(id, ended=True)``; of ``done_count`` tasks at most, 80,000 for each shard. It keeps none at first; 0
        removes what is kept. A topic that is forwarded to a list or stream here keeps none.

        ``topics``: topic → a dict with ``rate`` and ``concurrency`` (as of ``limit``), ``forward`` with ``side`` and
        ``maxlen`` (as of ``forward``; no function), ``pause`` (True, False, or a datetime), ``done_age`` (the engine's
        at most; 0 for none, None for the engine's). What a topic's dict leaves
        out stays as it is; None or False ends a limit or a route. Limits are set together: ``rate`` alone ends a
        ``concurrency``. All is checked first, then set 500 topics at a time. ``dry_run=True`` sets nothing, and returns
        what would change.

        >>> engine.configure(max_attempts=10, dead_age=7 * 86_400)
        >>> engine.configure(done_age=3600, topics={"log": {"done_age": 0}})
        >>> engine.configure(topics={"mail": {"rate": 50, "pause": False}, "log": {"forward": "log-queue"}})
        """
        changes, given = (
            settings_given(max_attempts, dead_age, dead_count, done_age, done_count),
            topics_given({} if topics is None else topics, self._options.egress),
        )
        if not changes and topics is None:
            raise InvalidOption(
                "configure needs a setting to change: give max_attempts=, dead_age=, dead_count=, done_age=, "
                "done_count= or topics=; stats().settings has the present ones"
            )
        if changes and not dry_run:
            what = "configured: " + ", ".join(f"{name}={value}" for name, value in changes.items())
            self._edit(partial(engine_wide.with_settings, changes=changes), what)
            if not self._map().topology.ends_rule and not changes.keys().isdisjoint(("done_age", "done_count")):
                self._carry_out(ends.remove)
        if given:
            self._carry_out(topology_upkeep.refresh)
        edited: dict[str, TopicSettings] = {}
        for first in range(0, len(given), TOPICS_AT_ONCE):
            some = dict(list(given.items())[first : first + TOPICS_AT_ONCE])
            edited |= self._carry_out(partial(engine_wide.configure_topics, given=some, dry_run=dry_run))
        for topic in edited:
            registry.advise(topic, given[topic].get("route"))
        return edited

    def export(self, topic: str | None = None, *, secrets: bool = False, **filter: Unpack[Filter]) -> Iterator[bytes]:
        """Yields lines of JSON, each with its line feed, from which ``restore`` makes the same tasks in another engine:
        the settings of the engine and of topics, schedules, every task that matches, and dedup windows. For the filter,
        see ``tasks``. A task is a line of ``shardq list --json``, with the payload as it is stored.

        Nothing has to stand still: a task that waits throughout is in the export, also while shards are added or
        removed. Leased tasks are in it as ready. Permits, what is left of rates, and the history are not in it, nor
        is what waits in a far store. Routes are without their secrets unless ``secrets=True``.

        >>> for line in engine.export(topic="mail"):
        ...     print(line)
        """
        return self._export(Query.checked(topic, **filter), secrets=secrets)

    def _export(self, query: Query, *, secrets: bool) -> Iterator[bytes]:
        deadline = self._deadline()
        driver = self._open_driver(deadline)
        export = Export(self._map(), query, secrets=secrets)
        while (lines := run(driver, export.following(), deadline=deadline)) is not None:
            for line in lines:
                yield line
            deadline = self._deadline()  # each page has the engine's timeout for itself

    def restore(self, lines: Lines, *, dry_run: bool = False) -> Restored:
        """Makes the tasks, settings and schedules of an export in this engine; a line without a ``state`` is a task to
        push, as ``shardq import`` reads it. What is there already stays as it is, and is counted as ``kept``. Each line
        is carried out once, also where answers are lost and workers run. A line that is wrong is counted as ``bad``.

        ``lines``: bytes or str, such as a file, or ``export()`` of another engine. ``dry_run=True`` changes nothing,
        and counts what it would do.

        >>> dead = '{"id": "mail/order-42", "state": "dead", "payload": {"order": 42}, "reason": "no such user"}'
        >>> restored = engine.restore([dead, '{"payload": {"order": 43}, "topic": "mail", "delay": 60}'])
        >>> restored.restored, restored.pushed, restored.kept, restored.bad
        (1, 1, 0, 0)
        """
        if isinstance(lines, bytes | str):
            raise BadInput("restore takes lines, one after the other: give a file that is open, or a list of lines")
        importer = self._importer(dry_run=dry_run)
        chunk = LineChunk(importer, lines)
        while self._restore(importer, chunk):
            pass
        restored = importer.so_far
        if restored.restored and not dry_run:
            tasks = counted(restored.restored, "task")
            self._carry_out(lambda cache: engine_wide.note(cache, f"restored {tasks} of an export"))
        return restored

    def _restore(self, importer: Importer, chunk: LineChunk) -> bool:
        """Carries out a chunk, and fills the next one meanwhile. Returns False if there was nothing in it."""
        items = chunk.taken()
        if not items:
            return False
        try:
            said = self._carry_out(lambda cache: importer.send(cache, items, meanwhile=chunk.fill))
        except ShardqError as exc:
            exc.add_note("what was carried out before that is there; give all lines again, and it is kept")
            raise
        for each in importer.settled(said):
            if not isinstance(each.answer, Conflict):
                raise each.answer
            importer.told_bad(each.number, str(each.answer))
        return True

    def changes(self) -> list[Change]:
        """Returns the last hundred changes that operators made, the newest first: who, when and what.

        >>> for change in engine.changes():
        ...     print(change.at, change.by, change.what)
        """
        return self._carry_out(read_changes)

    def fleet(self) -> list[Member]:
        """Returns the processes of the engine that live: dispatchers and workers, with what each says of itself. One
        that was killed stays for a while: a dispatcher for 3 seconds, or 8 where it was the only one, a worker for 30.

        >>> for member in engine.fleet():
        ...     print(member.kind, member.host, member.pid, member.handled, member.failed, member.last_error)
        """
        driver, deadline = self._begin_look()
        return run(driver, fleet(self._map().control), deadline=deadline)

    def stats(self, *, shards: bool = True) -> Stats:
        """Returns the counts of each shard and topic, and their totals. They are no snapshot: shards are read one after
        the other, each with one script. A shard that can't be read within 1.5 seconds says why. ``shards=False`` leaves
        the list of shards empty. What the server does not count by topic is estimated; see ``TopicStats``.

        >>> stats = engine.stats()
        >>> print(stats.scheduled, stats.ready, stats.leased, stats.dead, stats.head_age)
        >>> print({topic: seen.ready for topic, seen in stats.topics.items()})
        """
        driver, deadline = self._begin_look()
        return self._look(driver, self._count(driver, deadline), deadline, shards=shards)

    def keys(self, topic: str, *, limit: int = 20) -> KeyList:
        """Returns the keys of a topic with the most tasks that are held, ready and leased, the largest first, what
        each waits for, when its next turn is, why the task failed whose retry it waits for, and what is over a lowered
        limit. With more than 300 keys in a shard this
        is a sample: ``is_whole`` says so. No key with more than a 300th of a shard's tasks is missed.

        >>> for each in engine.keys("webhook", limit=5):
        ...     print(each.key, each.held, each.ready, each.leased, each.oldest, each.why, each.next_turn)
        """
        check_topic(topic)
        check_limit(limit)
        driver, deadline = self._begin_look()
        return run(driver, largest_keys(self._map(), topic, limit), deadline=deadline)

    def health(
        self, max_late: float = MAX_LATE_S, max_ready_age: float = MAX_READY_AGE_S, max_dead: int = MAX_DEAD
    ) -> Health:
        """Looks at the shards, their servers and the dispatchers, and says if all is well; if not, why. True if it is.

        Reasons are, among others, a scheduled task that is overdue by more than ``max_late`` seconds, a ready one that
        waits for more than ``max_ready_age`` seconds (see ``TopicStats.oldest_ready``), unless its topic is paused, and
        more than ``max_dead`` deaths in ten minutes. It raises only what keeps it from looking at all.

        >>> health = engine.health(max_late=5.0, max_ready_age=60.0, max_dead=100)
        >>> if not health:
        ...     print(health.ok, health.reasons)
        """
        check_bounds(max_late, max_ready_age, max_dead)
        driver, deadline = self._begin_look()
        counts_by_shard = self._count(driver, deadline)
        stats = self._look(driver, counts_by_shard, deadline, shards=True)
        bounds = Bounds(max_late, max_ready_age, max_dead)
        asked = self._examine(driver, counts_by_shard, bounds, subscriber=self._present_subscriber())
        return self._judge(stats, run(driver, asked, deadline=deadline), bounds)

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

    def _count(self, driver: Driver, deadline: float) -> engine_wide.CountsByShard:
        return self._read(driver, engine_wide.count_shards(self._map(), self._topics_of_shard), deadline)

    def _look(
        self, driver: Driver, counts_by_shard: engine_wide.CountsByShard, deadline: float, *, shards: bool
    ) -> Stats:
        nodes = {keys.slot: driver.node_of(keys.slot) for keys, _ in counts_by_shard}
        seen = Seen(
            counts=counts_by_shard,
            nodes=nodes,
            replication=self._read(driver, engine_wide.replication(counts_by_shard, nodes), deadline),
            schedules=self._read(driver, declaring.summary(self._map()), deadline),
            ends_since=self._read(driver, engine_wide.ends_since(self._map()), deadline),
            server=driver.server_version,
            connections=driver.connections(),
        )
        spool, far = self._store.here((time.monotonic() + deadline) / 2)
        return self._stats(seen, spool, far, shards=shards)

    # ---- schedules

    def every(
        self,
        name: str,
        *,
        cron: str | None = None,
        interval: float | dt.timedelta | None = None,
        tz: str | None = None,
        topic: str = "",
        key: str | None = None,
        payload: Any = None,
        jitter: float | dt.timedelta = 0.0,
        catch_up: CatchUp = "one",
        start: float | dt.datetime | None = None,
        end: float | dt.datetime | None = None,
        overlap: Overlap = "allow",
        expires: float | dt.timedelta | None = None,
        owner: str = "",
        **content: Unpack[ContentOptions],
    ) -> None:
        """Pushes a task of ``topic`` with this payload at every occurrence from now on, once over the whole fleet.

        ``cron``: an expression such as "0 3 * * *", by the clock of the time zone ``tz`` (UTC, if none is given); it
        needs ``pip install 'shardq[cron]'``. Or ``interval``: the seconds between two occurrences, 0.1 at least;
        occurrences are its multiples since 1970. ``jitter``: an occurrence is due up to so many seconds later.
        ``start`` and ``end``: there are none before and after these instants. ``catch_up``: after a time in which no
        dispatcher ran, "one" run makes up for all that were missed, or "all" of them run, or "none".
        ``overlap="skip"``: an occurrence is left out while the task of the one before it is not done. ``key``, and of
        the ``content`` ``headers``, ``max_attempts``, ``tags`` and ``url``, are those of each task, as with ``push``.
        ``expires``: a task not claimed so many seconds after its due time is buried instead of run late.

        The schedule is kept in the engine, and served by the processes that have called ``start()``. Declared again, it
        stays as it is; with anything changed it takes the place of the other, and no occurrence is lost or doubled. It
        ends with ``schedule(name).remove()``, or with ``schedule(owner=…).prune()``, by a name of the program that
        declares it.

        >>> engine.every("nightly", cron="0 3 * * *", tz="Europe/Berlin", topic="reports", payload={"all": True})
        >>> engine.every("poll", interval=30, overlap="skip", expires=30)
        """
        check_schedule_name(name)
        check_topic(topic)
        if key is not None:
            check_key(key)
        refuse_unknown("every", content.keys() - ContentOptions.__annotations__.keys())
        every = Every(
            cron=cron,
            interval=interval,
            tz=tz,
            jitter=jitter,
            catch_up=catch_up,
            start=start,
            end=end,
            overlap=overlap,
            expires=expires,
            owner=owner,
            **content,
        )
        self._declare(name, every, topic, payload, key)

    def _declare(self, name: str, every: Every, topic: str, payload: Any, key: str | None = None) -> None:
        head = encode_head(every)
        if key is None and every.url is not None:
            key = default_key(every.url)
        id = schedule_id(topic if key is None else f"{topic}/{key}", name)
        record = record_encoder(self._options.codec, limit=self._options.max_payload)(payload, head, id)
        declaration = Declaration.of(every, topic=topic, key=key, record=record)

        def declared(cache: TopologyCache) -> Operation[None]:
            check_hooked(cache, () if every.url is None else (topic,))
            return declaring.declare(cache, name, declaration)

        self._carry_out(declared)
        if every.owner:
            self._declared.setdefault(every.owner, set()).add(name)

    def _declare_recurring(self, functions: Iterable[Registered]) -> None:
        """Declares the schedules of tasks that are to be served: ``@engine.task(every=…)``."""
        for task, every in recurring(functions):
            if every.max_attempts is None:
                every = msgspec.structs.replace(every, max_attempts=task.attempts.max_attempts)
            self._declare(schedule_name(task.name), every, task.topic, call_of(task.name), task.key)
            for alias in task.aliases:
                self._remove_call(alias)

    def _remove_call(self, task: str) -> None:
        """Removes the schedule of a task by an earlier name of it; one of that name that pushes anything else stays."""
        name, codec = schedule_name(task), self._options.codec
        self._carry_out(lambda cache: declaring.remove_call(cache, codec, name, call_of(task)))

    def schedules(self) -> list[Schedule]:
        """Returns all schedules, by name.

        >>> for schedule in engine.schedules():
        ...     print(schedule.name, schedule.cron or schedule.interval, schedule.next, schedule.paused)
        """
        return self._carry_out(lambda cache: declaring.listed(cache, self._options.codec))

    @overload
    def schedule(self, name: str) -> ScheduleHandle: ...

    @overload
    def schedule(self, *, owner: str) -> OwnedSchedules: ...

    def schedule(self, name: str | None = None, *, owner: str | None = None) -> ScheduleHandle | OwnedSchedules:
        """Returns the handle of a schedule: to ``pause``, ``resume``, ``run`` or ``remove`` it. Each raises
        UnknownSchedule if there is none of this name. With an ``owner``, the handle of all schedules that were declared
        with it: to ``prune`` those that the program no longer declares.

        >>> engine.every("nightly", interval=86_400, owner="billing")
        >>> engine.schedule("nightly").pause()
        >>> engine.schedule(owner="billing").prune()
        []
        """
        if name is not None and owner is None:
            return ScheduleHandle(name, self._packer, self._carry_out_noted)
        if owner is not None and name is None:
            return OwnedSchedules(owner, self._declared, self._carry_out_noted)
        raise InvalidOption("schedule needs the name of a schedule, or the owner= of some: one of both")

    def _edit(self, edit: Callable[[Topology], Topology], what: str) -> None:
        self._carry_out_noted(lambda cache: edit_topology(cache, edit), what)

    def _carry_out_noted(self, make: Callable[[TopologyCache], Operation[T]], what: str = "") -> T:
        return self._carry_out(lambda cache: noted(cache, make(cache), what))
