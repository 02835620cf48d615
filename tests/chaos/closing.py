"""The end of a run: without faults everything comes to rest, and is handled."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster.server import ServerFailed
from shardq import Engine
from shardq.errors import ShardqError
from tests.chaos.flow import TOPIC as FLOW
from tests.chaos.flow import Flow, FlowBook
from tests.chaos.program import BOX, LEASE_S, MOST_NUMBERS, TICK, Spec, a_relay
from tests.judge.history import Book
from tests.judge.witness import Witness, monotonic_us, seeded
from tests.judge.workload import TOPICS

REST_S = 180.0
"""The longest time, after all faults, until everything is handled."""

PLANTED_REST_S = 30.0
"""Likewise where the product is at fault."""

FLOW_LEASE_S = 8.0

EXAMINED = ("coverage", "epochs", "places", "records")
"""What the doctor says of tasks and shards."""

LAST_WORDS_S = 40.0
"""The report of a worker that was killed, and had told of a trouble, counts for half a minute."""


@dataclass
class Closing:
    """``spec``: that of the process which handles what is left, which is this one."""

    spec: Spec
    engine: Callable[..., Engine]
    rest_s: float = REST_S
    clocks: bool = False
    topics: Sequence[str] = ()
    """Beside those of a round."""
    wrong: list[str] = field(default_factory=list)
    """What must not be."""
    paused_us: float = math.inf
    """When the schedule was paused, which takes back what is not surely pushed, or not due."""
    carried_in_us: float = 0.0
    """When all that was spooled, or committed to an outbox, had been carried out."""

    def run(self) -> None:
        book = Book(self.spec.book)
        try:
            with self.engine() as engine:
                witness = Witness(engine, book, self.spec.who, self.spec.index * MOST_NUMBERS, 30.0)
                self._drain(engine, witness, Flow(engine, FlowBook(self.spec.flow_book), 0, seeded(0, "closing")))
        except (ShardqError, ServerFailed) as exc:
            self.wrong.append(f"closing met {type(exc).__name__}: {exc}")
        book.close()

    def _drain(self, engine: Engine, witness: Witness, flow: Flow) -> None:
        engine.start()
        self.paused_us = monotonic_us()
        if any(schedule.name == TICK for schedule in engine.schedules()):
            engine.schedule(TICK).pause()
        for topic in TOPICS:
            witness.does("resume", engine.resume, topic)
        witness.does("limit", engine.limit, "mail", None)
        until_s = time.monotonic() + self.rest_s
        self._carry_in(until_s)
        self.carried_in_us = monotonic_us()
        few = witness.consumer(*TOPICS, BOX, TICK, *self.topics, lease=LEASE_S)
        many = engine.consumer(FLOW, lease=FLOW_LEASE_S)
        stats = None
        while time.monotonic() < until_s:
            if deliveries := few.claim(200, wait=0.1):
                few.settle("ack", deliveries)
            if flow.drain_some(many, lambda _: None, calmly=True) or deliveries:
                continue
            stats = engine.stats()
            at_rest = not (stats.scheduled or stats.ready or stats.leased or stats.missing)
            if at_rest and engine.resize(dry_run=True).progress().done:
                break
        else:
            raise ServerFailed(f"it does not come to rest: {stats}")
        until_s = time.monotonic() + LAST_WORDS_S
        while (wrong := self._reasons(engine)) and time.monotonic() < until_s:
            time.sleep(1)
        if wrong and not self.clocks:
            self.wrong.append(f"all is handled, and it is not healthy: {wrong}")
        self.wrong += self._diagnosed()

    def _diagnosed(self) -> list[str]:
        """What ``shardq doctor --all`` finds of tasks and shards; of servers it may say what it likes."""
        command = [sys.executable, "-m", "shardq", "doctor", "--all", "--json", "--url", self.spec.url]
        said = subprocess.run([*command, "--name", self.spec.name], capture_output=True, text=True, timeout=120)
        told = [json.loads(line) for line in said.stdout.splitlines()]
        if not told:
            return [f"the doctor says nothing: {said.stderr}"]
        return [f"doctor: {each['text']}" for each in told if each["check"] in EXAMINED and not each["ok"]]

    @staticmethod
    def _reasons(engine: Engine) -> list[str]:
        """Why the engine calls itself unwell; but for its clocks, which are set."""
        return [reason for reason in engine.health(max_dead=10**9).reasons if "clock" not in reason]

    def _carry_in(self, until_s: float) -> None:
        """What spools and the outbox still hold is carried out."""
        folder = Path(self.spec.folder)
        for path in folder.glob("*.spool"):
            with self.engine(spool=path) as engine:
                while (spool := engine.stats().spool) is not None and spool.waiting != 0:
                    if time.monotonic() > until_s:
                        raise ServerFailed(f"the spool is not replayed: {spool}")
                    time.sleep(0.1)
        if (folder / "box.db").exists():
            self._move_rows(until_s)

    def _move_rows(self, until_s: float) -> None:
        import sqlalchemy as sa

        database = sa.create_engine(self.spec.box)
        with self.engine() as engine, a_relay(engine, database):
            while True:
                with database.connect() as connection:
                    rows = connection.execute(
                        sa.text("SELECT count(*), count(failed) FROM shardq_outbox WHERE moved IS NULL")
                    ).one()
                if rows[1]:
                    raise ServerFailed(f"{rows[1]} rows of the outbox were put aside")
                if not rows[0]:
                    return
                if time.monotonic() > until_s:
                    raise ServerFailed(f"{rows[0]} rows of the outbox are not moved")
                time.sleep(0.1)
