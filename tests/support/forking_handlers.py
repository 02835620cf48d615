"""Handlers that fork: ``python -m tests.support.forking_handlers WHERE URL NAME``. Says OK, or what was wrong.

In a process of its own, as ``forked_engines``.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from shardq import Bury, Delivery, Engine, Retry
from tests.support.states import state_of
from tests.support.waiting import wait_until
from tests.support.workers import say

STUCK_S = 90.0

CHILD_S = 25.0
"""For one child to end."""


def raising(exc: Callable[[], BaseException]) -> Callable[[], None]:
    def act() -> None:
        raise exc()

    return act


ACTS: dict[str, tuple[Callable[[], None], int]] = {
    "exit": (sys.exit, 0),
    "exit 3": (lambda: sys.exit(3), 3),
    "exit with a text": (lambda: sys.exit("a text"), 1),
    "error": (raising(lambda: ValueError("of the child")), 1),
    "retry": (raising(lambda: Retry(delay=3600)), 1),
    "bury": (raising(lambda: Bury("of the child")), 1),
    "interrupt": (raising(KeyboardInterrupt), 1),
    "return": (lambda: None, 0),
}
"""What a child does, and the code that it ends with."""

codes: dict[str, int | str] = {}
runs: Counter[str] = Counter()


def fork(delivery: Delivery) -> None:
    runs[delivery.payload] += 1
    pid = os.fork()
    if not pid:
        ACTS[delivery.payload][0]()
        return
    codes[delivery.payload] = ended(pid)


def ended(pid: int) -> int | str:
    until = time.monotonic() + CHILD_S
    while time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "it did not end"


async def fork_in_a_coroutine(delivery: Delivery) -> None:
    fork(delivery)


def nothing(delivery: Delivery) -> None:
    runs["handled"] += 1


class Forking:
    def before(self, delivery: Delivery) -> None:
        fork(delivery)


def of_multiprocessing(delivery: Delivery) -> None:
    runs[delivery.payload] += 1
    process = multiprocessing.get_context("fork").Process(target=ACTS[delivery.payload][0])
    process.start()
    process.join(CHILD_S)
    codes[delivery.payload] = "it did not end" if process.exitcode is None else process.exitcode


HANDLERS: dict[str, Callable[[Delivery], Any]] = {
    "function": fork,
    "coroutine": fork_in_a_coroutine,
    "hook": nothing,
    "multiprocessing": of_multiprocessing,
}


def main(where: str, url: str, name: str) -> None:
    with Engine(url, name=name, shards=1) as engine:
        engine.start()
        worker = engine.worker(concurrency=1, max_attempts=1)
        worker.on("")(HANDLERS[where])
        if where == "hook":
            worker.use(Forking())
        ids = [engine.push(payload) for payload in ACTS]

        def settled() -> bool:
            return len(codes) == len(ACTS) and {state_of(engine, id) for id in ids} == {"gone"}

        with running(worker):
            wait_until(settled, "all are handled and acknowledged", timeout=STUCK_S - 20)
    assert codes == {payload: code for payload, (_, code) in ACTS.items()}, codes
    assert all(runs[payload] == 1 for payload in ACTS), runs
    assert runs["handled"] == (len(ACTS) if where == "hook" else 0)


def running(worker: Any) -> Any:
    from tests.support.engines import Engines

    return Engines("sync").working(worker)


if __name__ == "__main__":
    signal.alarm(int(STUCK_S))  # which a child does not inherit
    main(*sys.argv[1:])
    say("OK")
