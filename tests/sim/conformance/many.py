"""Many calls, on the model and on real servers, side by side."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from cluster.server import Server
from cluster.servers import binary, version
from tests.sim.branches.points import instrumented
from tests.sim.branches.reached import Reached, counting
from tests.sim.conformance.comparing import Comparison
from tests.sim.conformance.sides import OPTIONS, Real

ON_SERVER_CLOCK = 10
"""One run in so many goes by the server's own clock."""

OF_SIMULATED_RUNS = 10
"""One run in so many is of what simulated runs have called; the others are drawn for the purpose."""


def compared(
    kind: str, first: int, *, seconds: float | None, calls: int | None, branches: Reached | None = None
) -> bool:
    """Compares the model with a server, run by run, from that number on, until it were so many calls or the time is
    over. Returns True if they are the same. ``branches``: those that calls take are counted, and added to it.
    """
    if branches is None:
        return _compared(Comparison, kind, first, seconds, calls)
    with counting(of_modules=False) as reached:
        same = _compared(partial(Comparison, instead=instrumented(keyed=True)), kind, first, seconds, calls)
    branches += reached
    return same


def _compared(
    made: Callable[[str, Real], Comparison], kind: str, first: int, seconds: float | None, calls: int | None
) -> bool:
    end = None if seconds is None else time.monotonic() + seconds
    program = binary(kind)
    with Server(program, options=OPTIONS) as server, Real(server) as real:
        comparison = made(kind, real)
        number = first
        while number == first or (
            (end is None or time.monotonic() < end) and (calls is None or comparison.tally.calls.total() < calls)
        ):
            difference = comparison.run(number) if number % OF_SIMULATED_RUNS else comparison.replay(number)
            if difference is None and number % ON_SERVER_CLOCK == 0:
                difference = comparison.run_on_server_clock(number)
            if difference is not None:
                print(f"{version(program)}: {difference}")
                return False
            number += 1
        print(f"{version(program)}: runs {first} to {number - 1}: {comparison.tally}", flush=True)
    return True
