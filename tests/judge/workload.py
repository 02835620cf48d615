"""Programs that use an engine as services do, each by a generator of random numbers: pushing in every way, claiming and
settling in every way, orders by id and on many tasks, changes of the number of shards and of settings, looking on.

They know only the public names, so the same programs run in a simulation and as processes on real servers.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardq import Delivery, Hold, Resize, Snooze
from shardq.core.layout.lanes import key_of, unique_of
from shardq.core.model.ids import topic_of
from tests.judge.model import Op
from tests.judge.verdict import OCCURRENCE
from tests.judge.witness import Witness

TOPICS = ("", "mail")

SCHEDULES = {"tick": "mail", "tock": ""}
"""The names of schedules, and their topics."""

TAGS = ("red", "blue")

LIMITS_OF_KEYS: Sequence[Mapping[str, Any]] = (
    {},
    {"per_key": 1},
    {"per_key": 3},
    {"per_key": 2, "per_key_rate": 20},
    {"per_key": 1, "on_failure": "skip"},
)
"""What each key of a topic may take, beside the others."""

MOST_OF_A_KEY = 3
"""The most of them that are out at once."""

RATES = (None, None, None, 5, 40)
"""Tasks a second that are moved in a change of the number of shards."""

PADDING = 100_000
"""Bytes of a task of which few go into one request."""


class WentWrong(Exception):
    """What handlers raise now and then."""


@dataclass
class Place:
    """Where a program runs."""

    pause: Callable[[float], object]
    is_over: Callable[[], bool]
    """True when programs are to come to their ends."""


@dataclass
class Scale:
    """How much is done."""

    ids: Sequence[str] = ("a", "b", "c", "mail/a", "mail/b")
    """Those that callers choose, with their topics, and the keys of those that have one."""
    keys: Sequence[str] = ()
    """Keys that every other task has whose id the engine makes; none where tasks have no keys."""
    batch: int = 3
    """Tasks that are pushed or claimed together, at most."""
    pause: float = 0.5
    """Seconds between two calls of a program, at most."""
    delays: Sequence[float] = (0.0, 0.0, 0.005, 0.3, 2.0, 4.0)
    lease: float = 5.0
    held: Sequence[float] = (0.0, 0.0, 0.05, 1.0, 3.0, 7.0)
    """Seconds for which a consumer keeps what it claimed."""
    shards: Sequence[int] = (1, 2, 3, 5)
    durable: bool = False
    """True where some pushes are to be durable."""
    durability: str = "replicated"
    large: float = 0.0
    """How many of the pushes have more than one request takes."""


@dataclass
class Program:
    witness: Witness
    place: Place
    draw: random.Random
    scale: Scale
    known: list[str] = field(default_factory=list)
    """Ids that this program was told lately."""
    running: dict[tuple[str, str], Delivery] = field(default_factory=dict)
    """What handlers of a worker have now."""

    def _rest(self) -> None:
        self.place.pause(self.draw.random() * self.scale.pause)

    def _note(self, ids: Sequence[str]) -> None:
        self.known = [*self.known, *filter(None, ids)][-50:]

    def _an_id(self) -> str:
        return self.draw.choice([*self.scale.ids, *self.known[-8:]])

    # ---- pushing

    def produce(self, calls: int) -> None:
        for _ in range(calls):
            if self.place.is_over():
                return
            self._rest()
            self.push_some()

    def push_some(self) -> None:
        draw, witness = self.draw, self.witness
        durability = self.scale.durability if self.scale.durable and draw.random() < 0.3 else None
        if draw.random() < self.scale.large:
            self._push_large()
            return
        if draw.random() < 0.5:
            ids = draw.sample(self.scale.ids, draw.randint(1, min(2, len(self.scale.ids))))
            tasks = [self._task(id) for id in ids]
        else:
            tasks = [self._task("") for _ in range(draw.choice((1, 1, self.scale.batch)))]
        if len(tasks) == 1 and draw.random() < 0.7:
            self._note([witness.push(*tasks[0], durability=durability)])
        else:
            self._note(witness.push_many(tasks, durability=durability))

    def _push_large(self) -> None:
        """Some ids again and again, some with much in them; without the garbage collector, as some programs are."""
        draw = self.draw
        tasks = [self._task(id) for id in draw.choices(self.scale.ids, k=draw.choice((2, 3, 5)))]
        if draw.random() < 0.5:
            tasks = [self._task(id, padding=PADDING) for id in draw.choices(self.scale.ids[:2], k=5)]
        gc.disable()
        try:
            self._note(self.witness.push_many(tasks))
        finally:
            gc.enable()

    def _task(self, id: str, padding: int = 0) -> tuple[Any, Op]:
        draw = self.draw
        topic, key, unique = (topic_of(id), key_of(id), unique_of(id)) if id else (draw.choice(TOPICS), None, "")
        if self.scale.keys and not id and draw.random() < 0.5:
            key = draw.choice(self.scale.keys)
        options: dict[str, Any] = {"delay": draw.choice(self.scale.delays), "topic": topic, "key": key or ""}
        if id:
            options |= {"id": unique, "mode": draw.choice(("keep", "keep", "reject", "replace"))}
            options |= {"dedup": draw.choice((0.0, 0.0, 60.0))}
        options |= {"limit": draw.choice((0, 0, 1, 2, 3))}
        if draw.random() < 0.1:
            options |= {"expires": options["delay"] + draw.choice((1.0, 6.0))}
        if draw.random() < 0.2:
            options |= {"tag": draw.choice(TAGS)}
        return self.witness.task(**options, padding=padding)

    # ---- consuming

    def consume(self) -> None:
        draw = self.draw
        topics = draw.choice(([""], ["mail"], ["mail", ""], ["", "mail"]))
        consumer = self.witness.consumer(*topics, lease=self.scale.lease)
        while not self.place.is_over():
            deliveries = consumer.claim(draw.randint(1, self.scale.batch), wait=draw.choice((0.0, 0.5, 3.0)))
            if not deliveries:
                self.place.pause(0.02)
                continue
            self._note([each.id for each in deliveries])
            self.place.pause(draw.choice(self.scale.held))
            if draw.random() < 0.25:
                consumer.settle("extend", deliveries, delay=self.scale.lease)
                self.place.pause(draw.choice(self.scale.held))
            if draw.random() < 0.05:
                continue  # it forgets them: their leases run out
            acked = [each for each in deliveries if draw.random() < 0.7]
            rest = [each for each in deliveries if each not in acked]
            held = [each for each in rest if each.key is not None and draw.random() < 0.3]
            if held:
                consumer.settle("hold", held, delay=draw.choice((0.05, 1.0, 3.0)))
                rest = [each for each in rest if each not in held]
            if acked:
                consumer.settle("ack", acked)
            if rest:
                consumer.settle(
                    draw.choice(("retry", "retry", "bury", "snooze")), rest, delay=draw.choice((0.0, 0.2, 2.0))
                )
            if draw.random() < 0.05:
                consumer.settle("ack", deliveries)  # once more, for nothing

    def work(self, concurrency: int = 4) -> Any:
        """A worker, for the caller to run and stop. What its handlers do is witnessed."""
        since_us = self.witness.now_us()
        worker = self.witness.engine.worker(concurrency=concurrency, lease=self.scale.lease, grace=1.0)

        def handle(delivery: Delivery) -> None:
            self.witness.given(delivery, since_us=since_us, lease=self.scale.lease)
            self.running[delivery.token, delivery.id] = delivery
            self.place.pause(self.draw.choice(self.scale.held))
            del self.running[delivery.token, delivery.id]
            if delivery.key is not None and self.draw.random() < 0.1:
                self.witness.concluded(delivery, "hold")
                raise Hold(1.0)
            fate = self.draw.random()
            if fate < 0.7:
                self.witness.concluded(delivery, "ack")
            elif fate < 0.85:
                self.witness.concluded(delivery, "snooze", delay=1.0)
                raise Snooze(1.0)
            else:
                self.witness.concluded(delivery, "retry")
                raise WentWrong("it went wrong")

        for topic in TOPICS:
            worker.on(topic)(handle)
        return worker

    def stopping(self) -> None:
        """The worker is about to stop: it gives back what runs on, and nobody hears of it."""
        for delivery in list(self.running.values()):
            self.witness.concluded(delivery, "snooze")

    # ---- orders

    def operate(self, calls: int) -> None:
        for _ in range(calls):
            if self.place.is_over():
                return
            self._rest()
            self.order()

    def order(self) -> None:
        draw, witness, engine = self.draw, self.witness, self.witness.engine
        kinds = ["cancel", "cancel", "reschedule", "requeue", "get", "get", "bulk"]
        kind = draw.choice([*kinds, "hold"] if self.scale.keys else kinds)
        if kind == "hold":
            until = draw.choice((None, time.time() + 0.3, time.time() + 3.0))
            witness.does("hold", engine.hold, draw.choice(TOPICS), key=draw.choice(self.scale.keys), until=until)
        elif kind == "get":
            witness.look(self._an_id())
        elif kind == "bulk":
            self._bulk()
        else:
            witness.order(kind, self._an_id(), delay=draw.choice(self.scale.delays))

    def _bulk(self) -> None:
        draw, engine, bulk = self.draw, self.witness.engine, self.witness.bulk
        topic, tag = draw.choice(TOPICS), draw.choice(TAGS)
        kind = draw.choice(("cancel", "requeue", "tag", "purge"))
        if kind == "cancel":
            bulk("cancel", [topic], lambda: engine.cancel_all(topic, state="dead"))
        elif kind == "requeue":
            bulk("requeue", [topic], lambda: engine.requeue_all(topic))
        elif kind == "tag":
            bulk("cancel", TOPICS, lambda: engine.cancel_all(tag=tag))  # only tasks of these have tags
        else:
            bulk("cancel", ["mail"], lambda: engine.purge("mail"))

    def administer(self, calls: int) -> None:
        draw, witness, engine = self.draw, self.witness, self.witness.engine
        for _ in range(calls):
            if self.place.is_over():
                return
            self.place.pause(draw.random() * 4 * self.scale.pause)
            topic = draw.choice(TOPICS)
            what = draw.choice(("resize", "resize", "resize", "follow", "pause", "limit", "configure"))
            if what == "resize":
                witness.does("resize", engine.resize, draw.choice(self.scale.shards), rate=draw.choice(RATES))
            elif what == "follow":
                self._follow(draw.choice(self.scale.shards))
            elif what == "pause" and witness.does("pause", engine.pause, topic):
                self._rest()
                while not witness.does("resume", engine.resume, topic):
                    self._rest()
            elif what == "limit":
                rate, at_once = draw.choice(((5, None), (None, 2), (50, 3)))
                of_keys = draw.choice(LIMITS_OF_KEYS) if self.scale.keys else {}
                witness.does("limit", engine.limit, "mail", rate, concurrency=at_once, **of_keys)
                self._rest()
                while not witness.does("limit", engine.limit, "mail", None):
                    self._rest()
            elif what == "configure":
                witness.does("configure", engine.configure, dead_age=draw.choice((86_400.0, 90_000.0)))

    def _follow(self, shards: int) -> None:
        """Asks what a change would move, begins it, makes it faster or slower, and waits for its end."""
        draw, witness, engine = self.draw, self.witness, self.witness.engine
        witness.does("estimate", lambda: engine.resize(shards, dry_run=True))
        if not witness.does("resize", engine.resize, shards, rate=draw.choice(RATES)):
            return
        witness.does("resize", engine.resize, shards, rate=draw.choice(RATES))
        changes: list[Resize] = []
        if not witness.does("follow", lambda: changes.append(engine.resize(dry_run=True))):  # each call has its timeout
            return
        witness.does("look", changes[0].progress)
        seconds = draw.choice((0.5, 3.0, 8.0))
        witness.waits("wait", seconds, lambda: changes[0].wait(seconds))

    def declare(self, calls: int) -> None:
        """Declares schedules, and takes them back. Their payloads are ``OCCURRENCE``."""
        draw, witness, engine = self.draw, self.witness, self.witness.engine
        for _ in range(calls):
            if self.place.is_over():
                return
            name = draw.choice(tuple(SCHEDULES))
            what = draw.choice(("every", "every", "pause", "resume", "remove"))
            if what == "every":
                interval = draw.choice((0.5, 1.0, 3.0))
                witness.does(
                    f"every {name}", engine.every, name, interval=interval, topic=SCHEDULES[name], payload=OCCURRENCE
                )
            else:
                witness.does(f"{what} {name}", getattr(engine.schedule(name), what))
            self.place.pause(draw.random() * 8 * self.scale.pause)

    def watch(self, calls: int) -> None:
        """Looks on: nothing of it may fail but for a server that is away."""
        engine = self.witness.engine
        looks: list[Callable[[], object]] = [
            engine.stats, engine.health, engine.fleet, engine.forecast, engine.schedules, engine.changes,
            lambda: engine.tasks("mail"), lambda: engine.tasks(everything=True), lambda: list(engine.dead()),
        ]  # fmt: skip
        if self.scale.keys:
            looks += [lambda: engine.keys("mail"), lambda: engine.tasks("mail", key=self.scale.keys[0])]
        for _ in range(calls):
            if self.place.is_over():
                return
            self._rest()
            self.witness.does("look", self.draw.choice(looks))
