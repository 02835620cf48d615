"""Looks at the masters, and sends again what a new master lacks. One thread for each engine with ``replay=``.

While there are notes it looks twice a second, and whenever the slot map was learnt or a poller has connected. A call
that fails leaves its notes where they are: the next look begins again. What is sent again is noted like any call, so a
second failover finds it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from shardq.core.calls import by_id, control, node_info
from shardq.core.calls.node_info import Lineage
from shardq.core.calls.request import Command, Word
from shardq.core.drivers.faults import Fault
from shardq.core.drivers.sync import Driver
from shardq.core.model.task import Outcome
from shardq.core.operation import Operation, run, succeeded, values
from shardq.core.producer import commands_by_id as commands
from shardq.core.producer import pushing
from shardq.core.producer.packing import UNIQUE, Entries, Packer
from shardq.core.threads import Loop
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import Make
from shardq.errors import AccessDenied, EngineClosed, ShardqError
from shardq.features.replay.journal import Journal, Note, ReplayStats
from shardq.features.replay.plan import NOTHING_KNOWN, Loss, Master, Plan, latest_task, loss, plan

log: logging.Logger = logging.getLogger("shardq.replay")

MODE = 3  # the conflict rule among the words of a task

LOOK_S = 0.5
"""The time between two looks: after a failover, what was acknowledged up to this long before the last replicated write
is sent again though it is there.
"""

ASK_TIMEOUT_S = 1.0

HOLD_S = 5.0  # pollers of this process wait for cancels to be replayed for this long at most: mostly some milliseconds
CLOSE_S = 2.0  # close() waits for a replay under way for this long
COMMANDS = 500  # commands by id sent together

UNTOLD = Lineage(is_master=True, history="", offset=0, earlier="", earlier_length=-1, replicas=0)
"""The lineage of a server that may not be asked: only the slot map tells of a failover then."""


class Replayer:
    """The thread that watches the masters for one engine."""

    def __init__(self, driver: Driver, cache: TopologyCache, journal: Journal, packer: Packer) -> None:
        self._driver = driver
        self._cache = cache
        self._journal = journal
        self._packer = packer
        self._masters: dict[str, Master] = {}
        self._looked: dict[str, float] = {}  # node → when it was asked last, with all that it lacked replayed
        self._denied = False
        self._replays = self._replayed = self._cancelled = self._late = 0
        self._begun: set[str] = set()  # nodes whose replay failed half-way
        self._replaying = False  # true while notes are out of the journal
        self._loop = Loop(
            "shardq-replay",
            self._step,
            log,
            fails="a replay failed, trying again",
            works="replays work again",
            failed=lambda exc: isinstance(exc, EngineClosed),
            longest_pause_s=LOOK_S,
        )
        self._unfollow: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._journal.filled = self._loop.wake
        self._unfollow = self._driver.on_new_map(self._map_learnt)
        self._driver.is_held = self._is_held
        self._loop.start()

    def stop(self) -> None:
        """Ends the thread. A replay under way is waited for, for a moment."""
        self._unfollow()
        self._loop.stop()
        self._loop.join(CLOSE_S)

    def stats(self) -> ReplayStats:
        journal = self._journal
        return ReplayStats(
            replays=self._replays,
            replayed=self._replayed,
            cancelled=self._cancelled,
            late=self._late,
            calls=len(journal),
            bytes=journal.bytes,
            dropped=journal.dropped,
            reach=journal.reach,
        )

    def _map_learnt(self) -> None:
        """Looks again, unless it was a look that has learnt the map: while a master is away, each look does."""
        if threading.current_thread() is not self._loop.thread:
            self._loop.wake()

    def _is_held(self, node: str, since: float) -> bool:
        """True while a poller that connected to the node at that time has to wait for what is to be replayed there."""
        nothing = not len(self._journal) and not self._replaying
        if nothing or self._looked.get(node, 0.0) > since or time.monotonic() - since > HOLD_S:
            return False
        self._loop.wake()
        return not self._loop.stopping.is_set()

    def _step(self) -> float | None:
        self.look()
        if len(self._journal):
            return LOOK_S
        # Nothing can be lost; what happens meanwhile need not be known.
        self._masters.clear()
        return None

    # ---- looking

    def look(self) -> None:
        """Looks at every master of our shards, and replays what those that took over lack."""
        asked = time.monotonic()
        nodes = {self._driver.node_of(keys.slot) for keys in self._cache.span()}
        serving: dict[str, Lineage] = {}
        for node in sorted(filter(None, nodes)):
            lineage = self._asked(node)
            if lineage is not None and lineage.is_master:
                serving[node] = lineage
            else:
                self._doubt(node)
        opened = self._opened(serving)
        noted = self._journal.nodes()
        # A node of ours that does not answer may come back, or be replaced: its notes wait.
        told = [node for node in noted if node in serving or node not in nodes]
        losses = list(filter(None, [loss(node, self._masters.get(node), serving, opened) for node in told]))
        lost_nodes = {lost.node for lost in losses}
        for node, lineage in serving.items():
            if node not in lost_nodes:
                self._seen(node, asked, lineage, opened)
        for lost in losses:
            if lost.successor or self._is_gone(lost.node, serving, nodes):
                self._replay(lost, asked)
                self._masters.pop(lost.node, None)
        for node in serving:
            self._looked[node] = asked
        if nodes != {self._driver.node_of(keys.slot) for keys in self._cache.span()}:
            self._loop.wake()  # another master serves them by now
        for node in self._masters.keys() - serving.keys() - set(noted):
            del self._masters[node]

    def _opened(self, serving: Mapping[str, Lineage]) -> dict[int, str]:
        """The words with which shards were opened: of the first shard of each node, as FLUSHALL empties a node as a
        whole; and of the shard by which a node is known, wherever that is served now.
        """
        first = {self._node(keys.shard): keys.shard for keys in reversed(self._cache.span())}
        known = {master.opened[0] for master in self._masters.values() if master.opened}
        shards = [shard for shard in known.union(first.values()) if self._node(shard) in serving]
        reads = {shard: control.read_opened(self._cache.keys(shard)) for shard in shards}.items()
        answers = self._driver.call_all(reads, timeout=ASK_TIMEOUT_S)
        return succeeded(answers)

    def _node(self, shard: int) -> str:
        return self._driver.node_of(self._cache.keys(shard).slot)

    def _asked(self, node: str) -> Lineage | None:
        answer = self._driver.ask(node, node_info.lineage(), ASK_TIMEOUT_S)
        if not isinstance(answer, Fault):
            return answer
        if answer.error is not AccessDenied:
            return None
        if not self._denied:
            self._denied = True
            log.warning(
                "%s: INFO is not allowed, so a replay after a failover sends all that is remembered, and a restart is "
                "not noticed; allow the user INFO",
                node,
            )
        return UNTOLD

    def _doubt(self, node: str) -> None:
        """Learns the slot map: a master may have been replaced."""
        try:
            self._driver.refresh(node)
        except EngineClosed:
            raise
        except ShardqError:
            pass  # no node tells now

    def _seen(self, node: str, asked: float, lineage: Lineage, opened: Mapping[int, str]) -> None:
        master = self._masters.get(node)
        if master is None or master.history != lineage.history:
            master = self._masters[node] = Master(lineage.history)
        shard = next((shard for shard in sorted(opened) if self._node(shard) == node), None)
        master.opened = None if shard is None else (shard, opened[shard])
        master.seen(asked, lineage, keep_s=self._journal.seconds)
        self._journal.prune(node, asked - self._journal.seconds)

    def _is_gone(self, node: str, serving: Mapping[str, Lineage], nodes: set[str]) -> bool:
        """True if a node that serves none of our shards any more has lost its role. Where its slots were only moved
        away nothing is lost, and its notes are removed. While some master does not answer, its successor is not known.
        """
        if nodes - serving.keys():
            return False
        master, lineage = self._masters.get(node), self._asked(node)
        if lineage is None or not lineage.is_master or master is None or lineage.history != master.history:
            return True
        self._journal.take(node)
        return False

    # ---- replaying

    def _replay(self, lost: Loss, asked: float) -> None:
        self._replaying = True
        notes = taken = self._journal.take(lost.node)
        try:
            cut = self._found(lost, taken) if lost.cut == NOTHING_KNOWN else lost.cut
            notes = [note for note in taken if note.at >= cut and self._went_to(lost, note)]
            if not notes:
                return
            self._begun.add(lost.node)
            made = plan(notes, self._journal.since(notes[0].at, {note.slot for note in notes}), time.monotonic())
            cancelled, late = self._cancel(made)
            self._move(made)
            self._looked[lost.successor] = asked
            stored = sum(self._push(kept, overriding) for kept, overriding in made.pushes())
        except BaseException:
            self._journal.put_back(lost.node, notes)
            raise
        finally:
            self._replaying = False
        self._begun.discard(lost.node)
        self._replays += 1
        log.warning(
            "%s: the %d calls of the %.1f s before were asked for again: %d tasks were missing and are stored again, "
            "%d cancels were lost and are carried out again%s",
            lost,
            len(notes),
            notes[-1].at - notes[0].at,
            stored,
            cancelled,
            f", and {late} were too late for that" if late else "",
        )

    def _found(self, lost: Loss, notes: list[Note]) -> float:
        """The time before which nothing is lost, by what is still there: servers lose their last writes, and no others.
        Looks for tasks of ever earlier calls.

        Only calls that the server acknowledged before it was lost can tell, and only before anything is sent again.
        """
        master = self._masters.get(lost.node)
        if master is None or lost.node in self._begun:
            return NOTHING_KNOWN
        pushes = [note for note in notes if note.script == "push" and note.at <= master.last_seen]
        back = 1
        while back <= len(pushes):
            note = pushes[-back]
            key, id = latest_task(note)
            if self._driver.call(Command(note.slot, ("HEXISTS", key, id), bool)):
                return note.sent
            back *= 2
        return NOTHING_KNOWN

    def _went_to(self, lost: Loss, note: Note) -> bool:
        """True unless the slot of a call was moved to yet another node before its own was lost."""
        return not lost.successor or self._driver.node_of(note.slot) == lost.successor

    def _cancel(self, made: Plan) -> tuple[int, int]:
        """Cancels again. Returns the number of cancels that were lost, and of those that came too late."""
        cancelled = late = 0
        for at in range(0, len(made.cancels), COMMANDS):
            outcomes = self._by_id(
                {id: partial(commands.cancelling, self._cache, id) for id in made.cancels[at : at + COMMANDS]}
            )
            cancelled += outcomes.count(Outcome.CANCELLED)
            late += outcomes.count(Outcome.RUNNING)
        self._cancelled += cancelled
        self._late += late
        return cancelled, late

    def _move(self, made: Plan) -> None:
        moves = list(made.moves.items())
        for at in range(0, len(moves), COMMANDS):
            self._by_id({id: partial(by_id.reschedule, id=id, due=due) for id, due in moves[at : at + COMMANDS]})

    def _by_id(self, makes: Mapping[str, Make[Outcome]]) -> list[Outcome]:
        """Sends a command for each of these ids. Raises the first error."""
        return list(values(run(self._driver, commands.call_each(self._cache, makes)).items()).values())

    def _push(self, kept: list[Word], overriding: list[Word]) -> int:
        """Pushes what is missing, and puts what overrides another task in its place. Returns the number of both."""
        words = [*kept, *overriding]
        words[len(kept) + MODE :: UNIQUE] = ["keep"] * (len(overriding) // UNIQUE)
        answers = run(self._driver, self._pushing(words))
        stored = sum(said.count("pushed") for said in answers.values())
        left: list[Word] = []
        for at in range(0, len(overriding), UNIQUE):
            if any(answer.startswith("kept:") for answer in answers[str(overriding[at])]):
                left += overriding[at : at + UNIQUE]
        if left:
            # As after a lost answer: a task of the same push is left as it is.
            answers = run(self._driver, self._pushing(left, in_doubt=True))
            stored += sum(said.count("replaced") for said in answers.values())
        self._replayed += stored
        return stored

    def _pushing(self, words: list[Word], *, in_doubt: bool = False) -> Operation[dict[str, list[str]]]:
        ids: list[str] = words[::UNIQUE]  # type: ignore[assignment]  # the first word of each task is its id
        results = pushing.PushResults(ids)
        entries = Entries(ids, [], words)
        yield from pushing.complete(self._cache, self._packer, results, entries, in_doubt=in_doubt)
        results.receipts()  # raises what failed
        return {id: [each for each in said if isinstance(each, str)] for id, said in results.outcomes().items()}
