"""An engine that goes through a fork: ``python -m tests.support.forking URL NAME``. Says OK, or what was wrong.

In a process of its own: a fork of a process full of threads is what no test runner should be.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback

from shardq import Engine, EngineClosed
from tests.support.states import claim, state_of
from tests.support.waiting import wait_until
from tests.support.workers import say


def child(engine: Engine) -> None:
    """What must hold in the child."""
    for order in (lambda: engine.push("x"), lambda: engine.get("one"), engine.stats):
        said = ""
        try:
            order()
        except EngineClosed as exc:
            said = str(exc)
        assert "fork" in said, said
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("shardq")] == []
    engine.start()
    wait_until(lambda: len(engine.stats().dispatchers) == 2, "the child is another member")
    engine.push("of the child", topic="child")
    (delivery,) = claim(engine.consumer("child"), 1)
    assert delivery.payload == "of the child"
    engine.close()


def parent(engine: Engine) -> None:
    """The parent goes on as if nothing had happened."""
    assert state_of(engine, engine.push("x", delay=3600)) == "scheduled"
    engine.push("of the parent", topic="parent")
    (delivery,) = claim(engine.consumer("parent"), 1)
    assert delivery.payload == "of the parent"
    wait_until(lambda: engine.stats().healthy, "every poller of the parent is well")


def main(url: str, name: str) -> None:
    engine = Engine(url, name=name, shards=4, timeout=10.0)
    engine.start()
    engine.push("x", delay=3600, id="one")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child(engine)
            code = 0
        except BaseException:  # noqa: BLE001  whatever it is, the test shows it, and the child goes no further
            say(traceback.format_exc().replace("\n", " | "))
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    parent(engine)
    engine.close()
    say("OK" if status == 0 else f"the child ended with {status}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
