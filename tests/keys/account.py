"""The account of all leases of keyed tasks, by the clocks of the servers.

``Taker`` takes tasks and writes each lease into a book before it goes on, so that what a process did before it was
killed counts. A lease begins at the instant that its deadline tells, which the server set from its own clock. It ends
no earlier than the server's clock said before the settle was sent, or at its deadline. So two leases that overlap in
the ``Account`` did overlap.

A process of its own: ``python -m tests.keys.account URL NAME NUMBER FOLDER [OPTIONS]``, the options of a ``Taker`` in
JSON. It takes until it is told to end.
"""

from __future__ import annotations

import math
import random
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from shardq import Delivery, Engine, LeaseLost
from shardq.core.calls.request import Command
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import shard_keys
from shardq.core.layout.lanes import key_of
from shardq.errors import ShardqError
from tests.support.workers import say, wait_for_the_end

TOPIC = "w"


class Options(msgspec.Struct, kw_only=True):
    """``verbs``: how each task ends, with its share; a task that lapses is left to the end of its lease."""

    lease: float = 30.0
    most: int = 20
    work_s: float = 0.005
    verbs: dict[str, float] = msgspec.field(default_factory=lambda: {"ack": 1.0})
    delay: float = 0.05
    """Of a retry or a snooze."""


@dataclass(slots=True)
class Lease:
    """One line of the account."""

    id: str
    n: int
    """Its payload: what was pushed earlier with one key has a smaller one."""
    begin_ms: float
    end_ms: float
    """The server's clock when it can have ended at the earliest."""
    verb: str = "lapse"
    """How it ended, as far as its holder knows."""
    told: bool = False
    """True if its holder was told so: one that was killed before that may not have sent it."""

    @property
    def key(self) -> str:
        return str(key_of(self.id))


class Taker:
    """A consumer that writes a book, a file or a list of lines."""

    def __init__(self, engine: Engine, url: str, write: Callable[[str], object], options: Options, seed: int) -> None:
        self._engine = engine
        self._url = url
        self._write = write
        self._options = options
        self._random = random.Random(seed)

    def run(self, end: threading.Event) -> None:
        driver = Driver(Settings.from_url(self._url, timeout=60.0))
        driver.open()
        try:
            consumer = self._engine.consumer(TOPIC, lease=self._options.lease)
            while not end.is_set():
                if deliveries := consumer.claim(self._options.most, wait=0.1):
                    self._begin(driver, deliveries)
                    time.sleep(self._random.uniform(0, self._options.work_s))
                    self._settle(driver, consumer, deliveries)
        finally:
            driver.close()

    def _begin(self, driver: Driver, deliveries: Iterable[Delivery]) -> None:
        for shard, some in by_shard(deliveries).items():
            keys = shard_keys(self._engine.name, shard)
            words = ("ZMSCORE", keys.leased, *(each.id for each in some))
            for each, deadline in zip(some, driver.call(Command(keys.slot, words, list)), strict=True):
                # one that was replaced meanwhile has none: it may have begun as late as now
                began = now_ms(driver, keys.slot) if deadline is None else float(deadline) - self._options.lease * 1000
                self._write(f"begin {each.id} {each.payload} {began:.0f} {began + self._options.lease * 1000:.0f}\n")

    def _settle(self, driver: Driver, consumer: Any, deliveries: Iterable[Delivery]) -> None:
        verbs = self._options.verbs
        groups = defaultdict[str, list[Delivery]](list)
        for each in deliveries:
            groups[self._random.choices(list(verbs), list(verbs.values()))[0]].append(each)
        for verb, group in groups.items():
            if verb == "lapse":
                continue
            for shard, some in by_shard(group).items():
                at = now_ms(driver, shard_keys(self._engine.name, shard).slot)
                self._write("".join(f"end {each.id} {verb} {at:.0f}\n" for each in some))
                sent = time.monotonic()
                lost = self._told(consumer, verb, some)
                # sent again after a failover it may have met the end of its lease, and is told that it is done
                done = "done" if time.monotonic() - sent < self._options.lease / 3 else "unknown"
                self._write("".join(f"{'lost' if each.id in lost else done} {each.id} {verb}\n" for each in some))

    def _told(self, consumer: Any, verb: str, some: list[Delivery]) -> list[str]:
        """Returns the ids whose leases were over."""
        options: dict[str, dict[str, Any]] = {
            "retry": {"delay": self._options.delay},
            "snooze": {"delay": self._options.delay},
            "bury": {"reason": "of no use"},
        }
        try:
            getattr(consumer, verb)(some, **options.get(verb, {}))
        except LeaseLost as exc:
            return exc.ids
        except ShardqError as exc:
            # which of them were settled is not known
            self._write("".join(f"unknown {each.id} {verb} {type(exc).__name__}\n" for each in some))
            return [each.id for each in some]
        return []


def by_shard(deliveries: Iterable[Delivery]) -> Mapping[int, list[Delivery]]:
    found = defaultdict[int, list[Delivery]](list)
    for each in deliveries:
        found[each.shard].append(each)
    return found


def now_ms(driver: Driver, slot: int) -> float:
    """The clock of a slot's master, in whole ms, as leases have them."""
    seconds, micros = driver.call(Command(slot, ("TIME",), list))
    return math.floor(int(seconds) * 1000 + int(micros) / 1000)


@dataclass
class Account:
    """What all books say."""

    leases: list[Lease] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    """How often an id was acked, and was told so."""
    buried: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)

    def read(self, books: Iterable[Iterable[str]]) -> Account:
        for book in books:
            running: dict[str, Lease] = {}
            for line in "".join(book).splitlines(keepends=True):
                # the last line of a process that was killed may be a part of one
                if line.endswith("\n"):
                    self._enter(running, *line.split())
        self.leases.sort(key=lambda lease: (lease.key, lease.begin_ms, lease.end_ms))
        return self

    def _enter(self, running: dict[str, Lease], word: str, id: str, *words: str) -> None:
        match word:
            case "begin":
                running[id] = Lease(id, int(words[0]), float(words[1]), float(words[2]))
                self.leases.append(running[id])
            case "end":
                lease = running[id]
                lease.verb, lease.end_ms = words[0], min(lease.end_ms, float(words[1]))
            case "done" if words[0] == "ack":
                self.done[id] += 1
                running[id].told = True
            case "done" if words[0] == "bury":
                self.buried.add(id)
            case "unknown":
                self.unknown.add(id)

    def by_key(self) -> Mapping[str, list[Lease]]:
        found = defaultdict[str, list[Lease]](list)
        for lease in self.leases:
            found[lease.key].append(lease)
        return found

    def assert_never_more(self, most: int) -> None:
        """Of no key more than so many leases at one instant."""
        too_many = []
        for leases in self.by_key().values():
            for at, lease in enumerate(leases):
                # the same begin: whoever stood still after its claim read the lease of the next one
                others = [
                    each
                    for each in leases[:at]
                    if each.end_ms > lease.begin_ms and (each.id, each.begin_ms) != (lease.id, lease.begin_ms)
                ]
                if len(others) >= most:
                    too_many.append((lease, others))
        assert not too_many, too_many[0]

    def assert_in_order(self) -> None:
        """Of each key: first to last, each until it is acked. For one at a time."""
        for key, leases in self.by_key().items():
            for one, other in pairwise(leases):
                assert one.n <= other.n, f"{key}: {other} came after {one}"
                assert one.n != other.n or one.verb != "ack" or not one.told, f"{other} was acked: {one}"

    def assert_all(self, pushed: Iterable[str]) -> None:
        """Each was acked, and none that is not there was given out."""
        ids = Counter(pushed)
        assert [id for id, times in ids.items() if times > 1] == []
        given = {lease.id for lease in self.leases}
        assert given <= ids.keys()
        ended = {lease.id for lease in self.leases if lease.verb == "ack"}
        assert ids.keys() - ended == set(), "these were never acked"
        assert [id for id, times in self.done.items() if times > 1] == []


def books_in(folder: Path) -> list[list[str]]:
    """The books of processes."""
    return [[file.read_text()] for file in sorted(folder.glob("*.book"))]


def main(url: str, name: str, number: int, folder: Path, options: Options) -> None:
    end = threading.Event()

    def wait() -> None:
        wait_for_the_end()
        end.set()

    threading.Thread(target=wait, daemon=True).start()
    with Engine(url, name=name, timeout=60.0) as engine, (folder / f"{number}.book").open("a", buffering=1) as book:
        say("under way")
        Taker(engine, url, book.write, options, number).run(end)


if __name__ == "__main__":
    main(
        sys.argv[1],
        sys.argv[2],
        int(sys.argv[3]),
        Path(sys.argv[4]),
        msgspec.json.decode("".join(sys.argv[5:]) or "{}", type=Options),
    )
