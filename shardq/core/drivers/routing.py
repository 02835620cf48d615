"""The slot map of one driver, and every decision about it: the node of a call, when to learn the map again, how long to
try to open, why nothing can be sent. No I/O.

``router`` and ``aio`` add connections and locks, for threads and for asyncio.
"""

from __future__ import annotations

import math
import random
import select
import sys
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any

from shardq.core.drivers.discover import discover, greet
from shardq.core.drivers.faults import ErrorReply, Fault, of_reply
from shardq.core.drivers.questions import Question
from shardq.core.drivers.replica_tracker import ReplicaTracker
from shardq.core.drivers.retry import Journal, RetryingCall, RetryStep, Spare, backoff_s, explained
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.slot_map import SlotMap
from shardq.errors import EmbeddedFault, EngineClosed, ShardqError

# Callers that all met the same fault share one answer. A cluster is asked 10 times a second at most.
REFRESH_EVERY_S = 0.1

LOOK_EVERY_S = 2.0
"""The time after which the slot map is learnt again, also where no call has met a fault: by whoever listens to channels
there, and under Sentinel by every call.

A master that Sentinel has replaced may go on answering, and what it takes then is lost. A look takes a second more for
a sentinel that has begun to hang, so that master is left within five seconds.
"""

LOOK_OVERDUE_S = 2.0
"""A call that comes so much later than a look was due, after a pause of its process, waits for the look."""

LOOK_FIRST_S = 0.5
"""The longest wait of such a call. A look takes a few milliseconds, unless most sentinels hang."""

NOT_OPEN = "the connections are not open: open the engine first"
CLOSED = "the engine is closed: make a new one, or open it again"
FORKED = (
    "this belongs to the parent process, which made it before a fork: ask the engine for another in this process "
    "(engine.consumer(), engine.resize(dry_run=True), …); the engine itself works here, too"
)
NO_POLL = (
    "this process has no select.poll, with which shardq waits for its servers; eventlet.monkey_patch() takes it away, "
    "and eventlet is not supported: use shardq in a process without it, with threads or asyncio"
)

HALF_GREEN = (
    "gevent has patched the sockets of this process and not its threads, so that a thread of shardq can't wait for a "
    "server; call gevent.monkey.patch_all() without thread=False, or use shardq in a process without it"
)


def unusable() -> str:
    """Why shardq can't wait for servers in this process; empty if it can."""
    if not hasattr(select, "poll"):
        return NO_POLL
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("socket") and not monkey.is_module_patched("threading"):
        return HALF_GREEN
    return ""


@dataclass(frozen=True, slots=True)
class ConnectionCounts:
    """The number of connections to one node: shared ones, their bound, and those with one owner."""

    shared: int
    bound: int
    own: int
    """The connections of pollers and subscribers, one each."""


class DriverBase:
    """One server, the master of a service, or the masters of a cluster. Names the node of each call, by a slot map that
    follows the servers.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.map: SlotMap = SlotMap(settings.addresses)
        self.server_version: str = ""  # the servers' version, like valkey 9.1.2; empty before open()
        self.journal: Journal | None = None  # told of every answer, if there is one
        self.is_held: Callable[[str, float], bool] = lambda node, since: False
        """Asked before a poller sends: True while those that connected to the node at that time must not dispatch there
        yet.
        """
        self._closed: str | None = NOT_OPEN  # why nothing can be sent
        self._replica_tracker = ReplicaTracker()
        self._set_up()

    def _set_up(self) -> None:
        self._learned = 0.0
        self._has_map = False
        self._look_at = math.inf
        """When a call has the slot map learnt again, see ``LOOK_EVERY_S``."""
        self._silent: set[str] = set()
        """The sentinels that did not answer the last time."""
        self._doubted = ""
        self._missing: Fault | None = None  # why there is no server to connect, as the last look for it said
        self._followers: list[Callable[[], object]] = []

    def check_open(self) -> None:
        """Raises EngineClosed before ``open()``, after ``close()``, in a forked child, and in another event loop."""
        if self._closed is not None:
            raise EngineClosed(self._closed)

    # ---- calls

    def failed_with(self, answer: ErrorReply | Fault, retrying: RetryingCall[Any], address: str | None) -> RetryStep:
        """Decides what follows a try that got no result at this address. Raises when the call is over."""
        fault = of_reply(answer.text, asked=address or "") if isinstance(answer, ErrorReply) else answer
        node = address or self.settings.safe_url
        return retrying.failed_with(fault, now=time.monotonic(), node=node, chance=random.random())

    # ---- the slot map

    def _opening(self) -> Generator[Question, Any, Fault | None]:
        """One try to open: learns the slot map, and checks the servers. Returns why that failed."""
        if why := unusable():
            raise ShardqError(why)
        fault = yield from self._learning()
        if fault is not None:
            return fault
        version = yield from greet(self.settings, self._node_ids())
        if isinstance(version, Fault):
            return version
        self.server_version = version
        return None

    def _pause_s(self, fault: Fault, tries: int, begun: float, deadline: float) -> float:
        """The pause after so many tries to open. Raises when they are over: a server that loads is given longer than
        one that is not there.
        """
        timeout = self.settings.timeout if fault.is_loading else self.settings.connect_timeout
        timeout = min(timeout, max(0.0, deadline - begun))
        pause = backoff_s(tries, random.random())
        if fault.is_final or time.monotonic() + pause >= begun + timeout:
            raise self._error(fault, "could not connect", timeout) from fault.cause
        return pause

    def _learning(self, doubted: str = "") -> Generator[Question, Any, Fault | None]:
        """Learns the slot map, from the node ``doubted`` last. Returns why no node could tell."""
        present = self.map if self._has_map else None
        # A node that hangs, or is cut off from the others, stays in doubt: its map is old.
        self._doubted = doubted or (self._doubted if self.is_cluster else "")
        found = yield from discover(self.settings, present, doubted=self._doubted, silent=self._silent)
        self._note_look()
        if isinstance(found, Fault):
            # A caller whose time was over has not learnt that there is none.
            self._missing = found if isinstance(found.cause, EmbeddedFault) else None
            return found
        self._missing = None
        self._adopt(found)
        return None

    def _note_look(self) -> None:
        """Notes that the slot map was learnt, or that nobody could tell it."""
        self._learned = time.monotonic()
        if self.settings.kind == "sentinel":
            self._look_at = self._learned + LOOK_EVERY_S

    def look_due_in(self) -> float:
        """The seconds until the slot map is to be learnt again."""
        return max(0.0, self._learned + LOOK_EVERY_S - time.monotonic())

    def _look_wait_s(self, began: float, now: float, deadline: float) -> float:
        """The seconds that a call waits for a look that ``began`` then."""
        if now < self._look_at + LOOK_OVERDUE_S:
            return 0.0
        return max(0.0, min(began + LOOK_FIRST_S, deadline) - now)

    def _share_s(self, left: float) -> float:
        """The part of the time left for one question: where one server hangs, the next is asked."""
        return left if self.settings.kind == "single" else left / 2

    @property
    def _just_learned(self) -> bool:
        return time.monotonic() - self._learned <= REFRESH_EVERY_S

    def _correct(self, moved: tuple[int, str] | None) -> None:
        """Notes which node serves a slot, as a MOVED told."""
        if moved is not None and self.map.node(moved[0]) != moved[1]:
            self._adopt(self.map.corrected(*moved))

    def _adopt(self, found: SlotMap) -> None:
        self.map, self._has_map = found, True
        for follower in list(self._followers):
            follower()

    def _error(self, fault: Fault, what: str, timeout: float) -> ShardqError:
        return fault.error(explained(fault, self.settings.safe_url, what, timeout))

    # ---- who serves what

    @property
    def is_cluster(self) -> bool:
        return self.settings.kind == "cluster"

    def node_of(self, slot: int) -> str:
        """The address of the slot's master, as last learnt; empty while no node serves it."""
        return self.map.node(slot) or ""

    def node_id(self, address: str) -> str | None:
        """The id of the cluster's node at an address; empty while none is known, None where there is no cluster."""
        return self.map.ids.get(address, "") if self.is_cluster else None

    def _node_ids(self) -> dict[str, str | None]:
        return {address: self.node_id(address) for address in self.map.nodes}

    def nodes(self) -> list[str]:
        """The addresses of all masters, as last learnt."""
        return list(self.map.nodes)

    def spare(self, given: Spare | None) -> Spare | None:
        """When to give up calls. One server alone is never left for another."""
        return given if len(self.map.nodes) > 1 else None

    @property
    def unserved(self) -> int:
        """The number of slots that no node serves, as last learnt."""
        return self.map.unserved

    def slot_groups(self, slots: Iterable[int]) -> dict[str, list[int]]:
        """The slots, in the order given, by the node that serves them."""
        groups: dict[str, list[int]] = {}
        for slot in slots:
            groups.setdefault(self.node_of(slot), []).append(slot)
        return groups

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings.safe_url!r}, {self.server_version or 'not open'})"
