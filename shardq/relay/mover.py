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
from collections.abc import Callable, Collection, Sequence

from shardq.core.layout.words import number_of
from shardq.core.model.checks import now_ms
from shardq.core.producer.packing import BATCH, Packer
from shardq.relay.claiming import Claiming
from shardq.relay.confirming import TOLD_S, Confirming, Sent
from shardq.relay.sending import Servers
from shardq.relay.store import Head, Store
from shardq.relay.stuck import Elsewhere, Stuck, StuckShards
from shardq.relay.witness import OlderDatabase, Witness

MOVE_BYTES = 4 << 20  # the bytes of rows that are read, sent and removed together. A larger row goes alone
PAGES = 50  # pages of rows that one step looks through, if it finds none to move
TRIP_S = 5.0  # the bound of a trip: rows for other shards wait so long when a shard falls silent
PROBE_S = 0.5  # the same for probes, in whose time nothing else is moved
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0  # between two probes; each pause is twice as long as the one before

CONFIRM_LOOK_S = 0.05  # between two looks whether a question to the servers is answered
ANSWER_S = 0.005  # a server without replicas and append-only file answers at once: the step waits for that
STEP_S = 15.0  # how long ``confirm`` waits for the servers

PASS_S, PASS_SHARE = 5.0, 10
"""While rows of silent shards are passed over, a step begins past them. So often all are gone through again, for rows
whose transactions were committed late: at most a tenth of the time.
"""

BLOCKED_S = 0.05  # the wait for rows that another mover has claimed


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
        witness: Witness | None = None,
    ) -> None:
        """``servers`` are made at their first use. ``has_threads``: false under the clock of a test. ``witness``: of a
        store that may be restored from an earlier state.
        """
        self.oldest_s: float = 0.0
        self.store: Store = store
        self._make_servers = servers
        self._servers: Servers | None = None
        self._log = log
        self._has_threads = has_threads
        self._witness = witness
        self.confirming: Confirming = self._new_confirming()
        self._stuck = StuckShards(self._opened, packer, elsewhere)
        self.claiming: Claiming = Claiming(
            store,
            packer,
            self._opened,
            self._stuck,
            lambda shards, within_s: self.confirming.meet(shards, within_s),
            timeout=timeout,
            witness=self._watching,
            is_timed=has_threads,
        )
        self._leaving: dict[int, Sent] = {}
        """Confirmed rows. A store that is away gives them up later, and they are not sent again."""
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
            self._beat()
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

    def _watching(self) -> Witness | None:
        return self._witness if self._has_threads() else None  # the clock of a test is not that of the server

    def _beat(self, *, probes: bool = False) -> None:
        """Writes a beat, if it is time for one, or before shards are probed, as they may have come back older."""
        if (witness := self._watching()) is None or not (probes or witness.is_due):
            return
        try:
            self.confirming.sent(witness.beat(self._opened(), self.confirming.meet))
        except OlderDatabase:
            self.store.abandon()  # rows that came back with a claim of this mover are not among those that it has sent
            raise

    def last_beat(self) -> None:
        """Notes that rows were moved until now, before the mover ends: a database that lacks it shows then."""
        if self.sent and (witness := self._watching()) is not None:
            with self.store.turn() as held:
                if held:
                    witness.beat(self._opened())

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
            self._servers = None
            self._stuck.close()
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
    def unconfirmed(self) -> int:
        """The rows that were sent, and are not confirmed."""
        beats = self._witness.rows if self._witness is not None else ()
        return len(self.confirming) - sum(beat.seq in self.confirming for beat in beats)

    @property
    def sent(self) -> int:
        """The rows that were sent."""
        return self.claiming.sent

    @property
    def stuck(self) -> dict[int, Stuck]:
        """The shards that take nothing."""
        return self._stuck.first

    @property
    def reached(self) -> bool:
        """True if some shards may take rows, as far as the last step has seen."""
        return self._stuck.reached

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
        confirmed = self.confirming.advance(wait_s)
        if (witness := self._watching()) is not None:
            witness.has_confirmed(confirmed)
        self._leaving.update((row.seq, row) for row in confirmed if row.seq > 0)
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
                self.claiming.orders.pop(seq, None)
        while again := self.confirming.again(self.store.batch, MOVE_BYTES):
            try:
                self._move(again, timeout=TRIP_S, within_s=within_s)
            finally:
                for seq in again:
                    if self.confirming.is_again(seq):
                        self.confirming.forget(seq)  # it is gone, or another mover has it, or it waits like others
                        if seq > 0:  # not a beat
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
                self._stuck.note_first(row)
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
        return self._stuck.concern(id) or self.confirming.blocks(self._stuck.homes(id))

    def _note_age(self, rows: Sequence[Head]) -> None:
        created = [row.created for row in rows] + [first.created for first in self.stuck.values()]
        oldest = min(map(number_of, created), default=None)
        self.oldest_s = 0.0 if oldest is None else max(0, now_ms() - oldest) / 1000

    # ---- shards that take nothing, and rows that are refused

    def _probe(self) -> None:
        """Tries the first row of each shard that takes nothing."""
        before, pause_s = self._stuck.first, self._pause_s
        self._stuck.first = {}
        seqs = sorted({first.seq for first in before.values()})
        try:
            self._beat(probes=True)
            done = self._move(seqs, timeout=max(PROBE_S, pause_s / 5))  # a slow server is one that answers
            present = self.store.present(seqs)
        except BaseException:
            self._stuck.first = before
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

    def _move(
        self, seqs: Collection[int], *, timeout: float, most: int = BATCH, within_s: float | None = None
    ) -> set[int]:
        """Moves those of some rows that can be claimed. Returns the numbers of those that are settled: carried out, or
        refused.
        """
        if not seqs:
            return set()
        were_stuck = bool(self.stuck)
        try:
            moved = self.claiming.move(seqs, timeout=timeout, most=most, within_s=within_s)
        finally:
            if self.store.least_left <= self._after:
                self._pass_at = 0.0  # it was committed after the rows beside it were passed over
            if self.stuck and not were_stuck:
                self._pause_s = FIRST_PAUSE_S
                self._pass_began = time.monotonic()
                self._probe_at, self._pass_at = self._pass_began + FIRST_PAUSE_S, math.inf
        self.confirming.sent(moved.sent)
        if len(moved.settled) > len(moved.sent):  # some were refused
            self._look_at = 0.0
        return moved.settled
