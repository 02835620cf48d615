"""Programs that take a stream of quick tasks with ``prefetch=True``, and what they hold ahead."""

from __future__ import annotations

from shardq import Consumer, Delivery, Engine, Task
from tests.support.states import counted
from tests.support.waiting import wait_until

TASKS = 2000
AT_ONCE = 5


def filled(engine: Engine, count: int = TASKS, topic: str = "") -> list[str]:
    """Pushes tasks of one attempt: one that is held until its lease ends would be dead."""
    ids = engine.push_many([Task(n, topic=topic, max_attempts=1) for n in range(count)])
    wait_until(lambda: counted(engine).ready == count, "all are ready")
    return list(map(str, ids))


def hold_ahead(engine: Engine, consumer: Consumer) -> list[str]:
    """Works until something is claimed ahead. Returns the ids of what was done; nothing else is held."""
    done: list[Delivery] = []

    def ahead() -> bool:
        for _ in range(10):
            deliveries = consumer.claim(AT_ONCE)
            assert deliveries, "there is more"
            consumer.ack(deliveries)
            done.extend(deliveries)
        return counted(engine).leased > 0

    wait_until(ahead, "something is claimed ahead")
    return [delivery.id for delivery in done]


def drained(consumer: Consumer, count: int) -> list[str]:
    """Takes so many tasks, each in its first attempt, and acks them."""
    done: list[str] = []

    def all_done() -> bool:
        deliveries = consumer.claim(min(100, count - len(done)), wait=0.2)
        assert {delivery.attempt for delivery in deliveries} <= {1}
        consumer.ack(deliveries)
        done.extend(delivery.id for delivery in deliveries)
        return len(done) >= count

    wait_until(all_done, f"{count} tasks are done")
    return done
