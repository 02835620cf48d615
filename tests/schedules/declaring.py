"""A process that declares a schedule when it is told to: ``python -m tests.schedules.declaring URL NAME TIMES``.

It says a line when it is ready, and another when it has declared the schedule that often.
"""

from __future__ import annotations

import sys

from shardq import Engine
from tests.support.workers import say


def main(url: str, name: str, times: int) -> None:
    with Engine(url, name=name) as engine:
        engine.open()
        say("ready")
        sys.stdin.readline()
        for _ in range(times):
            engine.every("tick", interval=1, topic="t", payload={"n": 1}, catch_up="all")
        say("done")
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
