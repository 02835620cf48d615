"""A dispatcher process: ``python -m tests.support.dispatching URL NAME SHARDS [OPTIONS]``, the options of its engine in
JSON. Says its process name when it runs.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from shardq import Engine
from tests.support.workers import say, wait_for_the_end


def main(url: str, name: str, shards: int, options: dict[str, Any]) -> None:
    with Engine(url, name=name, shards=shards, **options) as engine:
        before = set(engine.stats().dispatchers)
        engine.start()
        say(",".join(set(engine.stats().dispatchers) - before))
        wait_for_the_end()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), msgspec.json.decode("".join(sys.argv[4:]) or "{}"))
