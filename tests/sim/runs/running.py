"""One run: the processes and servers of its plan, what is done to them, its end, and the verdict."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, NamedTuple, cast

from shardq import Engine
from shardq.core.dispatcher import Dispatcher
from shardq.core.layout.keys import ShardKeys, shard_keys
from shardq.core.model.record import decode_record
from shardq.core.scripts import Script, script
from shardq.engine.access import EngineAccess
from shardq.errors import ShardqError
from shardq.worker.report import ALIVE_S
from tests.judge.history import Book
from tests.judge.verdict import FAR_US, Facts, Loss, Verdict, verdict_on
from tests.judge.witness import Witness, number_of, seeded
from tests.judge.workload import SCHEDULES, TOPICS, Place, Scale, WentWrong
from tests.judge.workload import Program as Workload
from tests.lua.contract import NAMES
from tests.sim.invariants import FAR, Shard, Violation, check_ends, check_lanes, check_once
from tests.sim.model.server import Denials, Failure
from tests.sim.runs.faulting import Faulting
from tests.sim.runs.plan import FLEETS, NAME, Plan, Program
from tests.sim.runs.punctuality import CUT_OFF_MS, PLACES, Fleet, Punctuality
from tests.sim.world.hub import START_US, Hub, Process, Stuck, Thread
from tests.sim.world.network import Link, Network
from tests.sim.world.nodes import Node
from tests.sim.world.patches import simulated
from tests.sim.world.servers import Servers

MOST_SHARDS = 8

KEYS = ("k", "j", "i")
KEYED_IDS = ("mail/k/a", "mail/k/b", "/j/a")
"""Where tasks have keys."""
TIMEOUT_S = 10.0

MOST_NUMBERS = 1_000_000
"""Payloads of one process are apart by this."""

REFUSALS = frozenset((b"OOM", b"READONLY", b"ERR ACL", b"NOPERM", b"LOADING"))
"""How errors begin that a node may answer while it is made to."""

MOVED = {"put": slice(3, None, 2), "take": slice(4, None), "remember": slice(4, None, 2), "forget": slice(3, None, 2)}
"""By script, where the words are that name ids."""

SAVE_S = 2.0
"""Seconds between two snapshots of a server."""

LOOK_ROUND_S = 0.5
"""Seconds between two looks at what waits."""

BEFORE_S = 3.0
"""How long another engine was there before ours: what is as new may have taken our engine's place."""

LONG = (0.0, 0.3, 2.0, 10.0, 30.0)
"""Delays where servers forget: some tasks wait on from before a snapshot until after the fault."""

ENDING = frozenset(("tail", "snapshot", "wipe", "kill", "lose power", "kill node", "promote", "split"))
"""Faults after which what a process was about to tidy up may stay."""

REST_S = 60.0
"""The longest time, after all faults and the last retry that is due then, until everything is handled."""

WELL_S = ALIVE_S + 5.0
"""And then until the engine calls itself healthy: what a worker reported, before it was killed, counts for so long."""


class Executed(NamedTuple):
    """One run of a script."""

    script: str
    node: str
    now_us: int
    """By the node's clock."""
    keys: Sequence[bytes]
    words: Sequence[bytes]
    answer: Any

    def __str__(self) -> str:
        shard = self.keys[0].partition(b"}")[0].rpartition(b":")[2].decode() if self.keys else ""
        return f"{self.script} {shard} ({self.node}): {_text(self.words[2:])} → {_text(self.answer)}"


def _text(answer: Any) -> str:
    if isinstance(answer, Failure):
        return answer.text.decode()
    if isinstance(answer, bytes):
        return answer.decode() if answer.isascii() and answer.decode().isprintable() else repr(answer)[2:-1]
    return " ".join(map(_text, answer)) if isinstance(answer, list | tuple) else str(answer)


@dataclass
class Told:
    """What a run came to."""

    plan: Plan
    requests: int = 0
    seconds: float = 0.0
    """Of its own time."""
    story: list[tuple[int, str, str | Executed]] = field(default_factory=list)
    """When, in µs, who, and what."""
    reached: Counter[str] = field(default_factory=Counter)
    refusals: set[bytes] = field(default_factory=lambda: set(REFUSALS))
    violation: str = ""
    verdict: Verdict | None = None


class Run:
    def __init__(self, plan: Plan, instead: Mapping[str, Script] | None = None) -> None:
        self.plan = plan
        self.told = Told(plan)
        self.facts = Facts(shard_counts={plan.shards}, clock_us=START_US, owing=plan.disk is not None)
        self.hub = Hub(plan.seed)
        self.net = Network(self.hub, plan.seed)
        self.net.lost = self._lost
        self.servers = Servers(
            self.hub,
            self.net,
            plan.seed,
            nodes=plan.nodes,
            is_cluster=plan.is_cluster,
            replicated=plan.replicated,
            executed=self._executed,
            scripts=_scripts(),
            instead=instead or {},
            kind=plan.server,
            disk=plan.disk,
            save_s=0.0 if plan.disk is None else SAVE_S,
        )
        self.processes: dict[str, Process] = {}
        self.books: list[Book] = []
        self.is_over = False
        self.told_to_end: set[Process] = set()
        self._programs: dict[str, Program] = {}
        self._mains: list[Thread] = []
        self._administrators: list[Thread] = []
        self._lives: Counter[str] = Counter()
        self._rung: set[int] = set()
        self._shards: dict[bytes, ShardKeys] = {
            keys.meta.encode(): keys for keys in (shard_keys(NAME, shard, True) for shard in range(MOST_SHARDS))
        }
        self._faulting = Faulting(self)
        self._dispatchers: list[Dispatcher] = []
        self._punctuality = self._new_punctuality()
        self.fleet = Fleet()
        """The workers that there are."""
        self.another: Node | None = None
        """A server with another engine of the same name."""
        self._of_another: object = None
        """What is stored there."""

    def _new_punctuality(self) -> Punctuality | None:
        """None: with these faults anything may be late, as where a run was cut down to one without dispatchers."""
        kinds, faults = {program.kind for program in self.plan.programs}, self.plan.faults
        if "dispatch" not in kinds:
            return None
        if not faults:
            return Punctuality(self.books, is_open="administer" not in kinds)
        if {fault.kind for fault in faults} <= set(FLEETS):
            return Punctuality(self.books, is_open=False)
        if len(faults) == 1 and faults[0].kind == "part" and kinds <= {"dispatch", "produce"}:
            return Punctuality(self.books, is_open=False, late_ms=CUT_OFF_MS)
        return None

    # ---- from the beginning to the end

    def carry_out(self) -> Told:
        told = self.told
        with _logged(self._logged), simulated(self.hub, self.net, self.plan.seed, clashing=self.plan.clashing):
            try:
                self._carry_out()
            except (Violation, Stuck) as exc:
                told.violation = f"{type(exc).__name__.lower()}: {exc}"
            told.seconds = self.hub.now_us / 1e6
        return told

    def _carry_out(self) -> None:
        plan, hub = self.plan, self.hub
        if any(fault.kind == "elsewhere" for fault in plan.faults):
            self._begin_another()
        for program in plan.programs:
            self.start(program)
        for fault in plan.faults:
            hub.at(fault.at_s * 1e6, partial(self._faulting.comes, fault))
        if self._has_fleet:
            self._look_round()
        hub.run(lambda: hub.now_us >= plan.seconds * 1e6, most_us=plan.seconds * 2e6)
        self.tell("run", "all faults are over, and programs come to their ends")
        self.is_over = True
        self._faulting.heal()
        self._run_until(
            lambda: not any(thread.is_alive() for thread in self._mains), 3 * max(TIMEOUT_S, self.plan.timeout)
        )
        closing, rest_s = Process("closing"), REST_S + self._until_retries_s()
        thread = hub.spawn(closing, partial(self._close, closing, rest_s))
        self._run_until(lambda: not thread.is_alive(), rest_s + WELL_S + 4 * TIMEOUT_S)
        self._raise_failures([thread])
        self._judge()

    # ---- another engine

    def _begin_another(self) -> None:
        """An engine of the same name, with other tasks of the same ids, and nobody who serves it."""
        self.another = node = self.servers.add()

        def begin() -> None:
            with Engine(f"redis://{node.name}", name=NAME, shards=self.plan.shards + 1, protocol=2) as engine:
                for id in ("a", "b", "c"):
                    engine.push(-1, id=id)

        thread = self.hub.spawn(Process("another"), begin)
        self._run_until(lambda: not thread.is_alive() and self.hub.now_us > BEFORE_S * 1e6, TIMEOUT_S)
        self._raise_failures([thread])
        self._of_another = node.space.dump()

    def lead(self, home: Node, to: Node) -> None:
        """The address of a server leads to another one from now on, or home; then dispatchers have work again."""
        self.net.peers[home.where] = to
        self.net.cut(lambda link: link.peer.name != to.name)
        self._punctuality = Punctuality(self.books, is_open=False, late_ms=CUT_OFF_MS) if to is home else None
        self.check_another("somebody")

    def check_another(self, who: str) -> None:
        if self.another is not None and self.another.space.dump() != self._of_another:
            raise Violation(f"{who} writes to another engine")

    @property
    def _has_fleet(self) -> bool:
        return any(fault.kind in FLEETS for fault in self.plan.faults)

    def _look_round(self) -> None:
        """Asks again and again whether a task waits although a worker has nothing to do: nobody else may look there."""
        if not self.is_over:
            for shard in self._all_shards():
                self._look_at_fleet(shard)
            self.hub.after(LOOK_ROUND_S * 1e6, self._look_round)

    def _look_at_fleet(self, shard: Shard) -> None:
        self.fleet.look(shard, TOPICS, now_ms=self.hub.now_us / 1000)

    def _run_until(self, until: Any, seconds: float) -> None:
        try:
            self.hub.run(until, most_us=seconds * 1e6)
        finally:
            self._raise_failures(self._mains)

    def _raise_failures(self, threads: Sequence[Thread]) -> None:
        for thread in threads:
            if thread.failure is not None:
                if isinstance(thread.failure, Violation):
                    raise thread.failure
                trace = "".join(traceback.format_exception(thread.failure))
                raise Violation(f"{thread} ended with {trace}")

    def _judge(self) -> None:
        twice = frozenset(self.facts.unguarded)
        if self.plan.replay and self.plan.faults:
            # what was pushed before a failover, or a restart, may be pushed again when it is done
            self.facts.unguarded |= {id for book in self.books for call in book.calls for id, _ in call.ops}
        final: dict[str, tuple[str, int]] = {}
        shards = self._all_shards()
        if not self.facts.unguarded:
            check_once(shards)
        # a dispatcher that has ended can't try again
        are_removed = not any(dispatcher._mover.ended for dispatcher in self._dispatchers)
        are_removed &= not any(fault.kind in ENDING for fault in self.plan.faults)
        for shard in shards:
            self._check(shard.keys, None)
            now_ms = self.servers.owners[shard.keys.slot].now_us() / 1000
            shard.check_at_rest(is_used=shard.keys.shard < self._final_shards, now_ms=now_ms, twice=twice)
            if are_removed:
                shard.check_marks()
            dead = shard.scores(shard.keys.dead)
            for id, record in shard.fields(shard.keys.task).items():
                final[id.decode()] = (
                    "dead" if id in dead else "scheduled",
                    number_of(decode_record(record, own=None).payload),
                )
        at_us = self.hub.now_us + 1
        calls = [call for book in self.books for call in book.calls]
        verdict = self.told.verdict = verdict_on(calls, self.facts, final, at_us)
        self.told.reached.update(verdict.outcomes)
        if verdict.violations:
            raise Violation("\n\n".join(verdict.violations[:3]))

    # ---- processes

    def start(self, program: Program, shards: int | None = None) -> None:
        """Starts a process of a program; also again, after its death. ``shards``: other than those of the plan."""
        self.facts.shard_counts |= {shards} if shards else set()
        self._programs[program.name] = program
        self._lives[program.name] += 1
        life = self._lives[program.name]
        process = Process(f"{program.name}.{life}")
        self.processes[program.name] = process
        self._mains.append(self.hub.spawn(process, partial(self._live, program, process, life, shards)))
        if program.kind == "administer":
            self._administrators.append(self._mains[-1])

    def program_of(self, process: Process) -> Program:
        return self._programs[process.name.rpartition(".")[0]]

    def engine(self, timeout: float | None = None, shards: int | None = None) -> Engine:
        """``timeout``, ``shards``: other than those of the plan."""
        seconds = timeout or self.plan.timeout
        engine = Engine(
            self.servers.url,
            name=NAME,
            shards=shards or self.plan.shards,
            protocol=2,
            timeout=seconds,
            connect_timeout=seconds,
            replay=self.plan.replay,
        )
        if self.plan.keeps_ends:
            # the engine is made with it
            cast(dict[str, float], EngineAccess(engine).options.given)["done_age"] = 3600.0
        return engine

    def _witness(self, process: Process, engine: Engine, timeout: float | None = None) -> Witness:
        book = Book()
        self.books.append(book)
        first = len(self.books) * MOST_NUMBERS
        seconds = timeout or self.plan.timeout
        return Witness(engine, book, process.name, first, seconds, now_us=lambda: float(self.hub.now_us + 0))

    def _live(self, program: Program, process: Process, life: int, shards: int | None) -> None:
        draw = seeded(self.plan.seed, program.name, life)
        engine = self.engine(shards=shards)
        witness = self._witness(process, engine)
        workload = Workload(witness, Place(time.sleep, lambda: self.is_over), draw, _scale(self.plan))
        while not self.is_over:
            if witness.does("open", engine.open):
                break
            time.sleep(0.2)
        try:
            if program.kind == "dispatch":
                self._dispatch(witness)
            elif program.kind == "work":
                self._work(workload, process)
            elif program.kind == "consume":
                workload.consume()
            elif program.kind == "leave":
                self._leave(workload, process)
            else:
                getattr(workload, program.kind)(program.calls)
        except ShardqError as exc:
            raise Violation(f"{process.name} met {type(exc).__name__}: {exc}") from exc
        finally:
            if not process.is_dead:
                engine.close()

    def _is_left(self, closing: threading.Event) -> bool:
        return self.is_over or closing.is_set()

    def _leave(self, workload: Workload, process: Process) -> None:
        """Again and again it closes its engine while another of its threads uses it."""
        while not self.is_over:
            witness, closing = workload.witness, threading.Event()
            workload.place = Place(time.sleep, partial(self._is_left, closing))
            thread = Thread(target=partial(workload.produce, 20), name="producer")
            thread.start()
            time.sleep(workload.draw.random() * 4)
            closing.set()  # of each call that nothing is heard of, much is possible
            witness.engine.close()
            thread.join()
            if thread.failure is not None:
                raise thread.failure
            engine = self.engine()
            workload.witness = self._witness(process, engine)
            while not self.is_over and not workload.witness.does("open", engine.open):
                time.sleep(0.2)
        workload.witness.engine.close()

    def _dispatch(self, witness: Witness) -> None:
        while not self.is_over:
            if witness.does("start", witness.engine.start):
                break
            time.sleep(0.2)
        # An administrator with a short timeout can't complete a change alone, if that waits for a disk.
        while not self.is_over or any(thread.is_alive() for thread in self._administrators):
            time.sleep(0.5)
        if witness.engine._running.dispatcher is not None:
            self._dispatchers.append(witness.engine._running.dispatcher)

    def _is_to_end(self, process: Process) -> bool:
        return self.is_over or process in self.told_to_end

    def _work(self, workload: Workload, process: Process) -> None:
        while not self._is_to_end(process):
            worker = workload.work(PLACES)
            run = partial(workload.witness.runs, worker)
            thread = Thread(target=run, name="worker")
            thread.start()
            self.fleet.begins(process, workload.running)
            while not self._is_to_end(process) and thread.is_alive():
                time.sleep(0.3)
            self.fleet.ends(process)
            workload.stopping()
            worker.stop()
            thread.join()
            if thread.failure is not None and not isinstance(thread.failure, ShardqError):
                raise thread.failure
            time.sleep(0.3)

    def _close(self, process: Process, rest_s: float) -> None:
        """Without faults everything comes to rest, and is handled."""
        engine = self.engine(TIMEOUT_S)
        witness = self._witness(process, engine, TIMEOUT_S)
        engine.start()
        for topic in TOPICS:
            witness.does("resume", engine.resume, topic)
        witness.does("limit", engine.limit, "mail", None)
        for name in SCHEDULES:
            witness.does(f"remove {name}", engine.schedule(name).remove)
        consumer = witness.consumer(*TOPICS, lease=5.0)
        until, stats = self.hub.now_us + rest_s * 1e6, None
        while self.hub.now_us < until:
            deliveries = consumer.claim(100, wait=0.5)
            if deliveries:
                consumer.settle("ack", deliveries)
                continue
            stats = engine.stats()
            progress = engine.resize(dry_run=True).progress()
            scheduled = stats.scheduled - self._held_for_ever()
            if not (stats.missing or scheduled or stats.ready or stats.leased) and progress.done:
                break
        else:
            raise Violation(f"it does not come to rest: {stats}")
        until = self.hub.now_us + WELL_S * 1e6
        while wrong := [reason for reason in engine.health(max_dead=10**6).reasons if "clock" not in reason]:
            if self.hub.now_us > until:
                raise Violation(f"all is handled, and it is not healthy: {wrong}")
            time.sleep(1.0)
        self._final_shards = engine.topology.shards
        engine.close()

    def _until_retries_s(self) -> float:
        """How long the last task waits for its next attempt: one that was killed with its workers again and again waits
        for minutes.
        """
        left_s = [0.0]
        for shard in self._all_shards():
            attempted, now_ms = shard.fields(shard.keys.lease), self.servers.owners[shard.keys.slot].now_us() / 1000
            left_s += [(at % FAR - now_ms) / 1000 for id, at in shard.scores(shard.keys.due).items() if id in attempted]
        return max(left_s)

    def _held_for_ever(self) -> int:
        """Occurrences that were held back, and whose cancel a server has lost."""
        if not self.facts.setbacks:
            return 0
        dues = [due for shard in self._all_shards() for due in shard.scores(shard.keys.due).values()]
        return sum(due % FAR * 1000 > START_US + FAR_US / 2 for due in dues)

    # ---- what happens meanwhile

    def tell(self, who: str, what: str) -> None:
        self.told.story.append((self.hub.now_us, who, what))

    def _lost(self, process: str) -> None:
        self.facts.losses.append(Loss(self.hub.now_us, self.hub.now_us, process))

    def _logged(self, record: logging.LogRecord) -> None:
        """What the product logs. An error that it does not know is a violation."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, ShardqError | WentWrong):
            trace = "".join(traceback.format_exception(error))
            self._faulting.unexpected.append(f"{self.hub.current} logged {record.getMessage()}: {trace}")
        self.tell(self.hub.current.process.name, f"logs: {record.getMessage()}")

    def _executed(
        self, node: Node, link: Link, script: Script, keys: Sequence[bytes], words: Sequence[bytes], answer: Any
    ) -> None:
        told = self.told
        told.requests += 1
        self._faulting.ran(script.name, node, link.process)
        told.story.append(
            (self.hub.now_us, link.process.name, Executed(script.name, node.name, node.now_us(), keys, words, answer))
        )
        if isinstance(answer, Failure):
            told.reached[f"{script.name} refused"] += 1
            if not answer.text.startswith(tuple(told.refusals)):
                raise Violation(f"{script.name} answers an error: {answer.text.decode()}, line {answer.line}")
        else:
            told.reached[f"{script.name} {answer[0].decode()}"] += 1
        if self._faulting.unexpected:
            raise Violation(self._faulting.unexpected[0])
        shard = self._shards.get(keys[0])
        if shard is not None and self.servers.owners[shard.slot] is node:
            bell = shard.bell.encode()
            # A poller that is refused for its epoch looks again, and out of memory nobody writes how long it sleeps.
            is_ok = isinstance(answer, list) and answer[0] == b"ok" and not node.server.denials.full
            if script.name == "dispatch" and is_ok:
                self._rung.discard(shard.shard)
            if any(channel == bell for channel, _ in node.space.messages):
                self._rung.add(shard.shard)
            if script.name == "open" and words[2] == b"1":
                self._rung.discard(shard.shard)
            self._check(shard, node)
            if is_ok and node.server.denials == Denials():
                check_ends(self._shard(shard, node), script.name, words, answer, keeps=self.plan.keeps_ends)
        if node is self.another and self._of_another is not None:
            self.check_another(f"{script.name} of {link.process.name}")
        elif script.name == "declare":
            self._note_shards(words)

    def _note_shards(self, words: Sequence[bytes]) -> None:
        fields = dict(zip(words[4::2], words[5::2], strict=False))
        for name in (b"shards", b"pending"):
            if count := int(fields.get(name, 0)):
                self.facts.shard_counts.add(count)

    def _check(self, keys: ShardKeys, node: Node | None) -> None:
        owner = node or self.servers.owners[keys.slot]
        shard = self._shard(keys, owner)
        shard.check(TOPICS, is_rung=keys.shard in self._rung, now_ms=owner.now_us() / 1000)
        if not self.facts.setbacks and not self.facts.splits:
            check_lanes(self._all_shards())
        if self._punctuality is not None and not self.is_over:
            self._punctuality.look(shard, now_ms=self.hub.now_us / 1000)
        if self._has_fleet and not self.is_over:
            self._look_at_fleet(shard)

    def _all_shards(self) -> list[Shard]:
        return [self._shard(keys, self.servers.owners[keys.slot]) for keys in self._shards.values()]

    def _shard(self, keys: ShardKeys, node: Node) -> Shard:
        return Shard(keys, node.space)

    def rung_all(self, shards: frozenset[int]) -> None:
        """Of these shards it is not known whether the poller was rung."""
        self._rung |= shards

    def unguarded_since(self, node: Node, since_us: float) -> set[str]:
        """The ids that may be there twice, or gone, if a node loses what it did since then: those that were moved to it
        or from it, or whose dedup windows were; and, once the number of shards has changed, those of which anything was
        asked there, as a new task may be in another shard than the one that comes back.
        """
        ids: set[str] = set()
        for at_us, _, what in reversed(self.told.story):
            if at_us < since_us:
                break
            if isinstance(what, Executed) and what.node == node.name:
                if what.script in MOVED:
                    ids.update(word.partition(b"\n")[0].decode() for word in what.words[MOVED[what.script]])
                elif len(self.facts.shard_counts) > 1:
                    ids.update(word.decode(errors="replace") for word in what.words[2:])
        return ids

    def moved_since(self, node: Node, since_us: float) -> set[str]:
        """The ids that were moved to a node since then, or whose dedup windows were."""
        return {
            word.partition(b"\n")[0].decode()
            for at_us, _, what in self.told.story
            if at_us >= since_us and isinstance(what, Executed) and what.node == node.name
            if what.script in ("put", "remember")
            for word in what.words[MOVED[what.script]]
        }

    def on_their_way(self) -> set[str]:
        """The ids that are marked to be moved, or are moving, at this instant."""
        return {
            field.partition(b"|")[0].decode()
            for shard in self._all_shards()
            for key in (shard.keys.staged, shard.keys.moved)
            for field in shard.fields(key)
        }

    def tasks_of(self, node: Node) -> set[tuple[int, str]]:
        """The tasks that a node has: shard and id."""
        shards = [Shard(keys, node.space) for keys in self._shards.values()]
        return {(shard.keys.shard, id.decode()) for shard in shards for id in shard.fields(shard.keys.task)}

    def brought_back(self, tasks: set[tuple[int, str]]) -> None:
        """These tasks are there again, as a server has lost that they were done with. Once the number of shards has
        changed there may be new ones of their ids in other shards. In one shard both are lost, or neither.
        """
        if len(self.facts.shard_counts) > 1:
            self.facts.unguarded |= {id for _, id in tasks}

    def shards_of(self, node: Node) -> frozenset[int]:
        """The shards that a node serves now."""
        return frozenset(keys.shard for keys in self._shards.values() if self.servers.owners[keys.slot] is node)


@cache
def _scripts() -> dict[str, Script]:
    """Ours, for engines with keys and without, by their texts."""
    return {(each := script(name, keyed)).text: each for name in NAMES for keyed in (False, True)}


def _scale(plan: Plan) -> Scale:
    scale = Scale(durable=plan.replicated, large=0.03, shards=plan.sizes, pause=plan.pause)
    if plan.disk is not None:
        fsyncs = plan.disk in ("always", "everysec") and plan.server != "redis7"  # that does not know WAITAOF
        scale = Scale(durable=fsyncs, durability="fsynced", shards=plan.sizes, pause=plan.pause, delays=LONG)
    return replace(scale, ids=(*scale.ids, *KEYED_IDS), keys=KEYS) if plan.keyed else scale


@contextlib.contextmanager
def _logged(to: Any) -> Iterator[None]:
    """Gives what the product logs, warnings and errors, to a function."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            to(record)

    logger, handler = logging.getLogger("shardq"), Handler()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def run(plan: Plan, instead: Mapping[str, Script] | None = None) -> Told:
    """``instead``: scripts that are run in place of ours, by the texts of these."""
    return Run(plan, instead).carry_out()
