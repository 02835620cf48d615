"""``python -m bench.failovers`` kills masters under load, one after the other, and says what became of every task.

Each round cuts the replica of one master off, so that what is acknowledged from then on is on one server only, kills
that master with SIGKILL, lets the replica take its place, and starts the killed one again as its replica. Meanwhile
threads push, cancel and reschedule, and a consumer of the same process takes what falls due.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis

from bench.arguments import add_server, command_parser
from cluster import entry, servers
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.server import Server
from shardq import Engine, Outcome, PushError, ShardqError, Task
from shardq.core.layout.keys import shard_keys

NAME = "bench-failovers"
SHARDS = 12
PUSHERS = 3
PER_S = 2000
"""Tasks pushed a second."""
BATCH = 100
FAR_S = 86_400.0
SOON_S = 6.0
"""Tasks that are cancelled, or handled, fall due so long after their push: during a failover, or after it."""

CUT_S = 0.5
"""The replica has been cut off for this long when its master is killed."""

NODE_TIMEOUT_MS = 1500
PROMOTED_S = 90.0
PAYLOAD = "x" * 100

_ABOUT = """\
Kills the masters of a cluster under load, one after the other, and counts every acknowledged push and cancel. The whole
takes some fifteen minutes; --failovers 5 --pushes 0 takes one. It exits with 1 when an acknowledged push was lost.
"""

_EXAMPLE = """\
example:
  python -m bench.failovers
  python -m bench.failovers --failovers 5 --pushes 0
  python -m bench.failovers --failovers 5 --pushes 0 --without
"""


@dataclass(slots=True)
class Ledger:
    """The acknowledged pushes and cancels, and what became of them."""

    acknowledged: list[str] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)
    unclear: dict[str, Outcome | None] = field(default_factory=dict)
    """Tasks whose cancel was asked for and not acknowledged: they may be there or not."""
    delivered: Counter[str] = field(default_factory=Counter)
    cancelled_and_ran: set[str] = field(default_factory=set)
    pending: set[str] = field(default_factory=set)
    failovers: int = 0
    replayed: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def lost(self) -> list[str]:
        kept = self.pending | self.delivered.keys() | self.cancelled | self.unclear.keys()
        return [id for id in self.acknowledged if id not in kept]

    @property
    def twice(self) -> int:
        return sum(count > 1 for count in self.delivered.values())

    def rows(self) -> Iterator[tuple[str, int]]:
        yield "failovers", self.failovers
        yield "acknowledged pushes", len(self.acknowledged)
        yield "of those lost", len(self.lost)
        yield "cancels that were not acknowledged", len(self.unclear)
        yield "acknowledged cancels", len(self.cancelled)
        yield "of those stored after all", len(self.cancelled & self.pending)
        yield "of those given out after the cancel", len(self.cancelled_and_ran)
        yield "tasks that were missing and stored again", self.replayed
        yield "tasks given out", len(self.delivered)
        yield "of those twice or more", self.twice
        yield "errors told to callers", len(self.errors)


class Load:
    """Threads that push, cancel and consume until the block ends."""

    def __init__(self, engine: Engine, per_s: float) -> None:
        self.ledger = Ledger()
        self._engine = engine
        self._pause_s = PUSHERS * BATCH / per_s
        self._ending = threading.Event()

    @contextmanager
    def running(self) -> Iterator[Ledger]:
        work: list[Callable[[], None]] = [*[self._push] * PUSHERS, self._cancel, self._consume]
        with ThreadPoolExecutor(len(work)) as threads:
            running: list[Future[None]] = [threads.submit(each) for each in work]
            try:
                yield self.ledger
            finally:
                self._ending.set()
            for each in running:
                each.result()

    def _push(self) -> None:
        while not self._ending.wait(self._pause_s):
            self._pushed(BATCH, FAR_S)

    def _pushed(self, count: int, delay: float) -> list[str]:
        try:
            ids: list[str] = [*self._engine.push_many([Task(PAYLOAD, delay=delay) for _ in range(count)])]
        except PushError as exc:
            self.ledger.errors.append(str(exc))
            ids = [*exc.stored]
        self.ledger.acknowledged += ids
        return ids

    def _cancel(self) -> None:
        source = random.Random(7)
        while not self._ending.wait(0.05):
            ids = self._pushed(20, SOON_S)
            try:
                for id in ids[::2]:
                    self.ledger.unclear[id] = None
                    self.ledger.unclear[id] = outcome = self._engine.cancel(id)
                    if outcome is Outcome.CANCELLED:
                        self.ledger.cancelled.add(id)
                        del self.ledger.unclear[id]
                for id in ids[1::4]:
                    self._engine.reschedule(id, delay=source.uniform(SOON_S, 2 * SOON_S))
            except ShardqError as exc:
                self.ledger.errors.append(str(exc))

    def _consume(self) -> None:
        consumer = self._engine.consumer()
        while not self._ending.is_set():
            try:
                deliveries = consumer.claim(500, wait=0.2)
                self.ledger.delivered.update(delivery.id for delivery in deliveries)
                # The cancel was acknowledged before: the consumer is told later, if at all.
                self.ledger.cancelled_and_ran |= {each.id for each in deliveries} & self.ledger.cancelled
                consumer.ack(deliveries)
            except ShardqError as exc:
                self.ledger.errors.append(str(exc))


def measured(
    binary: Path, *, failovers: int, pushes: int, per_s: float, replay: float | None, say: Callable[[str], None]
) -> Ledger:
    """Kills masters until there were so many failovers and pushes."""
    options = {"cluster-replica-validity-factor": "0"}
    with (
        Cluster(binary, masters=3, replicas=1, node_timeout_ms=NODE_TIMEOUT_MS, options=options) as cluster,
        Engine(cluster.url, name=NAME, shards=SHARDS, timeout=PROMOTED_S, replay=replay) as engine,
    ):
        engine.start()
        load = Load(engine, per_s)
        with load.running() as ledger:
            while ledger.failovers < failovers or len(ledger.acknowledged) < pushes:
                ledger.failovers += 1
                _fail_over(cluster, cluster.masters[ledger.failovers % 3], engine, ledger)
                say(f"{ledger.failovers} failovers, {len(ledger.acknowledged):,} pushes, {len(ledger.errors)} errors")
        _settle(engine, ledger)
        for keys in (shard_keys(NAME, shard) for shard in range(SHARDS)):
            client = cluster.node_of_slot(keys.slot).client()
            ledger.pending |= {id.decode() for id, _ in client.hscan_iter(keys.task, count=5000)}
            client.close()
        if (told := engine.stats().replay) is not None:
            ledger.replayed = told.replayed
        return ledger


def _fail_over(cluster: Cluster, master: Node, engine: Engine, ledger: Ledger) -> None:
    (replica,) = cluster.replicas_of(master)
    before = _replays(engine)
    replica.pause()
    try:
        # It could still read what was sent to it.
        master.ask("CLIENT", "KILL", "TYPE", "replica")
        time.sleep(CUT_S)
        pushed = len(ledger.acknowledged)
        _until(lambda: len(ledger.acknowledged) >= pushed + 2 * PUSHERS * BATCH, "more is pushed to the master alone")
        master.kill()
    finally:
        replica.resume()
    _until(lambda: _is_master(replica), f"{replica.address} is promoted")
    if before is not None:
        _until(lambda: _replays(engine) != before, "the last seconds are replayed")
    master.restart()
    cluster.wait_ok(timeout=PROMOTED_S)


def _replays(engine: Engine) -> int | None:
    replay = engine.stats().replay
    return None if replay is None else replay.replays


def _is_master(server: Server) -> bool:
    try:
        return bool(server.ask("ROLE")[0] == "master")
    except (redis.ConnectionError, redis.TimeoutError):
        return False


def _settle(engine: Engine, ledger: Ledger) -> None:
    """Takes what falls due after the load has ended. Ends when nothing is due within a day."""
    consumer = engine.consumer()

    def drained() -> bool:
        deliveries = consumer.claim(500, wait=0.2)
        ledger.delivered.update(delivery.id for delivery in deliveries)
        ledger.cancelled_and_ran |= {each.id for each in deliveries} & ledger.cancelled
        consumer.ack(deliveries)
        stats = engine.stats()
        ages = [shard.head_age for shard in stats.shards if shard.head_age is not None]
        seen = not any(shard.error for shard in stats.shards)
        return seen and not deliveries and not stats.ready + stats.leased and max(ages, default=-FAR_S) < -FAR_S / 2

    _until(drained, "all that was due soon is given out")


def _until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PROMOTED_S
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PROMOTED_S:.0f} s until {what}, in vain")
        time.sleep(0.02)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 nothing lost, 1 something lost or not possible, 2 not understood, 130 interrupted."""
    options = _parser().parse_args(arguments)
    binary = servers.binary(options.server)
    # the engine reports servers that are killed on purpose, which is no news
    logging.getLogger("shardq").setLevel(logging.CRITICAL)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    ledger = measured(
        binary,
        failovers=options.failovers,
        pushes=options.pushes,
        per_s=PER_S,
        replay=None if options.without else 10,
        say=say,
    )
    for id in ledger.lost[:10]:
        print(f"lost: {id}")
    for what, value in ledger.rows():
        print(f"{value:>12,}  {what}")
    return 1 if ledger.lost else 0


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("bench.failovers", _ABOUT, _EXAMPLE)
    add_server(parser)
    parser.add_argument("--failovers", type=int, default=100, help="kill so many masters; default: %(default)s")
    parser.add_argument("--pushes", type=int, default=1_000_000, help="go on until so many; default: %(default)s")
    parser.add_argument("--without", action="store_true", help="without replay=, to see what is lost")
    return parser


if __name__ == "__main__":
    sys.exit(entry.run(main))
