"""A producer process: ``python -m tests.support.pushing URL NAME COUNT SPREAD_S FILE``.

Pushes tasks due at random instants, each with its instant as payload, and writes their ids to the file. Also called
as a function, by threads of a test.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator

from shardq import Engine, Task
from tests.support.workers import say, wait_for_the_end


def push_spread(engine: Engine, count: int, spread_s: float) -> list[str]:
    """Pushes so many tasks, due within ``spread_s`` from the moment each is made; their ids."""

    def tasks() -> Iterator[Task]:
        for _ in range(count):
            at = time.time() + random.uniform(0, spread_s)
            yield Task(at, at=at)

    return [id for ids in engine.push_iter(tasks()) for id in ids]


def main(url: str, name: str, count: int, spread_s: float, file: str) -> None:
    with Engine(url, name=name) as engine:
        ids = push_spread(engine, count, spread_s)
    with open(file, "w", encoding="ascii") as out:  # noqa: PTH123  a path given as text
        out.writelines(f"{id}\n" for id in ids)
    say("pushed")
    wait_for_the_end()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
