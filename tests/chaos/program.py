"""One program of a run as a process of its own: ``python -m tests.chaos.program``, with its ``Spec`` as the first line
of its standard input. It ends when that ends, or at SIGTERM.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from shardq import Engine, ShardqError
from shardq.core.model.task import Outcome
from tests.chaos.flow import Flow, FlowBook
from tests.chaos.planted import plant
from tests.judge.history import Book, Call
from tests.judge.model import Op
from tests.judge.witness import Witness, monotonic_us, seeded
from tests.judge.workload import Place, Program, Scale, WentWrong

TIMEOUT_S = 8.0

MOST_NUMBERS = 1_000_000_000
"""Payloads of one process are apart by this."""

STILL_S = 0.1
"""A process that did not run for longer than this notes it."""

IDS_S = 2.0
"""Ids that callers choose are others after so long: histories stay short."""

IDS = ("a", "b", "c", "d", "mail/a", "mail/b", "mail/c", "mail/d")

LEASE_S = 5.0

SHARDS = (2, 3, 4, 6)

OUT, HOME, NATS = "out", "home", "nats"
"""Topics that are forwarded: to a list of another server, to one of the engine's own, and to a subject of NATS."""

HEAVY_BYTES = 200_000
"""The size of a payload, where a spool is to be filled."""

HEAVY_SPOOL_BYTES = 9 << 20
"""So large a spool gets no more of them."""

BOX = "box"
"""The topic of what goes through an outbox."""

TICK = "tick"
"""The topic, and the schedule, of what recurs."""

TICK_S = 0.5

TICKED = 7
"""The payload of all of those."""

QUIET = "quiet"
"""A topic with a task now and then, and workers that wait for it."""

QUIET_S = 1.5
"""Seconds between two of them from one process, at most."""

STOOD_STILL = "stood still"


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    number: int
    life: int
    index: int
    """No other process of the run has it."""
    seed: int
    url: str
    name: str
    shards: int
    folder: str
    """With the files of the run."""
    durability: str = ""
    per_s: float = 1000.0
    pause: float = 0.1
    planted: str = ""
    clock_s: float = 0.0
    """By how much its clock is off."""
    writes: bool = True
    """False where no judge reads its books."""

    @property
    def who(self) -> str:
        return f"{self.kind}{self.number}.{self.life}"

    def file(self, kind: str) -> Path:
        return Path(self.folder) / f"{self.who}.{kind}"

    @property
    def book(self) -> Path:
        return self.file("book") if self.writes else Path(os.devnull)

    @property
    def flow_book(self) -> Path:
        return self.file("flow") if self.writes else Path(os.devnull)

    @property
    def spool(self) -> Path:
        return Path(self.folder) / f"{self.kind}{self.number}.spool"

    @property
    def box(self) -> str:
        return f"sqlite:///{self.folder}/box.db"


class _ChangingIds(Sequence[str]):
    """Ids that all programs choose at the same time, and no longer than for a while."""

    def __len__(self) -> int:
        return len(IDS)

    def __getitem__(self, place: Any) -> Any:
        return f"{IDS[place]}{int(time.monotonic() / IDS_S)}"


class Child:
    """What runs in the process."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.over = threading.Event()
        self.engine = self._engine()
        self.book = Book(spec.book)
        self.witness = Witness(self.engine, self.book, spec.who, spec.index * MOST_NUMBERS, TIMEOUT_S)
        self.draw = seeded(spec.seed, spec.who)
        scale = Scale(
            ids=_ChangingIds(),
            pause=spec.pause,
            delays=(0.0, 0.0, 0.005, 0.3, 1.0, 3.0),
            held=(0.0, 0.0, 0.0, 0.05, 0.5, 2.0, 6.0),
            lease=LEASE_S,
            shards=SHARDS,
            durable=bool(spec.durability),
            durability=spec.durability,
        )
        self.workload = Program(self.witness, Place(self.pause, self.over.is_set), self.draw, scale)

    def _engine(self) -> Engine:
        spec = self.spec
        options: dict[str, Any] = {"spool": spec.spool} if spec.kind == "spool" else {}
        return Engine(
            spec.url, name=spec.name, shards=spec.shards, timeout=TIMEOUT_S if not options else 2.0,
            connect_timeout=2.0, **options,
        )  # fmt: skip

    def pause(self, seconds: float) -> None:
        """Ends early when the program is to end."""
        self.over.wait(seconds)

    def run(self) -> None:
        watch = threading.Thread(target=self._note_stalls, name="stalls", daemon=True)
        watch.start()
        while not self.witness.does("open", self.engine.open) and not self.over.is_set():
            self.pause(0.2)
        try:
            if not self.over.is_set():
                getattr(self, f"_{self.spec.kind}", self._works)()
        finally:
            self.engine.close()

    def _note_stalls(self) -> None:
        """Notes the times in which this process did not run: its calls may take so much longer."""
        last_us = monotonic_us()
        while True:
            time.sleep(0.01)
            now_us = monotonic_us()
            if now_us - last_us > STILL_S * 1e6:
                self.book.end(self.book.begin(Call(self.spec.who, STOOD_STILL, last_us)), now_us)
            last_us = now_us

    # ---- programs

    def _works(self) -> None:
        workload = getattr(self.workload, self.spec.kind)
        if self.spec.kind == "consume":
            workload()
        else:
            workload(sys.maxsize)

    def _dispatch(self) -> None:
        while not self.over.is_set() and not self.witness.does("start", self.engine.start):
            self.pause(0.2)
        self.over.wait()

    def _work(self) -> None:
        while not self.over.is_set():
            worker = self.workload.work()
            failures: list[BaseException] = []
            thread = threading.Thread(target=self._worker, args=[worker, failures], name="worker")
            thread.start()
            while not self.over.is_set() and thread.is_alive():
                self.pause(0.3)
            self.workload.stopping()
            worker.stop()
            thread.join()
            if failures:
                raise failures[0]
            self.pause(0.3)

    def _quiet(self) -> None:
        """A worker of a topic in which there is little to do, and who pushes it."""
        witness = self.witness
        since_us = monotonic_us()
        worker = self.engine.worker(concurrency=2, lease=LEASE_S, grace=1.0)

        def handle(delivery: Any) -> None:
            witness.given(delivery, since_us=since_us, lease=LEASE_S)
            witness.concluded(delivery, "ack")

        worker.on(QUIET)(handle)
        failures: list[BaseException] = []
        thread = threading.Thread(target=self._worker, args=[worker, failures], name="worker")
        thread.start()
        while not self.over.is_set() and thread.is_alive():
            self.pause(self.draw.random() * QUIET_S)
            witness.push(*witness.task(topic=QUIET, delay=self.draw.choice((0.0, 0.3))))
        worker.stop()
        thread.join()
        if failures:
            raise failures[0]

    def _worker(self, worker: Any, failures: list[BaseException]) -> None:
        try:
            self.witness.runs(worker)
        except Exception as exc:  # noqa: BLE001  the thread that waits for this one raises it
            failures.append(exc)

    def _flow(self) -> None:
        self._bulk().produce(self.spec.per_s, self.over.is_set, self.pause)

    def _drain(self) -> None:
        self._bulk().drain(self.over.is_set, self.pause)

    def _bulk(self) -> Flow:
        return Flow(self.engine, FlowBook(self.spec.flow_book), self.spec.index * MOST_NUMBERS, self.draw)

    def _spool(self) -> None:
        """Pushes, cancels and reschedules, which go to a file while no server can be reached; then it grows fast."""
        is_away = False
        while not self.over.is_set():
            self.pause(self.draw.random() * self.spec.pause)
            if is_away and self.spec.spool.stat().st_size < HEAVY_SPOOL_BYTES and self.draw.random() < 0.5:
                self.witness.push(*self.witness.task(delay=self.draw.choice((0.0, 1.0)), padding=HEAVY_BYTES))
            elif self.draw.random() < 0.8:
                self.workload.push_some()
            else:
                id = self.draw.choice([*self.workload.scale.ids, *self.workload.known[-8:]])
                kind = self.draw.choice(("cancel", "reschedule"))
                is_away = self.witness.order(kind, id, delay=self.draw.choice((0.0, 1.0))) == str(Outcome.SPOOLED)

    def _send(self) -> None:
        """Pushes what is forwarded."""
        while not self.over.is_set():
            self.pause(self.draw.random() * self.spec.pause)
            topic = self.draw.choice((OUT, HOME, NATS))
            delay = self.draw.choice((0.0, 0.0, 0.3, 2.0))
            tasks = [self.witness.task(topic=topic, delay=delay) for _ in range(self.draw.choice((1, 5, 50)))]
            self.witness.push_many(tasks)

    def _tick(self) -> None:
        """Declares a schedule, and handles its tasks."""
        declare = partial(self.engine.every, TICK, interval=TICK_S, topic=TICK, payload=TICKED, catch_up="all")
        while not self.over.is_set() and not self.witness.does("every", declare):
            self.pause(0.2)
        consumer = self.witness.consumer(TICK, lease=LEASE_S)
        while not self.over.is_set():
            if deliveries := consumer.claim(20, wait=1.0):
                self.pause(self.draw.choice((0.0, 0.0, 0.3)))
                consumer.settle("ack" if self.draw.random() < 0.9 else "retry", deliveries, delay=0.0)

    def _outbox(self) -> None:
        """Pushes in transactions of a database, some of which are rolled back."""
        import sqlalchemy as sa
        from sqlalchemy.orm import Session

        from shardq import outbox

        database = sa.create_engine(self.spec.box, connect_args={"timeout": 30.0})
        while not self.over.is_set():
            self.pause(self.draw.random() * self.spec.pause)
            tasks = [self._boxed() for _ in range(self.draw.choice((1, 3, 20)))]
            number = self.book.begin(Call(self.spec.who, "outbox", monotonic_us(), ops=[("", op) for _, op in tasks]))
            is_kept = self.draw.random() < 0.9
            with contextlib.suppress(WentWrong), Session(database) as session, session.begin():
                ids = outbox.push_many(session, [task for task, _ in tasks])
                if not is_kept:
                    raise WentWrong
            fate = "committed" if is_kept else "nothing"
            self.book.end(number, monotonic_us(), outcomes=[fate] * len(ids), ids=ids)

    def _boxed(self) -> tuple[Any, Op]:
        task, op = self.witness.task(topic=BOX, delay=self.draw.choice((0.0, 0.0, 0.5, 2.0)))
        op.begin_us = monotonic_us()
        return task, op

    def _relay(self) -> None:
        """Moves the rows of the database, and handles their tasks."""
        relay = a_relay(self.engine, self.spec.box)
        relay.start()
        consumer = self.witness.consumer(BOX, lease=LEASE_S)
        while not self.over.is_set():
            if deliveries := consumer.claim(100, wait=1.0):
                self.pause(self.draw.choice((0.0, 0.0, 0.3)))
                consumer.settle("ack" if self.draw.random() < 0.9 else "retry", deliveries, delay=0.0)
        relay.stop()


class _Trouble(logging.Handler):
    """Keeps what the product logs; an error that it does not know is trouble."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(logging.WARNING)
        self._spec = spec

    def emit(self, record: logging.LogRecord) -> None:
        print(f"{time.monotonic():.3f} {record.levelname} {record.getMessage()}", file=sys.stderr, flush=True)
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, ShardqError | WentWrong):
            trace = "".join(traceback.format_exception(error))
            with self._spec.file("trouble").open("a") as file:
                file.write(f"{self._spec.who} logged {record.getMessage()}: {trace}\n")


def _hear(child: Child) -> None:
    while os.read(0, 1):
        pass
    child.over.set()


@contextlib.contextmanager
def _logged(spec: Spec) -> Iterator[None]:
    logger, handler = logging.getLogger("shardq"), _Trouble(spec)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)


def a_relay(engine: Engine, database: Any) -> Any:
    """A relay that goes on although clocks jump by an hour: it would stop, and say so."""
    from shardq import outbox
    from shardq.relay import witness

    witness.CLOCKS_MS = 10**8
    return outbox.OutboxRelay(engine, database)


def set_clock(seconds: float) -> None:
    """This process's clock is off. (Under libfaketime Python's own sleep fails now and then, on a clock that is not
    even faked.)
    """
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + int(seconds * 1e9)


def main() -> None:
    faulthandler.enable()
    line = bytearray()
    while (byte := os.read(0, 1)) not in (b"\n", b""):
        line += byte
    spec = msgspec.json.decode(bytes(line), type=Spec)
    plant(spec.planted)
    if spec.clock_s:
        set_clock(spec.clock_s)
    with _logged(spec):
        child = Child(spec)
        signal.signal(signal.SIGTERM, lambda *_: child.over.set())
        threading.Thread(target=_hear, args=[child], name="hear", daemon=True).start()
        child.run()


if __name__ == "__main__":
    main()
