"""Has what consumers of an engine for threads claim ahead given back: when it is held for too long, and at the end.

A program may take longer over its last deliveries than over those before: other consumers get what it has not taken.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from typing import Protocol

from shardq.core.consumer.ahead import STALE_S
from shardq.core.consumer.claiming import GIVE_BACK_S
from shardq.errors import ShardqError

log = logging.getLogger("shardq.consumer")


class Holder(Protocol):
    watched: bool
    """True while the watch looks at it again and again."""

    def release_stale(self, now_s: float) -> bool:
        """Gives back what is stale at that time. Returns True if something is held still."""


class AheadWatch:
    """The watch of one engine. Its thread begins with the first claim ahead, and sleeps while nothing is held."""

    def __init__(self) -> None:
        # A queue of this kind can be put into by the handler of a signal, which may call ``close()`` of a consumer.
        self._news: queue.SimpleQueue[Holder | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def note(self, holder: Holder) -> None:
        """Watches a consumer that holds something from now on."""
        if holder.watched:
            return
        holder.watched = True
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="shardq-ahead", daemon=True)
                self._thread.start()
        self.look_at(holder)

    def look_at(self, holder: Holder) -> None:
        """Has a consumer looked at now. May be called by the handler of a signal."""
        self._news.put(holder)

    def close(self) -> None:
        """Gives everything back; what a dead server is not told of in time comes back when its lease runs out."""
        self._news.put(None)
        if self._thread is not None:
            self._thread.join(GIVE_BACK_S)

    def _run(self) -> None:
        holders: set[Holder] = set()
        due = 0.0
        while True:
            try:
                holder = self._news.get(timeout=max(0.0, due - time.monotonic()) if holders else None)
            except queue.Empty:
                pass
            else:
                if holder is None:
                    _look(holders, holders, math.inf)
                    return
                holders.add(holder)
                _look(holders, {holder}, time.monotonic())
            now = time.monotonic()
            if now >= due:
                _look(holders, holders, now)
                due = now + STALE_S / 2


def _look(holders: set[Holder], some: set[Holder], now_s: float) -> None:
    """Has some of the holders give back what is stale, and forgets those that hold nothing."""
    for holder in list(some):
        # Before the look: what it claims after that is noted anew.
        holder.watched = False
        try:
            holder.watched = holder.release_stale(now_s)
        except ShardqError as exc:
            log.debug("what was claimed ahead could not be given back: %s", exc)
        if not holder.watched:
            holders.discard(holder)
