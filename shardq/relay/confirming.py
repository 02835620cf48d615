"""The rows that were sent and are not confirmed. The relay of an outbox and the drain of a spool have one each.

A row waits in its store, is *sent* when a server has answered, and is *confirmed* when the replicas of its shard have
what it did, and the disk where the server has an append-only file. Only then it leaves its store.

One question stands for all rows of a chunk. It begins after their answers, so it covers what they did; the one before
it was answered before they were sent, and if both tell the same history of the server, no failover and no restart lies
between. Rows that are sent while a question is under way wait for the next one. If a shard does not confirm, all its
rows here are sent once more, which is harmless: each is carried out at most once. From then on the shard is asked in
pauses, takes no other rows, and gets these again when it answers, or before it forgets that it had them.

Not thread-safe: one thread moves rows. Questions have a thread of their own, as the disk may take two seconds.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import msgspec

from shardq.core.calls import node_info
from shardq.core.calls.request import Call, Epoch
from shardq.core.layout.keys import ShardKeys
from shardq.core.operation import Carrier, Operation, run
from shardq.core.replicas import ReplicaBarrier
from shardq.core.threads import begun
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import call_shards
from shardq.errors import AccessDenied, ShardqError, Unavailable

CHUNK_ROWS, CHUNK_BYTES = 50_000, 16 << 20
"""The most that one question stands for. As many rows more are sent while it is under way, and then none."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0  # between two questions to a shard that does not confirm

QUESTION_S = 5.0  # the bound of the question before the first row of a shard, and of each write before others
TOLD_S = 10.0  # a shard that has not confirmed for so long is told. A failover takes less


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A row that a server has answered."""

    seq: int
    shards: tuple[int, ...]
    """All that may have what it did."""
    size: int


@dataclass(slots=True)
class _Behind:
    """A shard that did not confirm what was sent."""

    since: float
    asks_at: float
    pause_s: float
    resends_at: float
    """When its rows are sent once more, although it does not confirm."""
    asked: int = 1  # how often in a row it did not confirm


Opened = Callable[[], tuple[Carrier, TopologyCache]]


class Confirming:
    """The rows that were sent and are not confirmed, of one store."""

    def __init__(
        self, opened: Opened, log: logging.Logger, *, memory_ms: int, has_threads: Callable[[], bool] = lambda: True
    ) -> None:
        """``opened``: the connections to the servers. ``memory_ms``: how long these know a row after its last send.
        ``has_threads``: false under the clock of a test, which may come later.
        """
        self.denied: str = ""
        """Why the servers can't be asked: rows count as confirmed when they are sent."""
        self._opened = opened
        self._log = log
        self._resend_s = memory_ms / 3000
        self._has_threads = has_threads
        self._barrier: tuple[TopologyCache, ReplicaBarrier] | None = None
        self._open: dict[int, Sent] = {}
        """Sent since the last question began."""
        self._open_bytes = 0
        self._asked: dict[int, Sent] = {}
        """The question under way stands for these."""
        self._again: dict[int, Sent] = {}
        """To be sent once more."""
        self._shards_again = Counter[int]()
        self._behind: dict[int, _Behind] = {}
        self._question: Future[set[int]] | None = None
        self._asking: set[int] = set()

    def __len__(self) -> int:
        return len(self._open) + len(self._asked) + len(self._again)

    def __contains__(self, seq: int) -> bool:
        return seq in self._open or seq in self._asked or seq in self._again

    @property
    def is_full(self) -> bool:
        """True while no more rows may be sent: a question is under way, and a chunk was sent since."""
        return len(self._open) >= CHUNK_ROWS or self._open_bytes >= CHUNK_BYTES

    @property
    def is_asking(self) -> bool:
        """True while a question is under way."""
        return self._question is not None

    @property
    def is_settled(self) -> bool:
        """True if waiting changes nothing for a while: all rows here are of shards that did not confirm twice."""
        return not self._open and not self._asked and all(
            any(shard in self._behind and self._behind[shard].asked > 1 for shard in row.shards)
            for row in self._again.values()
        )  # fmt: skip

    def blocks(self, shards: Iterable[int]) -> bool:
        """True if one of the shards takes no other rows now."""
        return bool(self._behind or self._again) and any(
            shard in self._behind or shard in self._shards_again for shard in shards
        )

    @property
    def blocked(self) -> set[int]:
        """The shards that take no other rows now."""
        return {*self._behind, *self._shards_again} if self._behind or self._again else set()

    def late(self, for_s: float = 0.0, *, but: Collection[int] = ()) -> ShardqError | None:
        """The reason why rows that were sent stay, if shards have failed to confirm twice, and for so long. ``but``:
        shards of which another error is told.
        """
        until = time.monotonic() - for_s
        late = {
            shard: behind.since
            for shard, behind in self._behind.items()
            if behind.asked > 1 and behind.since <= until and shard not in but
        }
        if not late:
            return None
        named = ", ".join(map(str, sorted(late)))
        return Unavailable(
            f"shard{'s' * (len(late) > 1)} {named}: for {time.monotonic() - min(late.values()):,.0f} s no answer that "
            f"replicas and disk have what was sent, and {len(self):,} rows stay until they do: see that replicas are "
            "connected and keep up (`shardq stats`)"
        )

    # ---- sending

    def meet(self, shards: Collection[int], within_s: float | None = None) -> None:
        """Asks shards that were never asked, before rows are sent there. A shard that does not answer now, or for which
        there is no time, as another question is under way, gets its first rows twice.
        """
        if self._question is not None:
            return
        driver, barrier, cache = self._connected()
        if new := [shard for shard in shards if not barrier.knows(shard) and shard not in self._behind]:
            try:
                run(driver, barrier.behind(map(cache.keys, new)), deadline=time.monotonic() + (within_s or QUESTION_S))
            except AccessDenied as exc:
                self._deny(exc)
            except ShardqError:
                pass  # the rows tell

    def sent(self, rows: Iterable[Sent]) -> None:
        """Notes rows that a server has answered."""
        for row in rows:
            if self._again or row.seq in self._open:
                self.forget(row.seq)
            self._open[row.seq] = row
            self._open_bytes += row.size

    def forget(self, seq: int) -> None:
        """A row waits again: it could not be sent once more."""
        if (row := self._again.pop(seq, None)) is not None:
            self._shards_again.subtract(row.shards)
            self._shards_again += Counter()  # without those that have none
        elif (row := self._open.pop(seq, None)) is not None:
            self._open_bytes -= row.size

    def is_again(self, seq: int) -> bool:
        """True for a row that is to be sent once more."""
        return seq in self._again

    def again(self, most: int, bytes: int) -> list[int]:
        """The first rows that are to be sent once more now, in their order. Each is given to ``sent`` or ``forget``."""
        if not self._again:
            return []
        now, chosen, size = time.monotonic(), list[int](), 0
        waits = {shard for shard, behind in self._behind.items() if now < behind.resends_at}
        for row in sorted(self._again.values(), key=attrgetter("seq")):
            if not waits.isdisjoint(row.shards):
                continue
            size += row.size
            if len(chosen) == most or (chosen and size > bytes):
                return chosen
            chosen.append(row.seq)
        for shard, behind in self._behind.items():  # these are the last ones
            if shard not in waits:
                behind.resends_at = now + self._resend_s
        return chosen

    # ---- asking

    def advance(self, wait_s: float = 0.0) -> list[Sent]:
        """Begins a question if there is something to ask, and reads the answer if it is there, or comes within
        ``wait_s``. Returns the rows that are confirmed: they may leave their store.
        """
        if self._question is None and not self._begin():
            return []
        assert self._question is not None, "it has begun"
        if not self._question.done():
            wait([self._question], wait_s)
            if not self._question.done():
                return []
        question, self._question = self._question, None
        try:
            behind = question.result()
            self.denied = ""
        except AccessDenied as exc:
            self._deny(exc)
            behind = set()
        except ShardqError:
            behind = self._asking
        except BaseException:
            self._ask_again()
            raise
        return self._answered(behind)

    def close(self) -> None:
        """Waits for the end of a question under way, and gives it up: the next one stands for its rows, too."""
        if self._question is not None:
            wait([self._question], QUESTION_S)
            self._question = None
            self._ask_again()

    def _connected(self) -> tuple[Carrier, ReplicaBarrier, TopologyCache]:
        driver, cache = self._opened()
        if self._barrier is None or self._barrier[0] is not cache:
            # what was sent over earlier connections is confirmed by no question over these, and goes again
            self._barrier = cache, ReplicaBarrier(cache)
        return driver, self._barrier[1], cache

    def _ask_again(self) -> None:
        """The rows of a question without an answer wait for the next one."""
        self._open, self._asked = self._asked | self._open, {}
        self._open_bytes = sum(row.size for row in self._open.values())

    def _begin(self) -> bool:
        now = time.monotonic()
        shards = {shard for row in self._open.values() for shard in row.shards}
        shards |= {shard for shard, behind in self._behind.items() if now >= behind.asks_at}
        if not shards:
            return False
        self._asked, self._open, self._open_bytes = self._open, {}, 0
        self._asking = shards
        try:
            driver, barrier, cache = self._connected()
            question = _asked(cache, barrier, sorted(shards), sorted(shards & self._behind.keys()))
            if self._has_threads():
                self._question = begun(partial(run, driver, question, QUESTION_S), "shardq-confirm")
            else:
                self._question = _known(run(driver, question, QUESTION_S))
        except ShardqError as exc:
            self._question = _known(exc)
        return True

    def _answered(self, behind: set[int]) -> list[Sent]:
        now = time.monotonic()
        for shard in self._asking:
            if shard not in behind:
                self._behind.pop(shard, None)
            elif (known := self._behind.get(shard)) is None:
                self._behind[shard] = _Behind(now, now, FIRST_PAUSE_S, now)
            else:
                known.asked += 1
                known.asks_at = now + known.pause_s
                known.pause_s = min(2 * known.pause_s, LONGEST_PAUSE_S)
        asked, self._asked = self._asked, {}
        if not behind:
            return list(asked.values())
        confirmed = [row for row in asked.values() if behind.isdisjoint(row.shards)]
        back = [row for row in (*asked.values(), *self._open.values()) if not behind.isdisjoint(row.shards)]
        for row in back:
            self.forget(row.seq)
            self._again[row.seq] = row
            self._shards_again.update(row.shards)
        return confirmed

    def _deny(self, error: AccessDenied) -> None:
        if not self.denied:
            self._log.error("rows leave as soon as a server has answered, and a failover may lose tasks: %s", error)
        self.denied = str(error)


def _asked(
    cache: TopologyCache, barrier: ReplicaBarrier, shards: Sequence[int], behind: Sequence[int]
) -> Operation[set[int]]:
    """Asks shards. Those that were behind are written to first: a question to a node that is no master any more is
    answered by no other, and what would find the new one waits for the answer.
    """
    if behind:
        yield from call_shards(cache, {shard: (cache.keys(shard), _seal) for shard in behind})
    return (yield from barrier.behind([cache.keys(shard) for shard in shards], disk=True))


def _seal(keys: ShardKeys, epoch: Epoch) -> Call[None]:
    return node_info.seal(keys.meta, keys.slot, epoch)


def _known(answer: set[int] | ShardqError) -> Future[set[int]]:
    """An answer that is there already."""
    question: Future[set[int]] = Future()
    if isinstance(answer, ShardqError):
        question.set_exception(answer)
    else:
        question.set_result(answer)
    return question
