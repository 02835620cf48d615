"""A producer process: ``python -m tests.support.debouncing URL NAME ID COUNT DELAY_S``.

Pushes one id again and again, each push in place of the task before, with a payload of its own.
"""

from __future__ import annotations

import os
import sys

from shardq import Engine
from tests.support.workers import say, wait_for_the_end


def main(url: str, name: str, id: str, count: int, delay_s: float) -> None:
    with Engine(url, name=name) as engine:
        for n in range(count):
            engine.push([os.getpid(), n], id=id, delay=delay_s, on_conflict="replace")
    say("pushed")
    wait_for_the_end()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
