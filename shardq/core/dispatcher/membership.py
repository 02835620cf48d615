"""Sends this process's heartbeat, with its report, and hears from it which members live, and what they can't
reach. Called by ``dispatcher``. A thread of its own; every heartbeat is one script.

A process that is alone, and subscribed to the news, sends few: nobody waits for them. A process that joins cuts the
time of the others, so that their silence is noticed as soon as ever (``heartbeat.lua``), and the news make them answer.

A process that can't read the topology, because only other builds of shardq can, signs off and serves nothing: others
have its shards. So does one whose address leads to another engine, without a word there. It looks on, and comes back if
that was undone.

While the control slot can't be reached, the members stay as they were. When it is reached again, members seen before
count as alive for one more period. Otherwise a process that was cut off would take over every shard at once.
"""

from __future__ import annotations

import logging
import secrets
import socket
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

from shardq.core.calls import control
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.report import Report, Reports
from shardq.core.layout.keys import ControlKeys
from shardq.core.layout.topology import UnreadableTopology
from shardq.core.operation import Operation, run
from shardq.core.threads import Loop
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_upkeep import refresh
from shardq.errors import AnotherEngine, IncompatibleVersion, ShardqError

log: logging.Logger = logging.getLogger("shardq.dispatcher")

BEAT_S = 1.0
PERIOD_S = 3.0
"""A member that is silent for this long is dead: three heartbeats, so one that a busy server delays does not count."""

ALONE_BEAT_S = 5.0
"""The time between two heartbeats of a process that is alone. Whoever only looks takes it for alive for so much longer
when it is killed.
"""

MARGIN_S = 0.02
"""The wait from a member's expiry to the next look: its late heartbeat may be on its way."""

NEWS_GAP_S = 0.02
"""The least time between two heartbeats because of news: several messages may tell one change."""

CALL_TIMEOUT_S = 1.0
LEAVE_TIMEOUT_S = 0.25
"""Short, because a silent server must not hold up the end of a process: without a sign-off, others take over later."""

WHO = "the heartbeat"
"""The heartbeat's name where an outage is logged, beside the numbers of shards."""

Changed = Callable[[tuple[str, ...], Mapping[str, Collection[int]]], None]


class Membership:
    """After each heartbeat calls ``changed`` with the living members, sorted, and the shards that each says it can't
    reach: in its thread, and once in ``join``.
    """

    def __init__(
        self,
        driver: Driver,
        cache: TopologyCache,
        changed: Changed,
        *,
        hears: Callable[[], bool],
        report: Callable[[float], Report],
        unreached: Callable[[], Collection[int]],
    ) -> None:
        """``hears``: says if the news reach this process. ``report``: makes its report, given the seconds for which the
        heartbeat counts. ``unreached``: the shards that it can't reach.
        """
        self.process: str = f"{socket.gethostname()[:32]}-{secrets.token_hex(4)}"
        self._driver = driver
        self._connection = driver.dedicated(cache.control.slot)
        """Its own: a heartbeat must not wait for one of the pool, and ``leave`` interrupts one that is not answered."""
        self._cache = cache
        self._changed = changed
        self._hears = hears
        self._reports = Reports(report)
        self._unreached = unreached
        self._word = ""
        """The word of the members and of what they can't reach, as this process knows them; empty: it asks for all."""
        self._members: Collection[str] = ()
        self._others_unreached: Mapping[str, Collection[int]] = {}
        self._graced: dict[str, float] = {}
        """Member that counts as alive only because of our own outage → the monotonic instant until which it does."""
        self._alone = False
        """True if the last heartbeat found no other member, and no news came since."""
        self.problem: str = ""  # what follows from a stored topology that can't be read here; empty while it can
        self._is_aside = False
        """True while only other builds can read it: then this process is no member."""
        self._ahead_s = 0.0
        """The clock of the control slot's master, less this process's monotonic one, as of the last heartbeat."""
        self.loop: Loop = Loop(
            "shardq-heartbeat",
            self._beat,
            log,
            fails="the heartbeat fails, keeping the present shards",
            works="the heartbeat works again",
            woken=self._woken,
            failed=self._failed,
            healed=partial(driver.outages.over, WHO),
            ended=self._ended,
            longest_pause_s=BEAT_S,
        )
        """Threads that hear of a change of the members or the topology wake it: the next heartbeat is due."""

    def join(self, deadline: float) -> None:
        """Becomes a member in the caller's thread before the deadline, and starts the thread of heartbeats."""
        try:
            self._beat(deadline)
            if self._is_aside:
                raise IncompatibleVersion(self.problem)
        except BaseException:
            self._connection.close()
            raise
        self.loop.start()

    def clock_ms(self) -> float:
        """The time by the clock of the control slot's master, once this process is a member."""
        return (self._ahead_s + time.monotonic()) * 1000

    def stop(self) -> None:
        """Tells the thread to end. No other heartbeat follows one that is under way, which is left to be answered: if
        it were interrupted, it could reach the server after the sign-off, and join this process again.
        """
        self.loop.stop()

    def leave(self) -> None:
        """Signs off, which tells the others at once. Without an answer they notice after the period."""
        self._connection.interrupt()  # a heartbeat that was not answered until now
        try:
            self._driver.call(
                control.heartbeat(
                    self._cache.control,
                    self.process,
                    alive_ms=0,
                    others_ms=_ms(PERIOD_S),
                    epoch=self._cache.topology.stamp,
                    leave=True,
                ),
                timeout=LEAVE_TIMEOUT_S,
            )
        except ShardqError as exc:
            fields = {"error": type(exc).__name__}
            log.warning("could not sign off, the other dispatchers notice within %g s: %s", PERIOD_S, exc, extra=fields)

    def _woken(self) -> None:
        self._alone, self._word = False, ""  # a build that knows no word may have changed the members
        self.loop.stopping.wait(NEWS_GAP_S)

    def _failed(self, exc: BaseException) -> bool:
        self._alone, self._word = False, ""
        return self._driver.outages.failed(WHO, exc)

    def _ended(self) -> None:
        self._driver.outages.left(WHO)
        self._connection.close()

    def _beat(self, deadline: float | None = None) -> float:
        """Sends one heartbeat. Returns how long to wait until the next."""
        cache, began = self._cache, time.monotonic()
        alive_s = self._alive_s()
        report = b"" if self._is_aside else self._reports.next(began, alive_s)
        unreached = self._unreached()
        roll = self._connection.call(
            control.heartbeat(
                cache.control,
                self.process,
                alive_ms=_ms(alive_s),
                others_ms=_ms(PERIOD_S),
                epoch=cache.topology.stamp,
                report=report,
                unreached=unreached,
                word=self._word,
                leave=self._is_aside,
            ),
            timeout=CALL_TIMEOUT_S if deadline is None else None,
            deadline=deadline,
        )
        self._reports.sent(report, began)
        if roll.joined and not report:
            self._reports.forgotten()
        known = cache.topology.engine
        try:
            if roll.stamp == cache.topology.stamp:
                cache.heard_at = time.monotonic()
            else:
                run(self._driver, refresh(cache), CALL_TIMEOUT_S)
            self.problem = ""
        except (IncompatibleVersion, AnotherEngine) as exc:
            return self._stand_aside(exc)
        except UnreadableTopology as exc:
            # who lives is known all the same, and shards change hands
            if not self.problem:
                log.error("going on by the topology of epoch %d: %s", cache.topology.epoch, exc)
            self.problem = f"this process goes on by an earlier topology: {exc}"
        if self._is_aside or cache.topology.engine != known:
            if self._is_aside:
                log.warning("the engine can be read again, this process serves shards again")
            self._is_aside = False
            self._reports.forgotten()
            return 0.0
        now = time.monotonic()
        self._ahead_s = roll.now_us / 1e6 - now
        if self.loop.fault:
            self._graced = dict.fromkeys([*self._members, *self._graced], now + PERIOD_S)
        if roll.members is not None:
            self._word, self._members, self._others_unreached = roll.word, roll.members, roll.unreached
        members = set(self._members)
        self._graced = {name: until for name, until in self._graced.items() if until > now and name not in members}
        living = members | self._graced.keys()
        self._alone = living == {self.process}
        self._changed(tuple(sorted(living)), {**self._others_unreached, self.process: unreached})
        alive_s = self._alive_s()
        if self._reports.has_news(alive_s):
            return NEWS_GAP_S
        beat_s = BEAT_S if alive_s == PERIOD_S else ALONE_BEAT_S
        ends = [*self._graced.values()]
        if roll.others_ms is not None:
            ends.append(now + roll.others_ms / 1e3 - roll.now_us / 1e6)
        expiry = min(ends, default=now + beat_s)
        return min(beat_s, max(MARGIN_S, expiry - now + MARGIN_S))

    def _stand_aside(self, exc: IncompatibleVersion | AnotherEngine) -> float:
        """Serves nothing, and signs off with the next heartbeat, which does nothing in another engine. Returns how long
        to wait until then.
        """
        if self._is_aside:
            return ALONE_BEAT_S
        self.problem = f"this process dispatches nothing any more: {exc}"
        log.error("%s", self.problem)
        self._is_aside, self._word, self._members, self._graced = True, "", (), {}
        self._reports.forgotten()
        self._changed((), {})
        return 0.0

    def _alive_s(self) -> float:
        """The seconds for which a heartbeat counts now."""
        return ALONE_BEAT_S + PERIOD_S if self._alone and self._hears() else PERIOD_S


def dispatchers(keys: ControlKeys) -> Operation[list[str]]:
    """Returns the dispatchers that count as alive, sorted."""
    now_ms = yield control.clock_ms(keys)
    names: list[str] = yield control.alive(keys, now_ms)
    return names


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
