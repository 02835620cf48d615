"""The mover: takes rows from a store to the servers, by steps that say how long to wait. It knows no SQL and no file.

A step chooses rows, claims them in their store, and sends them. It removes those that are confirmed by then: a row
leaves its store only when the servers' replicas, and their disks, have what it did (``confirming``). Where a mover dies
in between, the next one sends its rows again. The servers carry out each row at most once: they know it by its nonce
for a while after its last send, and refuse it before another may have claimed it. No row is lost, and none is carried
out twice.

Rows of one id are carried out in the order of their numbers. If one of them is not carried out, later ones wait.

A shard that takes nothing costs its rows no tries: a step passes them over, and a probe, the first row of each such
shard, tells when it takes rows again. A row that is refused for itself is left to its store, which keeps it for another
try, or puts it aside with the reason.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from shardq.core.calls.control import clock_ms
from shardq.core.layout.lanes import lane_of
from shardq.core.layout.topology import Stamp, Topology
from shardq.core.layout.words import number_of
from shardq.core.model.checks import now_ms
from shardq.core.producer.packing import BATCH, Packer
from shardq.errors import Conflict, ShardqError
from shardq.relay import sending
from shardq.relay.confirming import TOLD_S, Confirming, Sent
from shardq.relay.row import Numbered, layers
from shardq.relay.sending import FAR, KEYED, Failing, Results, Servers

MOVE_BYTES = 4 << 20  # the bytes of rows that are read, sent and removed together. A larger row goes alone
PAGES = 50  # pages of rows that one step looks through, if it finds none to move
TRIP_S = 5.0  # the bound of a trip: rows for other shards wait so long when a shard falls silent
PROBE_S = 0.5  # the same for probes, in whose time nothing else is moved
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0  # between two probes; each pause is twice as long as the one before

CLOCK_S = 1.0  # between two looks at the clock of the servers
CONFIRM_LOOK_S = 0.05  # between two looks whether a question to the servers is answered
ANSWER_S = 0.005  # a server without replicas and append-only file answers at once: the step waits for that
STEP_S = 15.0  # how long ``confirm`` waits for the servers

PASS_S, PASS_SHARE = 5.0, 10
"""While rows of silent shards are passed over, a step begins past them. So often all are gone through again, for rows
whose transactions were committed late: at most a tenth of the time.
"""

BLOCKED_S = 0.05  # the wait for rows that another mover has claimed


class Head(NamedTuple):
    """A row that waits, as it is chosen: before it is claimed and read."""

    seq: int
    id: str
    created: object  # an instant in ms of the epoch
    size: int


class Store(ABC):
    """Where rows wait. The mover's thread alone uses it, within ``turn``."""

    memory_ms: int
    """How long the servers know a row after its last send."""
    send_s: float | None = None
    """What was claimed so long ago may be carried out no more, as another mover may claim it; None: none may."""
    least_left: float = math.inf
    """The least number of a row that held back one of the last claim."""
    problem: str = ""  # why refused rows can't be put aside

    def __init__(self) -> None:
        self.moved: int = 0
        self.failed: int = 0  # rows that were put aside

    @property
    @abstractmethod
    def batch(self) -> int:
        """The most rows of a page."""

    @abstractmethod
    def turn(self, deadline: float = 0.0) -> AbstractContextManager[bool]:
        """Uses the store. False: another mover is at work, until the deadline."""

    @abstractmethod
    def page(self, after: int) -> Sequence[Head]:
        """The first rows after this number that nobody has claimed, and that were not refused."""

    @abstractmethod
    def claim(self, seqs: Collection[int], memory: str) -> list[Numbered]:
        """Claims rows, and reads those of them that have no earlier row of their id beside them, which nobody sends."""

    def release(self, seqs: Collection[int]) -> None:  # noqa: B027  not every store has claims
        """They wait again."""

    def abandon(self) -> None:  # noqa: B027
        """Gives up the claims without a word: they lapse like those of a mover that has died."""

    @abstractmethod
    def remove(self, seqs: Collection[int]) -> None: ...

    @abstractmethod
    def refused(self, rows: Sequence[tuple[Numbered, ShardqError]]) -> set[int]:
        """Keeps rows for another try, or puts them aside. Returns the numbers of those for which that went well."""

    @abstractmethod
    def present(self, seqs: Collection[int]) -> Collection[int]:
        """Those of the rows that are still here."""

    def look(self) -> tuple[list[int], float]:
        """Looks after claims of others and refused rows. Returns refused ones that are to be tried again now, each in a
        call of its own, and the seconds until the next look.
        """
        return [], math.inf

    def sent(self, until: int) -> int:
        """Is told that no row up to a number waits to be sent, as far as the mover has seen. Returns the number after
        which it has to look for more: others may have stored some before it.
        """
        return 0


class Elsewhere(Protocol):
    """Carries out commands on ids that may not be in Redis."""

    def is_used(self, topology: Topology) -> bool:
        """False if it concerns no id."""

    def concerns(self, topology: Topology, id: str) -> bool: ...

    def carry_out(self, some: Sequence[Numbered], failing: Failing, *, timeout: float) -> Results: ...


class Stuck(NamedTuple):
    """A shard that takes nothing: the first row for it, and why."""

    seq: int
    id: str
    created: object
    error: ShardqError


class Mover:
    """Moves rows of a store to servers, for one thread."""

    def __init__(
        self,
        store: Store,
        packer: Packer,
        servers: Callable[[], Servers],
        log: logging.Logger,
        *,
        timeout: float,
        has_threads: Callable[[], bool] = lambda: True,
        elsewhere: Callable[[Packer, Servers], Elsewhere] | None = None,
    ) -> None:
        """``servers`` are made at their first use. ``has_threads``: false under the clock of a test."""
        self.sent: int = 0
        self.retried: int = 0  # rows that were claimed, and wait again
        self.oldest_s: float = 0.0
        self.stuck: dict[int, Stuck] = {}  # the shards that take nothing
        self.store: Store = store
        self._packer = packer
        self._make_servers = servers
        self._servers: Servers | None = None
        self._log = log
        self._timeout_s = timeout
        self._has_threads = has_threads
        self._make_elsewhere = elsewhere
        self._place: Elsewhere | None = None
        self.confirming: Confirming = self._new_confirming()
        self._ahead_ms: float | None = None  # how far the servers' clock is before this machine's steady one
        self._clock_at = 0.0  # the time of the next look at it
        self._leaving: dict[int, Sent] = {}
        """Confirmed rows. A store that is away gives them up later, and they are not sent again."""
        self._orders: dict[int, str] = {}
        """Cancels and reschedules that were sent elsewhere, where they are not known like in Redis, and their ids:
        later rows of these wait until the row is removed.
        """
        self._epoch = Stamp("0")
        self._sent_until = 0  # no row up to this number waits to be sent, as far as this mover has seen
        self._after = 0  # the rows up to this number were sent, or are passed over
        self._has_passed = False  # true if rows were passed over since all were gone through
        self._pass_began, self._pass_at = 0.0, math.inf
        """When the rows were last gone through from the first one on, and when they are next; infinity meanwhile."""
        self._pause_s = FIRST_PAUSE_S
        self._probe_at = 0.0
        self._look_at = 0.0

    def _new_confirming(self) -> Confirming:
        return Confirming(
            lambda: self._opened().opened(), self._log, memory_ms=self.store.memory_ms, has_threads=self._has_threads
        )

    def _opened(self) -> Servers:
        if self._servers is None:
            # no sooner: a test may put the engine on a server of its own
            self._servers = self._make_servers()
        return self._servers

    # ---- steps

    def step(self, *, within_s: float | None = None) -> float:
        """Moves a batch of rows. Returns the seconds until there may be more to do: 0 for at once, infinity for when
        there are new rows. Raises what keeps it from looking for rows. ``within_s``: the bound of all trips of a layer.
        """
        with self.store.turn() as held:
            if not held:
                return BLOCKED_S
            self._settle(within_s=within_s)
            if self.stuck and time.monotonic() >= self._probe_at:
                self._probe()
            if time.monotonic() >= self._look_at:
                self._look()
            wait = CONFIRM_LOOK_S if self.confirming.is_full else self._scan(within_s)
            if len(self.confirming):
                self._settle(0.0 if self.confirming.is_asking else ANSWER_S, within_s=within_s)
        if len(self.confirming):
            wait = min(wait, CONFIRM_LOOK_S)
        next_at = min(self._look_at, self._probe_at if self.stuck else math.inf)
        return min(wait, max(0.0, next_at - time.monotonic()))

    def run(self, stopping: Callable[[], bool], *, within_s: float | None = None) -> bool:
        """Takes steps while there is something to move, and until it is told to stop. Returns False if some rows can't
        be sent now. ``within_s``: as for a step, and the first shard that fails ends it.
        """
        self.probe_now()
        while not (self.step(within_s=within_s) or stopping() or (within_s is not None and self.stuck)):
            pass
        return not (self.stuck or self.store.problem or self._has_passed or self.confirming.is_full)

    def confirm(self, within_s: float = STEP_S, *, stopping: Callable[[], bool] = lambda: False) -> None:
        """Waits until all that was sent is confirmed and removed, or its shards have not confirmed it twice."""
        if self.confirming.is_settled and not self._leaving:
            return
        until = time.monotonic() + within_s
        with self.store.turn(until) as held:
            while held and time.monotonic() < until and not stopping():
                self._settle(CONFIRM_LOOK_S)
                if self.confirming.is_settled:
                    return

    def probe_now(self) -> None:
        """The next step tries the shards that take nothing."""
        self._probe_at = 0.0

    def close(self) -> None:
        """Closes the connections. What was sent stays so."""
        self.confirming.close()
        if (servers := self._servers) is not None:
            self._servers = self._place = None
            servers.close()

    def forget(self) -> None:
        """Closes, and forgets what was sent and not confirmed: another mover may have it now."""
        self.close()
        self.confirming = self._new_confirming()

    # ---- what it tells

    @property
    def is_used(self) -> bool:
        """True if it has connections."""
        return self._servers is not None

    @property
    def is_waiting(self) -> bool:
        """True while rows were sent that are still in their store."""
        return bool(self._leaving) or len(self.confirming) > 0

    @property
    def reached(self) -> bool:
        """True if some shards may take rows, as far as the last step has seen."""
        return not self.stuck or len(self.stuck.keys() - {KEYED, FAR}) < len(self._topology().span())

    @property
    def problem(self) -> str:
        """The reason why rows wait, or are not confirmed; empty without one."""
        if self.stuck:
            return str(next(iter(self.stuck.values())).error)
        if self.store.problem:
            return self.store.problem
        if self._has_passed and (blocked := self.confirming.blocked):
            return f"shard {', '.join(map(str, sorted(blocked)))}: replicas or disk have not confirmed what was sent"
        return str(self.confirming.late(TOLD_S) or "")

    # ---- rows that were sent

    def _settle(self, wait_s: float = 0.0, *, within_s: float | None = None) -> None:
        """Removes rows that are confirmed, and sends those again that are not."""
        was_blocked = self.confirming.blocked
        self._leaving.update((row.seq, row) for row in self.confirming.advance(wait_s))
        while self._leaving:
            some, size = list[int](), 0
            for row in self._leaving.values():
                size += row.size
                if some and (len(some) == self.store.batch or size > MOVE_BYTES):
                    break
                some.append(row.seq)
            self.store.remove(some)
            for seq in some:
                del self._leaving[seq]
                self._orders.pop(seq, None)
        while again := self.confirming.again(self.store.batch, MOVE_BYTES):
            try:
                self._move(again, timeout=TRIP_S, within_s=within_s)
            finally:
                for seq in again:
                    if self.confirming.is_again(seq):
                        self.confirming.forget(seq)  # it is gone, or another mover has it, or it waits like others
                        self._sent_until = min(self._sent_until, seq - 1)
                        self._pass_at = 0.0
                self.store.sent(self._sent_until)
        if was_blocked - self.confirming.blocked:
            self._begin_pass()

    # ---- choosing rows

    def _scan(self, within_s: float | None) -> float:
        """Moves the first rows that can be moved."""
        closed = self.stuck.keys() | self.confirming.blocked
        if not self.reached:
            return math.inf
        if not closed or time.monotonic() >= self._pass_at:
            self._begin_pass()
        seen: Sequence[Head] = []
        after, held, done = self._after, False, set[int]()
        for _ in range(PAGES):
            page = self.store.page(after)
            seen = seen or page[:1]
            self._note_age(seen)
            chosen, looked_at = self._chosen(page)
            done = self._move(chosen, timeout=TRIP_S, within_s=within_s)
            whole = self._sent_until >= after
            for row in looked_at:
                is_sent = row.seq in done or self._is_sent(row.seq)
                if whole := whole and is_sent:
                    self._sent_until = row.seq
                # What is neither done nor passed over may come back from another mover: it is looked at again.
                held = held or not (is_sent or self._is_stuck(row.id))
                if not held:
                    self._after = row.seq
            after = looked_at[-1].seq if looked_at else after
            ended = len(looked_at) == len(page) < self.store.batch
            if done or ended or (within_s is not None and self.stuck):
                break
        self.store.sent(self._sent_until)
        if ended and self._pass_at == math.inf:
            self._pass_at = time.monotonic() + max(PASS_S, PASS_SHARE * (time.monotonic() - self._pass_began))
        if held:
            return 0.0 if done else BLOCKED_S
        if not ended:
            return 0.0
        return max(0.0, self._pass_at - time.monotonic()) if closed else math.inf

    def _begin_pass(self) -> None:
        """Goes through the rows from the first one on."""
        self._after = self.store.sent(self._sent_until)
        self._has_passed = False
        self._pass_began = time.monotonic()
        self._pass_at = math.inf

    def _chosen(self, page: Sequence[Head]) -> tuple[list[int], list[Head]]:
        """The numbers of rows that are moved together, and the rows that were looked at for that."""
        chosen, looked_at, size = list[int](), list[Head](), 0
        is_any_sent, is_any_stuck = self.is_waiting, bool(self.stuck or self.confirming.blocked)
        for row in page:
            if is_any_sent and self._is_sent(row.seq):
                pass
            elif is_any_stuck and self._is_stuck(row.id):
                self._has_passed = True
                self._note_first(row)
            elif chosen and size + row.size > MOVE_BYTES:
                break
            else:
                chosen.append(row.seq)
                size += row.size
            looked_at.append(row)
        return chosen, looked_at

    def _is_sent(self, seq: int) -> bool:
        return seq in self.confirming or seq in self._leaving

    def _is_stuck(self, id: str) -> bool:
        if not isinstance(id, str) or not (self.stuck or self.confirming.blocked):
            return False
        homes = self._homes(id)
        return any(shard in self.stuck for shard in homes) or self.confirming.blocks(homes)

    def _topology(self) -> Topology:
        topology = self._opened().opened()[1].topology
        if topology.stamp != self._epoch:
            # Ids may be elsewhere now.
            self._epoch = topology.stamp
            self.stuck.clear()
        return topology

    def _homes(self, id: str) -> list[int]:
        """The shards that an id may be in, ``FAR`` if it may be in the far store, and ``KEYED`` if its key may be the
        first.
        """
        topology = self._topology()
        far = (elsewhere := self._elsewhere(topology)) is not None and elsewhere.concerns(topology, id)
        keyed = not topology.is_keyed and lane_of(id) is not None
        return topology.homes(id) + [FAR] * far + [KEYED] * keyed

    def _elsewhere(self, topology: Topology) -> Elsewhere | None:
        """What carries out commands that may not be for Redis; None while all are."""
        if self._make_elsewhere is None:
            return None
        if self._place is None:
            self._place = self._make_elsewhere(self._packer, self._opened())
        return self._place if self._place.is_used(topology) else None

    def _note_first(self, row: Head) -> None:
        for shard in self._homes(row.id):
            known = self.stuck.get(shard)
            if known is not None and row.seq < known.seq:
                self.stuck[shard] = Stuck(row.seq, row.id, row.created, known.error)

    def _note_age(self, rows: Sequence[Head]) -> None:
        created = [row.created for row in rows] + [first.created for first in self.stuck.values()]
        oldest = min(map(number_of, created), default=None)
        self.oldest_s = 0.0 if oldest is None else max(0, now_ms() - oldest) / 1000

    # ---- shards that take nothing, and rows that are refused

    def _probe(self) -> None:
        """Tries the first row of each shard that takes nothing."""
        before, self.stuck, pause_s = self.stuck, {}, self._pause_s
        seqs = sorted({first.seq for first in before.values()})
        try:
            done = self._move(seqs, timeout=max(PROBE_S, pause_s / 5))  # a slow server is one that answers
            present = self.store.present(seqs)
        except BaseException:
            self.stuck = before
            raise
        for shard, first in before.items():
            if shard in self.stuck:
                error = self.stuck[shard].error
                # A probe has little time, and knows less of the cause than the push that failed first.
                self.stuck[shard] = first if type(error) is type(first.error) else first._replace(error=error)
            elif first.seq in present and first.seq not in done:  # another mover has it
                self.stuck[shard] = first
        if len(self.stuck) < len(before):
            self._pause_s = FIRST_PAUSE_S
            self._begin_pass()
        else:
            self._pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self._probe_at = time.monotonic() + self._pause_s

    def _look(self) -> None:
        again, wait_s = self.store.look()
        self._look_at = time.monotonic() + wait_s
        if again and self._move(again, timeout=TRIP_S, most=1):
            self._look_at = 0.0

    # ---- moving rows

    def _move(
        self, seqs: Collection[int], *, timeout: float, most: int = BATCH, within_s: float | None = None
    ) -> set[int]:
        """Moves those of some rows that can be claimed. Returns the numbers of those that are settled: carried out, or
        refused. ``most``: the tasks of one call.
        """
        if not seqs:
            return set()
        memory = self._memory()
        try:
            rows = self.store.claim(seqs, memory)
            if self.store.least_left <= self._after:
                self._pass_at = 0.0  # it was committed after the rows beside it were passed over
            rows = self._in_turn(rows)
            if not rows:
                return set()
            topology = self._topology()
            shards = {row.seq: _homes(topology, row.command.id) for row in rows}
            self.confirming.meet({shard for each in shards.values() for shard in each}, within_s)
            timeout = min(timeout, self._timeout_s)
            result = self._carry_out(rows, most=most, timeout=timeout, within_s=within_s)
            settled = self._note(rows, result)
        except BaseException:
            self.store.abandon()
            raise
        done, after = set(result.done), self._topology()
        if after is not topology:  # either may have it
            shards = {row.seq: (*{*shards[row.seq], *_homes(after, row.command.id)},) for row in rows}
        self.confirming.sent(Sent(row.seq, shards[row.seq], row.command.size) for row in rows if row.seq in done)
        self.sent += len(done)
        return settled

    def _memory(self) -> str:
        """What the servers are told of rows that are claimed now: how long they know them, and an instant after which
        they refuse them; without that where their clock could not be read yet, or no other mover may claim the rows.
        """
        known, send_s = f"-{self.store.memory_ms}", self.store.send_s
        if send_s is None or not self._has_threads():
            return known  # the clock of a test is not that of the server
        began = time.monotonic()
        if began >= self._clock_at:
            driver, cache = self._opened().opened()
            try:
                told = driver.call(clock_ms(cache.control), PROBE_S)
                self._ahead_ms, self._clock_at = told - 1000 * began, began + CLOCK_S
            except ShardqError:  # rows of other nodes go on, by the clock as it was
                self._clock_at = time.monotonic() + CLOCK_S
        return known if self._ahead_ms is None else f"{known}-{int(self._ahead_ms + 1000 * (began + send_s))}"

    def _in_turn(self, rows: list[Numbered]) -> list[Numbered]:
        """Those of the rows that follow no order which was sent elsewhere. The others wait again."""
        topology = self._topology()
        if (elsewhere := self._elsewhere(topology)) is None:
            return rows
        seqs = {row.seq for row in rows}
        ended = {id for seq, id in self._orders.items() if seq not in seqs}
        chosen, left = list[Numbered](), list[int]()
        for row in rows:
            id, kind = row.command.id, row.command.kind
            if id in ended:
                left.append(row.seq)
                continue
            chosen.append(row)
            if kind != "push" and isinstance(id, str) and elsewhere.concerns(topology, id):
                ended.add(id)
                self._orders[row.seq] = id
        if left:
            self.store.release(left)
        return chosen

    def _carry_out(
        self, rows: Sequence[Numbered], *, most: int, timeout: float, within_s: float | None = None
    ) -> Results:
        failing = Failing({shard: stuck.error for shard, stuck in self.stuck.items()})
        result = Results()
        faults = {row.seq: fault for row in rows if (fault := row.command.fault) is not None}
        result.failed += faults.items()
        waiting = {row.command.id for row in rows if row.seq in faults}
        """Ids of which a row was not carried out."""
        for layer in layers(row for row in rows if row.seq not in faults):
            left = [row for row in layer if row.command.id not in waiting]
            near, far, topology = left, list[Numbered](), self._topology()
            if (elsewhere := self._elsewhere(topology)) is not None:
                far = [row for row in left if elsewhere.concerns(topology, row.command.id)]
                near = [row for row in left if not elsewhere.concerns(topology, row.command.id)]
            found = self._opened().run(
                lambda cache, near=near: sending.send(cache, self._packer, near, failing, most=most),  # type: ignore[misc]
                timeout=timeout,
                deadline=None if within_s is None else time.monotonic() + within_s,
            )
            if elsewhere is not None and far:
                more = elsewhere.carry_out(far, failing, timeout=timeout)
                found = Results(found.done + more.done, found.failed + more.failed)
            if late := {seq for seq, error in found.failed if isinstance(error, Conflict) and error.state == "late"}:
                found.failed = [each for each in found.failed if each[0] not in late]
                self._clock_at = 0.0
            done = {*found.done, *(seq for seq, error in found.failed if isinstance(error, Conflict))}
            waiting.update(row.command.id for row in left if row.seq not in done)
            result.done += found.done
            result.failed += found.failed
            if within_s is not None and failing.errors:
                break
        self._note_stuck(rows, failing, result)
        return result

    def _note_stuck(self, rows: Sequence[Numbered], failing: Failing, result: Results) -> None:
        """Notes the first row of each shard that takes nothing from now on."""
        if not (new := failing.errors.keys() - self.stuck.keys()):
            return
        if not self.stuck:
            self._pause_s = FIRST_PAUSE_S
            self._probe_at = time.monotonic() + FIRST_PAUSE_S
            self._pass_began, self._pass_at = time.monotonic(), math.inf
        settled = {*result.done, *(seq for seq, _ in result.failed)}
        for row in rows:
            if row.seq not in settled:
                for shard in new.intersection(self._homes(row.command.id)):
                    self.stuck.setdefault(shard, Stuck(row.seq, row.command.id, row.created, failing.errors[shard]))

    def _note(self, rows: Sequence[Numbered], result: Results) -> set[int]:
        """Writes what became of rows. Returns the numbers of those that were sent or refused."""
        settled = set(result.done)
        if result.failed:
            by_seq = {row.seq: row for row in rows}
            settled |= self.store.refused([(by_seq[seq], error) for seq, error in result.failed])
            self._look_at = 0.0
        if left := [row.seq for row in rows if row.seq not in settled]:
            self.retried += len(left)
            self.store.release(left)
        for seq in self._orders.keys() & {*left, *(seq for seq, _ in result.failed)}:
            del self._orders[seq]
        return settled


def _homes(topology: Topology, id: object) -> tuple[int, ...]:
    """The shards that may have what a row did."""
    return tuple(topology.homes(id)) if isinstance(id, str) else ()
