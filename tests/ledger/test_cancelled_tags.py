"""The ledger of tags: 20,000 tasks of 50 tags in every state, half of whose tags are cancelled while the number of
shards goes from 2 to 16, three processes dispatch and move, of which one is killed in the middle, and a consumer takes
what is due. Then every task is accounted for: those of a cancelled tag were cancelled, or given out before; all others
are given out once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from shardq import BulkResult, Delivery, Engine, Task
from tests.support.states import FAR_S, claim
from tests.support.waiting import wait_until
from tests.support.workers import Worker

pytestmark = pytest.mark.ledger

TAGS = 50
CANCELLED = {f"tag{n}" for n in range(0, TAGS, 2)}

PARTS = {"soon": 10_000, "far": 4000, "idle": 4000, "held": 1000, "sick": 1000}
"""Topic → tasks. Those of ``soon`` become due and are taken all the time; ``far`` waits for longer than the test;
``idle`` is ready, and nobody takes it; ``held`` is leased, ``sick`` dead.
"""

SOON_S = 12.0


def tag_of(n: int) -> str:
    return f"tag{n % TAGS}"


def pushed(engine: Engine) -> None:
    """The payload of a task is its number; the tags of every part are the same."""
    numbers = iter(range(sum(PARTS.values())))
    for topic, count in PARTS.items():
        delay, window = {"soon": (0.5, SOON_S), "far": (FAR_S, None)}.get(topic, (0, None))
        engine.push_many(
            [
                Task(n, topic=topic, delay=delay, window=window, tags=["all", tag_of(n)])
                for _, n in zip(range(count), numbers, strict=False)
            ]
        )


class Taker:
    """A thread that takes what is due of ``soon``, and notes when."""

    def __init__(self, engine: Engine) -> None:
        self.taken: list[tuple[int, float]] = []
        """Number of the task, and when it was asked for."""
        self._consumer = engine.consumer("soon", lease=120)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._end.is_set():
            asked = time.monotonic()
            given = self._consumer.claim(200, wait=0.1)
            self.taken += [(delivery.payload, asked) for delivery in given]
            self._consumer.ack(given)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._end.set()
            self._thread.join()
            self._consumer.close()


def all_of(engine: Engine, topic: str, count: int) -> list[Delivery]:
    """Everything that becomes ready in a topic, so many tasks, taken and done."""
    consumer = engine.consumer(topic, lease=120)
    found = claim(consumer, count)
    assert consumer.claim(10) == []
    consumer.ack(found)
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("url", ["cluster"], indirect=True)
def test_every_task_of_fifty_tags(url: str, name: str) -> None:
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(url, name=name, shards=2))
        dispatchers = [stack.enter_context(Worker("tests.support.dispatching", url, name, 2)) for _ in range(3)]
        assert all(dispatcher.said() for dispatcher in dispatchers)
        pushed(engine)
        holder = engine.consumer("held", lease=600)
        held = claim(holder, PARTS["held"])
        sick = engine.consumer("sick", lease=600)
        sick.bury(claim(sick, PARTS["sick"]), "of no use")
        wait_until(lambda: engine.stats().ready >= PARTS["idle"], "what is idle is ready")

        outcomes: dict[str, BulkResult] = {}
        until: dict[str, float] = {}
        taker = Taker(engine)
        with taker.running():
            for step, tag in enumerate(sorted(CANCELLED)):
                match step:
                    case 2:
                        engine.resize(8, rate=4000)
                    case 6:
                        dispatchers[0].kill()
                    case 10:
                        engine.resize(16)  # while the last one goes on
                outcomes[tag] = engine.cancel_all(tag=tag)
                until[tag] = time.monotonic()
            others = sum(tag_of(n) not in CANCELLED for n in range(PARTS["soon"]))

            def all_taken() -> bool:
                return sum(tag_of(n) not in CANCELLED for n, _ in list(taker.taken)) >= others

            wait_until(all_taken, "what is due of the other tags is taken", timeout=90)

        # What was held runs on: so it was told, and so it ends.
        ids = {delivery.id: delivery.payload for delivery in held}
        for tag, outcome in outcomes.items():
            told = {ids[id] for id in outcome.running if id in ids}
            assert told == {n for n in ids.values() if tag_of(n) == tag}
        holder.ack(held)
        # The dead and what is far away are given out now.
        assert engine.requeue_all("sick").done == PARTS["sick"] // 2
        rest = [delivery.payload for topic in ("idle", "sick") for delivery in all_of(engine, topic, PARTS[topic] // 2)]
        done = [n for n, _ in taker.taken] + rest + list(ids.values())
        assert [n for n, times in Counter(done).items() if times > 1] == []
        assert [n for n in rest if tag_of(n) in CANCELLED] == []
        # None was given out to a claim that began after its tag was cancelled.
        assert [n for n, asked in taker.taken if tag_of(n) in CANCELLED and asked > until[tag_of(n)]] == []
        ended = Counter(map(tag_of, done))
        for tag, outcome in outcomes.items():
            assert outcome.done + ended[tag] == sum(PARTS.values()) // TAGS, (tag, outcome)
        assert engine.resize(dry_run=True).wait(90), engine.resize(dry_run=True).progress()
        # What is far away and has another tag is all that is left, and goes with the tag that it has, too.
        left = engine.cancel_all(tag="all")
        assert (left.done, left.running, left.looked_at) == (PARTS["far"] // 2, (), PARTS["far"] // 2)
        stats = engine.stats()
        assert (stats.scheduled, stats.leased, stats.dead) == (0, 0, 0)
