"""A bulk action in a process: ``python -m tests.support.bulk_action URL NAME cancel|requeue``. Says how many tasks are
done after each page, and waits for a line before the next one.
"""

from __future__ import annotations

import sys

from shardq import BulkResult, Engine
from tests.support.workers import say


def main(url: str, name: str, verb: str) -> None:
    def page(so_far: BulkResult) -> None:
        say(str(so_far.done))
        sys.stdin.readline()

    with Engine(url, name=name) as engine:
        if verb == "cancel":
            engine.cancel_all(everything=True, progress=page)
        else:
            engine.requeue_all(everything=True, progress=page)


if __name__ == "__main__":
    main(*sys.argv[1:])
