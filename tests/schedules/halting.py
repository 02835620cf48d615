"""A dispatcher process that halts itself while it pushes occurrences, the first time that it gets there:

    python -m tests.schedules.halting URL NAME SHARDS (intended | pushed) (SIGKILL | SIGSTOP) [AHEAD_MS]

Says a line when it runs. ``intended``: the occurrences are written to the schedule's state, and not pushed;
``pushed``: they are pushed, and the state does not say so yet. ``AHEAD_MS``: the time from the push of an
occurrence to its instant.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from shardq import Engine
from shardq.core.operation import Operation
from shardq.features.schedules import known, occurrences, pushing_ahead
from tests.support.workers import say, wait_for_the_end


def main(url: str, name: str, shards: int, point: str, number: signal.Signals) -> None:
    push = pushing_ahead._push
    halted = False

    def halt(here: str) -> None:
        nonlocal halted
        if here == point and not halted:
            halted = True
            os.kill(os.getpid(), number)

    def halting(*args: Any) -> Operation[Any]:
        halt("intended")
        result = yield from push(*args)
        halt("pushed")
        return result

    pushing_ahead._push = halting  # type: ignore[assignment]  # the same arguments
    with Engine(url, name=name, shards=shards) as engine:
        engine.start()
        say("running")
        wait_for_the_end()


if __name__ == "__main__":
    if sys.argv[6:]:
        for module in (occurrences, known):
            vars(module).update(LEAD_MS=int(sys.argv[6]), HORIZON_MS=int(sys.argv[6]))
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], signal.Signals[sys.argv[5]])
