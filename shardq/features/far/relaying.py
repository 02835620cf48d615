"""Carries out a relay's commands on ids that may be in the table of its engine.

A push of an id of the caller's own looks in the table, then in Redis, and is then carried out where it belongs, in the
order of the outbox: a near one in Redis, as by any relay, and a far one by a row. No lock is held meanwhile. A row is
added only where the table has none under the id, and only in place of what was read there; and it is carried out once:
a row of the outbox is remembered in the table for as long as Redis would remember it, whatever becomes of its task.

The table does not remember cancels and reschedules. Nothing is carried out there so long after its claim that another
relay may have done it, and later rows of its id after that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from shardq.core.drivers.sync import Driver
from shardq.core.layout.topology import Topology
from shardq.core.model.checks import OnConflict
from shardq.core.model.ids import pushed_at
from shardq.core.model.record import has_head, nonce_of, undecoded
from shardq.core.producer.packing import Packer
from shardq.core.producer.pushing import PushResults, complete
from shardq.core.topology_cache import TopologyCache
from shardq.errors import Conflict, MissingLink, ServerFault, ShardqError, Unavailable
from shardq.features.far.far import Far
from shardq.features.far.rows import LINK, Row, is_made, tags_text
from shardq.features.far.store import Found as FarRow
from shardq.features.far.storing_sync import Declare, FarStore
from shardq.relay.chain_sync import TaskStore
from shardq.relay.row import Numbered, entries_of
from shardq.relay.sending import FAR, Failing, Results, is_refusal, met, send

LOOK_S, LOOK_AGAIN_S = 0.5, 30.0
"""The bound of the first look at the table's clock, while rows for Redis wait, and the pause after one that failed."""

OURS_S = (1_577_836_800, 2_208_988_800)
"""The years 2020 to 2040: an id of which a time in between can be read was made here."""

Fates = dict[int, ShardqError | None]
"""The number of a command that was carried out → its error."""


class RelayedRedis(TaskStore):
    """The first link of a relay's chain: Redis, by the relay's connections."""

    def __init__(self, packer: Packer, timeout: float, opened: Callable[[], tuple[Driver, TopologyCache]]) -> None:
        self.packer: Packer = packer
        self.timeout: float = timeout
        self._opened = opened

    def opened(self, deadline: float) -> Driver:
        return self._opened()[0]

    def cache(self) -> TopologyCache:
        return self._opened()[1]

    def check(self, id: str) -> None:
        """The relay has asked before."""


class _Push:
    """The push of a row of an outbox, as the table would have it."""

    def __init__(self, numbered: Numbered, now_ms: int) -> None:
        self.seq, command = numbered.seq, numbered.command
        self.numbered = numbered
        self.rule: OnConflict = command.on_conflict
        memory = int(command.memory.split("-")[1])
        tags = tags_text(undecoded(command.record).content.tags) if has_head(command.record) else None
        self.row = Row(
            command.id,
            command.due,
            tags,
            command.record,
            until=now_ms + command.dedup if command.dedup else 0,
            known=now_ms + memory,
            nonce=nonce_of(command.record) or 0,
            rule="replace" if command.on_conflict == "replace" else "keep",
        )

    def said_by(self, there: FarRow, now_ms: float) -> ShardqError | Literal["done", "ask"]:
        """What the table says of it: it is done, or refused; or else Redis has to be asked, or a row replaced."""
        row = there.row
        if row.nonce == self.row.nonce and (not there.is_gone or row.known > now_ms):
            return "done"  # an earlier send
        return "ask" if there.is_gone or not there.is_far or self.rule == "replace" else self._kept_out("scheduled")

    def seen_by(self, there: FarRow | None, now_ms: float) -> ShardqError | Literal["done", "free"]:
        """What the table says of it where Redis has no task of the id: it is free, or its window is still open."""
        is_open = there is not None and there.is_gone and there.row.until > now_ms and self.rule != "replace"
        return self._kept_out("seen") if is_open else "free"

    def _kept_out(self, state: str) -> ShardqError | Literal["done"]:
        return "done" if self.rule == "keep" else Conflict(self.row.id, state)


class FoldingStore(FarStore):
    """The table and Redis, for the commands of an outbox."""

    _look_at = 0.0

    def after(self, seconds: float) -> int:
        """The instant so many seconds from now, by the table's clock; 0 while that is not known."""
        if not self._far.is_ours and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_AGAIN_S
            with suppress(ShardqError):  # what is for the table meets it again
                self._ready(time.monotonic() + LOOK_S)
        return self._far.store.after(seconds) if self._far.is_ours else 0

    def fold(self, rows: Sequence[Numbered], latest: int, deadline: float) -> Fates:
        """Carries out pushes of different ids, none of them after ``latest``. Returns what became of each."""
        said: Fates = {}
        if not rows:
            return said
        try:
            self._ready(deadline)
            now_ms = int(self._far.store.now_ms)
            left = [_Push(each, now_ms) for each in rows]
            while left := [push for push in left if push.seq not in said]:
                if time.monotonic() > deadline:
                    raise Unavailable(f"the far store {self._far.store.where} is slow, or others change the same ids")
                self._fold_once(left, said, latest, deadline)
        except ShardqError as exc:
            said = {each.seq: said[each.seq] if each.seq in said else met(exc) for each in rows}
        return said

    def _fold_once(self, left: Sequence[_Push], said: Fates, latest: int, deadline: float) -> None:
        """One try, which ends without an answer where others change the same ids."""
        store = self._far.store
        if latest < store.now_ms:
            said.update((push.seq, Conflict(push.row.id, "late")) for push in left)  # it is claimed anew
            return
        found = {each.row.id: each for each in store.find([push.row.id for push in left], deadline)}
        now_ms, near, looked = store.now_ms, list[_Push](), list[_Push]()
        there: dict[str, _Push] = {}
        """Those whose rows are replaced, or moved first."""
        for push in left:
            known = found.get(push.row.id)
            answer = "ask" if known is None else push.said_by(known, now_ms)
            if answer != "ask":
                said[push.seq] = None if answer == "done" else answer
            elif known is not None and not known.is_gone:
                there[push.row.id] = push
            elif store.is_far(push.row.due) or push.seen_by(known, now_ms) != "free":
                looked.append(push)
            else:
                near.append(push)
        # those whose rows are near are moved first: Redis then says what becomes of the push
        first = [id for id in there if not found[id].is_far]
        for row, error in self._moved_settled(first, deadline) if first else ():
            said[there[row.id].seq] = error
        self._replaced([there[id] for id in there if found[id].is_far], found, said, latest, deadline)
        far = list[_Push]()
        for push in self._looked(looked, said, deadline):
            if (seen := push.seen_by(found.get(push.row.id), now_ms)) != "free":
                said[push.seq] = None if seen == "done" else seen
            else:
                (far if store.is_far(push.row.due) else near).append(push)
        self._sent([push.numbered for push in near], said, deadline)
        self._added(far, found, said, latest, deadline)

    def _sent(self, near: Sequence[Numbered], said: Fates, deadline: float) -> None:
        """Carries out in Redis what is not for the table."""
        if not near:
            return
        failing = Failing()
        result = self.run(lambda cache: send(cache, self.packer, near, failing), deadline)
        said.update(dict.fromkeys(result.done))
        said.update(result.failed)
        for each in near:
            if each.seq not in said:
                homes = [FAR, *self.cache().topology.homes(each.command.id)]
                errors = [failing.errors[shard] for shard in homes if shard in failing.errors]
                said[each.seq] = errors[0] if errors else next(iter(failing.errors.values()))

    def _looked(self, pushes: Sequence[_Push], said: Fates, deadline: float) -> list[_Push]:
        """Asks Redis, which may have the ids. Returns the pushes of those that are nowhere."""
        if not pushes:
            return []
        entries = entries_of(push.numbered.command for push in pushes)
        results = PushResults(entries.ids)
        self.run(lambda cache: complete(cache, self.packer, results, entries, in_doubt=True, way="look"), deadline)
        free = []
        for push, (_, answer) in zip(pushes, results.each(), strict=True):
            if answer == "elsewhere":
                free.append(push)
            else:
                said[push.seq] = met(answer)
        return free

    def _added(
        self, pushes: Sequence[_Push], found: Mapping[str, FarRow], said: Fates, latest: int, deadline: float
    ) -> None:
        """Adds rows, in the place of those that are gone."""
        if not pushes:
            return
        rows = [(push.row, _nonce(found.get(push.row.id)), latest) for push in pushes]
        for push, done in zip(pushes, self._far.store.add(rows, deadline), strict=True):
            if done:
                said[push.seq] = None
        self.packer.pushed += sum(push.seq in said for push in pushes)

    def _replaced(
        self, pushes: Sequence[_Push], found: Mapping[str, FarRow], said: Fates, latest: int, deadline: float
    ) -> None:
        """Puts pushes in the place of far rows. What is near by that is moved."""
        if not pushes:
            return
        store = self._far.store
        rows = []
        for push in pushes:
            there = found[push.row.id]
            rows.append((push.row._replace(until=max(there.row.until, push.row.until)), _nonce(there), latest))
        for push, done in zip(pushes, store.replace(rows, deadline), strict=True):
            if done:
                said[push.seq] = None
        if near := [push.row.id for push in pushes if push.seq in said and not store.is_far(push.row.due)]:
            with suppress(ShardqError):  # committed as near: what fails here is done by a loader
                self._moved_settled(near, deadline)

    def order_all(self, rows: Sequence[Numbered], latest: int, deadline: float) -> Fates:
        """Carries out cancels and reschedules of different ids, none of them after ``latest``: in the table where the
        task is far, else in Redis, which remembers them. Returns what became of each.
        """
        said: Fates = {}
        near = list[Numbered]()
        try:
            for each in rows:
                self._ready(deadline)
                id, due_ms = each.command.id, each.command.due or int(self._far.store.now_ms) + 1
                verb: Literal["cancel", "reschedule"] = "cancel" if each.command.kind == "cancel" else "reschedule"
                try:
                    if self._in_table(verb, id, due_ms, deadline, latest) == "done":
                        said[each.seq] = None
                    else:
                        near.append(each)
                except ShardqError as exc:
                    said[each.seq] = met(exc)
            self._sent(near, said, deadline)
        except ShardqError as exc:
            said = {each.seq: said[each.seq] if each.seq in said else met(exc) for each in rows}
        return said


def _nonce(there: FarRow | None) -> int:
    """The nonce of a row, which tells whether it is still the same; -1 without one, or without a row."""
    return -1 if there is None or there.row.nonce is None else there.row.nonce


class FarRelaying:
    """The table as one relay sees it, with or without ``far=``."""

    def __init__(self, far: Far | None, redis: RelayedRedis, declare: Declare) -> None:
        self._redis = redis
        self._store = None if far is None else FoldingStore(redis, far, declare)

    def is_used(self, topology: Topology) -> bool:
        """True if ids may be in the table."""
        return self._store is not None or LINK in topology.links

    def concerns(self, topology: Topology, id: str) -> bool:
        """True for an id that may be in the table, which is used: one that was made for a row, or by the caller. One
        that looks as if it was made here, for a near task, is Redis' alone.
        """
        return is_made(id) or not OURS_S[0] < (pushed_at(id) or 0) < OURS_S[1]

    def after(self, seconds: float) -> int:
        """The instant so many seconds from now, by the table's clock; 0 while that is not known."""
        return 0 if self._store is None else self._store.after(seconds)

    def carry_out(self, some: Sequence[Numbered], failing: Failing, *, timeout: float, latest: int) -> Results:
        """Carries out commands on different ids, all of which may be in the table. ``failing`` is given the shards that
        take nothing, ``FAR`` too.
        """
        deadline = time.monotonic() + timeout
        cache, result = self._redis.cache(), Results()
        open = [each for each in some if not failing.concerns(cache, each.command.id) and FAR not in failing.errors]
        if self._store is None:
            if open:
                failing.errors[FAR] = MissingLink(LINK, open[0].command.id)
            return result
        errors = self._store.fold([each for each in open if each.command.kind == "push"], latest, deadline)
        errors |= self._store.order_all([each for each in open if each.command.kind != "push"], latest, deadline)
        for each in open:
            error = errors[each.seq]
            # An error of Redis is about a shard, and has its node; every other one about the table.
            if error is None or is_refusal(error) or (isinstance(error, ServerFault) and error.node):
                failing.judge(cache, each, error, result)
            else:
                failing.errors[FAR] = error
        return result
