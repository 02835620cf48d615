"""Logs nodes that fail: one line for a node, however many shards it has, and one when it is over.

Pollers and the heartbeat tell of each failure and of its end; an outage lasts from the first of them to the last.
The subscriber, the migrator and the forwarder ask if the log has a fault already. A driver has one ``Outages``.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field

from shardq.errors import AccessDenied, OutOfMemory, ReadOnly, ServerFault, TooManyOpenFiles, Unanswered, Unavailable

log: logging.Logger = logging.getLogger("shardq.outages")

# Errors that hit every shard of a node alike. Any other error is about what was asked.
_OF_A_NODE = (Unavailable, Unanswered, ReadOnly, OutOfMemory, AccessDenied)

OURS = "this process"  # named in place of a node where none is to blame


@dataclass(slots=True)
class _Outage:
    began: float  # the time of the first call that failed
    waiting: set[int | str] = field(default_factory=set)  # those that were hit and have not recovered
    shards: int = 0  # the number of shards among them that are dispatched again
    answered: bool = False  # true if one of them has recovered, even if it is no shard


def _blamed(node: str, exc: BaseException) -> str:
    return OURS if isinstance(exc, TooManyOpenFiles) else node


class Outages:
    """The outages of all nodes. ``who`` is the number of a shard, or the name of something else that goes on trying.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outages: dict[str, _Outage] = {}
        self._hit_by: dict[int | str, str] = {}  # who was hit → the node whose outage it waits out

    def failed(self, who: int | str, exc: BaseException) -> bool:
        """Notes what ``who`` has met. True if the log says it of the whole node; if not, the caller must say it."""
        if not isinstance(exc, ServerFault) or not isinstance(exc, _OF_A_NODE) or not exc.node:
            self.over(who)  # the node answers
            return False
        with self._lock:
            node = self._hit_by.setdefault(who, _blamed(exc.node, exc))
            outage = self._outages.get(node)
            begins = outage is None
            if outage is None:
                outage = self._outages[node] = _Outage(time.monotonic() - exc.tried_s)
            outage.waiting.add(who)
        if begins:
            its = "some of its shards" if node == OURS else "its shards"
            fields = {"node": node, "error": type(exc).__name__}
            log.error("%s fails, %s are not dispatched meanwhile, trying again: %s", node, its, exc, extra=fields)
        return True

    def over(self, who: int | str) -> None:
        """Notes that ``who`` has recovered. The last one ends the outage."""
        self._gone(who, well=True)

    def left(self, who: int | str) -> None:
        """Notes that ``who`` stops without having recovered: another process goes on."""
        self._gone(who, well=False)

    def covers(self, exc: BaseException, node: str = "") -> bool:
        """True if the log says already why this happened at the node, by default the one that the error names."""
        return isinstance(exc, ServerFault) and _blamed(node or exc.node, exc) in self._outages

    def _gone(self, who: int | str, *, well: bool) -> None:
        with self._lock:
            node = self._hit_by.pop(who, None)
            if node is None:
                return
            outage = self._outages[node]
            outage.waiting.discard(who)
            outage.shards += well and isinstance(who, int)
            outage.answered |= well
            if outage.waiting:
                return
            del self._outages[node]
        if outage.answered:
            lasted = time.monotonic() - outage.began
            shards = {0: "", 1: ", 1 shard is dispatched again"}.get(
                outage.shards, f", {outage.shards} shards are dispatched again"
            )
            fields = {"node": node, "seconds": lasted}
            log.warning("%s: the outage is over after %.1f s%s", node, lasted, shards, extra=fields)

    def __repr__(self) -> str:
        return f"Outages({', '.join(sorted(self._outages)) or 'none'})"
