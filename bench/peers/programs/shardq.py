"""shardq by its public API: ``push_iter``, and one process with pollers and a worker."""

from __future__ import annotations

from collections.abc import Sequence

from bench.peers.programs import kit
from shardq import Delivery, Engine, Task


def push() -> None:
    with Engine(kit.url(), name="peers") as engine:

        def push_all(dues: Sequence[float]) -> None:
            for _ in engine.push_iter(Task(kit.payload(due), at=due) for due in dues):
                pass

        kit.serve_sync(push_all, chunk=100_000)


def work() -> None:
    with Engine(kit.url(), name="peers") as engine:
        engine.start()
        worker = engine.worker()

        @worker.on("")
        def handle(delivery: Delivery) -> None:
            kit.handled(delivery.payload)

        worker.run()


if __name__ == "__main__":
    push() if kit.role() == "push" else work()
