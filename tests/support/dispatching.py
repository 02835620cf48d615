"""A dispatcher process: ``python -m tests.support.dispatching URL NAME SHARDS``. Says its process name when it runs."""

from __future__ import annotations

import sys

from shardq import Engine
from tests.support.workers import say, wait_for_the_end


def main(url: str, name: str, shards: int) -> None:
    with Engine(url, name=name, shards=shards) as engine:
        before = set(engine.stats().dispatchers)
        engine.start()
        say(",".join(set(engine.stats().dispatchers) - before))
        wait_for_the_end()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
