"""The lateness of tasks on an idle machine, with default settings.

It is measured from the instant a task is due to three others:

- *ready*: its id is in the ready list, by the server's own stamp of the command that puts it there (see ``monitor``).
- *claimed*: a consumer that waits in ``claim`` has it.
- *handler*: the worker's handler, a function or a coroutine, is at its first line.

The due time is an instant of the server's clock, which on one machine is that of the client too. Pollers, consumer and
worker are one process, as in a service that embeds the engine.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

from bench.consuming import working
from bench.figures import Figure, lateness
from bench.monitor import Monitor
from bench.stand import Stand, Suite
from shardq import Delivery, Engine, Task, Worker

LEAD_S = 1.0
"""The time before the first task is due: pushing is over, and everything sleeps."""

PER_S = 50
"""The mean rate. Tasks come some 20 ms apart, so that the next finds the machine idle."""

GRACE_S = 5.0
"""The wait after the last was due. Tasks that have not come by then are reported as missing."""


def _measure(stand: Stand) -> Iterator[Figure]:
    count = stand.pick(50, 500)
    stand.say(f"due → ready, {count} tasks")
    yield lateness("due → ready", _ready(stand, count), expected=count, aim="aim: p50 ≤ 1.5, p99 ≤ 5")
    stand.say(f"due → claimed, {count} tasks")
    yield lateness("due → claimed by a waiting consumer", _claimed(stand, count), expected=count, aim="")
    aim = "aim: p50 ≤ 2.5, p99 ≤ 8"
    stand.say(f"due → handler, {count} tasks")
    late_ms = _handled(stand, count, _function)
    yield lateness("due → handler of a worker (function)", late_ms, expected=count, aim=aim)
    stand.say(f"due → handler, {count} tasks, coroutine")
    late_ms = _handled(stand, count, _coroutine)
    yield lateness("due → handler of a worker (coroutine)", late_ms, expected=count, aim=aim)


SUITE = Suite("lateness", "from due to ready, claimed and handled, on an idle machine", _measure)


def _push(engine: Engine, count: int) -> dict[str, int]:
    """Pushes tasks due at random instants, each with its instant as payload. Returns due times in ms by id."""
    begin_ms = time.time_ns() // 1_000_000 + int(LEAD_S * 1000)
    dues = [begin_ms + random.randrange(1000 * count // PER_S) for _ in range(count)]
    ids = engine.push_many([Task(due_ms, at=due_ms / 1000) for due_ms in dues])
    return dict(zip(ids, dues, strict=True))


def _late_ms(delivery: Delivery) -> float:
    due_ms: int = delivery.payload
    return time.time_ns() / 1e6 - due_ms


def _until_late(dues: dict[str, int], done: Callable[[], bool]) -> None:
    """Waits until it is done, or too late for it."""
    deadline_s = max(dues.values()) / 1000 + GRACE_S
    while not done() and time.time() < deadline_s:
        time.sleep(0.05)


def _ready(stand: Stand, count: int) -> list[float]:
    with stand.engine() as engine:
        engine.start()
        dues = _push(engine, count)
        with Monitor(stand.masters) as monitor:
            # nobody looks at a server meanwhile
            time.sleep(max(0.0, max(dues.values()) / 1000 - time.time()) + 0.5)
    late_ms = []
    for command in monitor.executed():
        if command.in_script and command.words[0].upper() == b"RPUSH":
            ids = [word.decode() for word in command.words[2:]]
            late_ms += [command.at_us / 1000 - dues[id] for id in ids if id in dues]
    return late_ms


def _claimed(stand: Stand, count: int) -> list[float]:
    with stand.engine() as engine:
        engine.start()
        return claimed(engine, count)


def claimed(engine: Engine, count: int) -> list[float]:
    """The latenesses in ms of tasks that are claimed by a consumer of this process. The engine is started."""
    late_ms: list[float] = []
    consumer = engine.consumer()

    def consume() -> None:
        # a closed consumer returns nothing
        while deliveries := consumer.claim(10, wait=GRACE_S + LEAD_S):
            late_ms.extend(map(_late_ms, deliveries))
            consumer.ack(deliveries)

    thread = threading.Thread(target=consume, name="consumer")
    thread.start()
    try:
        dues = _push(engine, count)
        _until_late(dues, lambda: len(late_ms) >= count)
    finally:
        consumer.close()
        thread.join()
    return late_ms


def _function(worker: Worker, late_ms: list[float]) -> None:
    @worker.on("")
    def handle(delivery: Delivery) -> None:
        late_ms.append(_late_ms(delivery))


def _coroutine(worker: Worker, late_ms: list[float]) -> None:
    @worker.on("")
    async def handle(delivery: Delivery) -> None:
        late_ms.append(_late_ms(delivery))


def _handled(stand: Stand, count: int, register: Callable[[Worker, list[float]], None]) -> list[float]:
    late_ms: list[float] = []
    with stand.engine() as engine:
        engine.start()
        worker = engine.worker()
        register(worker, late_ms)
        with working(worker):
            dues = _push(engine, count)
            _until_late(dues, lambda: len(late_ms) >= count)
    return late_ms
