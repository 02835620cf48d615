"""What is done to the servers and programs of a run, and how the judge is told of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from shardq.core.layout.keys import control_keys, shard_keys
from tests.judge.judge import Setback
from tests.judge.verdict import Loss
from tests.sim.model.keyspace import Snapshot
from tests.sim.model.values import Text
from tests.sim.runs.plan import FLEETS, NAME, Fault, Program
from tests.sim.runs.punctuality import CONNECTS_MS
from tests.sim.world.disk import Disk, Point
from tests.sim.world.hub import Process
from tests.sim.world.nodes import Node

if TYPE_CHECKING:
    from tests.sim.runs.running import Run

POWER_US = 1e6
"""What a server that loses its power forgets: its append-only file is written each second."""

CRASHES = 10
"""Starts of a worker that crashes."""


class Faulting:
    def __init__(self, its: Run) -> None:
        self._run = its
        self._hub = its.hub
        self._draw = random.Random(f"{its.plan.seed}/faults")
        self.unexpected: list[str] = []
        """Errors that the product has met and does not know."""
        self._most_skew_us = 0
        self._armed: list[Fault] = []
        self._fleet = [program for program in its.plan.programs if program.kind == "work"]
        """The workers that there are."""
        self._meddled: list[Callable[[], None]] = []
        """What undoes what another program has written."""

    def comes(self, fault: Fault) -> None:
        """Its time has come."""
        if fault.after:
            self._armed.append(fault)
        else:
            self._happens(fault, self._node(fault.target), self._process(fault.target))

    def ran(self, script: str, node: Node, caller: Process) -> None:
        """A script was carried out, and what waits for that happens within a moment."""
        for fault in [fault for fault in self._armed if fault.after == script]:
            self._armed.remove(fault)
            if caller in self._run.processes.values():
                self._hub.after(self._draw.choice((0, 0, 100, 400)), partial(self._happens, fault, node, caller))

    def _happens(self, fault: Fault, node: Node, process: Process) -> None:
        if self._run.is_over:
            return
        if fault.kind not in FLEETS:
            self._run.fleet.disturbed(self._hub.now_us / 1000 + fault.seconds * 1000 + CONNECTS_MS)
        how = getattr(self, "_" + fault.kind.replace(" ", "_"))
        self._run.tell("fault", f"{fault.kind} ({node.name}, {process.name}), {fault.seconds:g} s {fault.word}")
        self._run.told.reached[f"fault {fault.kind}"] += 1
        how(fault, node, process)

    def heal(self) -> None:
        """All that lasts is over."""
        run = self._run
        run.net.parted.clear()
        run.net.slow_us.clear()
        run.net.losing.clear()
        run.net.exhausted.clear()
        for restore in self._meddled:
            restore()
        for link in list(run.net.links):
            link.flow()
        for node in run.servers.nodes:
            node.server.denials.full = node.server.denials.read_only = False
            node.server.denials.commands = node.refuses = frozenset()
            node.lags_until_us = 0
            node.go_on()
            node.skew_us = self._most_skew_us  # so that all is due that was pushed meanwhile, and no clock goes back
            if node.is_master and not node.is_up and node in run.servers.owners:
                node.come_up()
        for process in run.processes.values():
            process.frozen_until_us = min(process.frozen_until_us, self._hub.now_us)

    def _node(self, target: int) -> Node:
        present = sorted(set(self._run.servers.owners), key=lambda node: node.name)
        return present[target % len(present)]

    def _process(self, target: int) -> Process:
        names = sorted(self._run.processes)
        return self._run.processes[names[target % len(names)]]

    # ---- the network

    def _cut(self, fault: Fault, node: Node, process: Process) -> None:
        self._run.net.cut(lambda link: link.peer is node or link.process is process)

    def _lose(self, fault: Fault, node: Node, process: Process) -> None:
        losing, who = self._run.net.losing, node.name if fault.target % 3 == 0 else process.name
        losing[who] = 0.25
        self._hub.after(fault.seconds * 1e6, lambda: losing.pop(who, None))

    def _part(self, fault: Fault, node: Node, process: Process) -> None:
        self._run.net.part(process.name, node.name, fault.seconds)

    def _exhaust(self, fault: Fault, node: Node, process: Process) -> None:
        """Its connections end, too, so that it needs others."""
        exhausted = self._run.net.exhausted
        exhausted.add(process.name)
        self._run.net.cut(lambda link: link.process is process)
        self._hub.after(fault.seconds * 1e6, lambda: exhausted.discard(process.name))

    def _slow(self, fault: Fault, node: Node, process: Process) -> None:
        slow_us = self._run.net.slow_us
        slow_us[node.name] = self._draw.choice((20_000, 300_000, 2_000_000))
        self._hub.after(fault.seconds * 1e6, lambda: slow_us.pop(node.name, None))

    # ---- nodes

    def _hold(self, fault: Fault, node: Node, process: Process) -> None:
        node.hold(fault.seconds)

    def _kill_node(self, fault: Fault, node: Node, process: Process) -> None:
        if node.is_up:
            node.go_down()
            loads_s = self._draw.choice((0.0, 0.5))
            self._hub.after(fault.seconds * 1e6, lambda: self._come_up(node, loads_s))

    def _come_up(self, node: Node, loads_s: float) -> None:
        if not node.is_up and node.is_master and node in self._run.servers.owners:
            node.come_up(loads_s=loads_s)

    def _lose_power(self, fault: Fault, node: Node, process: Process) -> None:
        """The file has what was there a while ago, up to a second. When slots move, files are brought up to date."""
        if not node.is_up:
            return
        since_us, snapshot = self._hub.now_us, node.space.snapshot()
        hub = self._hub

        def strike() -> None:
            if self._run.is_over:
                return
            if node.is_up and node.is_master and node in self._run.servers.owners and node.moved_us < since_us:
                node.go_down()
                had = self._run.tasks_of(node)
                node.space.restore(snapshot)
                self._run.brought_back(self._run.tasks_of(node) - had)
                self._setback(node, since_us)
                hub.after(fault.seconds * 1e6, lambda: self._come_up(node, 0.0))

        hub.after(self._draw.random() * POWER_US, strike)

    def _tail(self, fault: Fault, node: Node, process: Process) -> None:
        self._forget(fault, node, lambda disk: disk.cut(), is_failover=True)

    def _snapshot(self, fault: Fault, node: Node, process: Process) -> None:
        self._forget(fault, node, Disk.earlier)

    def _forget(
        self, fault: Fault, node: Node, found: Callable[[Disk], Point | None], *, is_failover: bool = False
    ) -> None:
        """The node, or all, come back with what is on the disk. ``is_failover``: what was pushed durably stays.

        A snapshot takes back even what an append-only file had: the mark of a task that is moving was safe there. That
        task may be lost.
        """
        moving = self._run.on_their_way()
        for each in list(self._run.servers.nodes) if fault.word else [node]:
            point = None if each.disk is None else found(each.disk)
            if each.is_up and each.disk is not None and point is not None:
                each.go_down()
                if each.disk.appends and not is_failover:
                    self._run.facts.unmoored |= moving
                self._goes_back(each, point, is_failover=is_failover and each.disk.appends)
                self._hub.after(fault.seconds * 1e6, partial(self._come_up, each, 0.0))

    def _goes_back(self, node: Node, point: Point, *, is_failover: bool = False) -> None:
        run, disk = self._run, node.disk
        assert disk is not None, "it has a disk"
        had = run.tasks_of(node)
        node.space.restore(point.snapshot)
        disk.restarts(point)
        if not is_failover and run.plan.is_cluster:
            run.facts.unmoored |= run.moved_since(node, point.at_us)
        run.brought_back(run.tasks_of(node) - had)
        self._setback(node, point.at_us, is_failover=is_failover)

    def _wipe(self, fault: Fault, node: Node, process: Process) -> None:
        """Nobody is cut off; a new dispatcher, if there is one, was told another number of shards."""
        for each in list(self._run.servers.nodes) if fault.word else [node]:
            self._goes_back(each, Point(0.0, 0, Snapshot({})))
            each._wrote()
        if fault.target % 2:
            run, number = self._run, len(self._run.processes)
            run.start(Program("dispatch", 0, 1000 + number), shards=1 + (run.plan.shards + fault.target // 2) % 5)

    def _elsewhere(self, fault: Fault, node: Node, process: Process) -> None:
        """The address of the server leads to another engine for a while."""
        run = self._run
        assert run.another is not None, "it has begun"
        run.lead(node, run.another)
        self._hub.after(fault.seconds * 1e6, partial(run.lead, node, node))

    def _promote(self, fault: Fault, node: Node, process: Process) -> None:
        self._failover(node, is_down=True, seconds=fault.seconds)

    def _split(self, fault: Fault, node: Node, process: Process) -> None:
        self._failover(node, is_down=False, seconds=fault.seconds)

    def _failover(self, node: Node, *, is_down: bool, seconds: float) -> None:
        """The replica takes over at once; a master that was not killed goes on for a while."""
        if node.copy is None or not node.is_up or node not in self._run.servers.owners:
            return
        shards = self._run.shards_of(node)
        skew_us = node.skew_us + self._draw.choice((0, 0, -20_000, 300_000))
        self._most_skew_us = max(self._most_skew_us, skew_us)
        new, copy = self._run.servers.promote(node, is_down=is_down, skew_us=skew_us)
        run = self._run
        run.facts.setbacks.append((Setback(self._hub.now_us, copy.at_us), shards))
        has = run.tasks_of(new)
        run.brought_back(has - run.tasks_of(node))
        self._skewed(abs(new.skew_us))
        run.rung_all(shards)

        def demote() -> None:
            run.servers.demote(node)
            run.tell("fault", f"{node.name} learns that {new.name} has taken its place")
            if not is_down:
                run.brought_back(has - run.tasks_of(node))
                run.facts.setbacks.append((Setback(self._hub.now_us, copy.at_us, is_split=True), shards))

        self._hub.after(seconds * 1e6, demote)

    def _lag(self, fault: Fault, node: Node, process: Process) -> None:
        node.lags_until_us = int(self._hub.now_us + fault.seconds * 1e6)

    def _full(self, fault: Fault, node: Node, process: Process) -> None:
        denials = node.server.denials
        denials.full = True
        self._hub.after(fault.seconds * 1e6, lambda: setattr(denials, "full", False))

    def _deny(self, fault: Fault, node: Node, process: Process) -> None:
        node.refuses = frozenset([fault.word.encode()])
        if fault.word == "SPUBLISH":
            node.server.denials.commands = node.refuses

        def over() -> None:
            node.refuses = node.server.denials.commands = frozenset()

        self._hub.after(fault.seconds * 1e6, over)

    def _meddle(self, fault: Fault, node: Node, process: Process) -> None:
        """Another program writes a key without which no task is lost, and removes it."""
        keys, control = shard_keys(NAME, fault.target % 3), control_keys(NAME)
        key, slot = self._draw.choice(((keys.looks, keys.slot), (control.changes, control.slot)))
        owner, name = self._run.servers.owners[slot], key.encode()
        owner.space.keys[name] = Text(-1, b"theirs")
        self._run.told.refusals.add(b"WRONGTYPE")

        def restore() -> None:
            for each in self._run.servers.nodes:
                if isinstance(each.space.keys.get(name), Text):
                    del each.space.keys[name]

        self._meddled.append(restore)
        self._hub.after(fault.seconds * 1e6, restore)

    def _flush(self, fault: Fault, node: Node, process: Process) -> None:
        node.flush_scripts()

    def _set_clock(self, fault: Fault, node: Node, process: Process) -> None:
        node.skew_us += int(fault.seconds * 1e6)
        self._most_skew_us = max(self._most_skew_us, node.skew_us)
        self._skewed(abs(fault.seconds * 1e6))
        self._run.rung_all(self._run.shards_of(node))

    def _move_slot(self, fault: Fault, node: Node, process: Process) -> None:
        run = self._run
        slot = shard_keys("x", fault.target % 6).slot
        if run.servers.owners[slot] is not node:
            self._skewed(abs(run.servers.owners[slot].skew_us - node.skew_us))
            run.servers.move_slot(slot, node, fault.seconds)
            run.rung_all(frozenset(range(8)))

    def _skewed(self, us: float) -> None:
        facts = self._run.facts
        facts.rules = facts.rules._replace(skew_us=facts.rules.skew_us + us)

    def _setback(self, node: Node, since_us: float, *, is_failover: bool = False) -> None:
        shards = self._run.shards_of(node)
        self._run.facts.setbacks.append((Setback(self._hub.now_us, since_us, is_failover=is_failover), shards))
        self._run.facts.unguarded |= self._run.unguarded_since(node, since_us)
        self._run.rung_all(shards)

    # ---- processes

    def _freeze(self, fault: Fault, node: Node, process: Process) -> None:
        self._hub.freeze(process, fault.seconds)
        now_us = self._hub.now_us
        self._run.facts.frozen.append(Loss(now_us, now_us + fault.seconds * 1e6, process.name))

    def _kill(self, fault: Fault, node: Node, process: Process) -> None:
        program = self._run.program_of(process)
        self._hub.kill(process)
        self._hub.after(fault.seconds * 1e6, partial(self._starts, program))

    def _starts(self, program: Program) -> None:
        if not self._run.is_over:
            self._run.start(program)

    # ---- fleets

    def _deploy(self, fault: Fault, node: Node, process: Process) -> None:
        for place, program in enumerate(self._fleet):
            self._hub.after(place * fault.seconds * 1e6, partial(self._replace, program, fault.word))

    def _replace(self, program: Program, signal: str) -> None:
        """The new one starts before the old one ends, or then."""
        old = self._run.processes[program.name]
        self._starts(program)
        self._hub.after(self._draw.choice((0.0, 2e6)), partial(self._ends, old, signal))

    def _ends(self, process: Process, signal: str) -> None:
        if self._run.is_over:
            return
        self._run.tell("fault", f"{process.name} gets {signal}")
        if signal == "SIGKILL":
            self._hub.kill(process)
            self._run.fleet.disturbed(self._hub.now_us / 1000)
        else:
            self._run.told_to_end.add(process)

    def _scale(self, fault: Fault, node: Node, process: Process) -> None:
        wanted = 1 + fault.target % 8
        for program in self._fleet[wanted:]:
            self._ends(self._run.processes[program.name], fault.word)
        del self._fleet[wanted:]
        while len(self._fleet) < wanted:
            self._fleet.append(Program("work", 0, 1000 + len(self._run.processes)))
            self._run.start(self._fleet[-1])

    def _crash(self, fault: Fault, node: Node, process: Process) -> None:
        if not self._fleet:
            return  # a run that was cut down to one without workers
        program = self._fleet[fault.target % len(self._fleet)]

        def again(left: int) -> None:
            if program in self._fleet:
                self._replace(program, "SIGKILL")
                if left:
                    self._hub.after(fault.seconds * 1e6, partial(again, left - 1))

        again(CRASHES)
