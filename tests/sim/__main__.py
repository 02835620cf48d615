"""``make sim``: as many runs as the time allows, half of it simulated, half compared with real servers. Ends with 1 at
the first that shows a fault, and tells it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from cluster.server import Server
from cluster.servers import DEFAULT, KINDS, binary, found, version
from tests.sim.conformance.comparing import Comparison
from tests.sim.conformance.sides import OPTIONS, Real
from tests.sim.simulation.runs import run

ON_SERVER_CLOCK = 10
"""One run in so many goes by the server's own clock."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("--minutes", type=float, help="how long (default: 1, without --calls)")
    parser.add_argument("--calls", type=int, help="only compare, until it were so many calls on each server")
    parser.add_argument("--seed", type=int, default=1, help="the number of the first run (default: %(default)s)")
    parser.add_argument(
        "--server", default=DEFAULT, choices=(*KINDS, "all"), help="the kind of server (default: %(default)s)"
    )
    options = parser.parse_args()
    minutes = options.minutes or (None if options.calls else 1.0)
    if minutes is not None and options.calls is None and not simulated(options.seed, seconds=minutes * 30):
        return 1
    kinds = list(found()) if options.server == "all" else [options.server]
    differs = False
    for kind in kinds:
        seconds = None if minutes is None else minutes * 30 / len(kinds)
        differs = not compared(kind, options.seed, seconds=seconds, calls=options.calls) or differs
    for kind in set(KINDS) - set(found()) if options.server == "all" else ():
        print(f"{kind}: not found on this machine")
    return int(differs)


def simulated(seed: int, *, seconds: float) -> bool:
    """Simulates runs. Returns True if they violate nothing."""
    end, number, requests = time.monotonic() + seconds, seed, 0
    reached: Counter[str] = Counter()
    while number == seed or time.monotonic() < end:
        told = run(number)
        if told.violation:
            print(told)
            return False
        requests += told.requests
        reached += told.reached
        number += 1
    rarest = ", ".join(f"{what} {count}" for what, count in reached.most_common()[-5:])
    print(f"simulated: runs {seed} to {number - 1}: {requests:,} requests without a violation (rarest: {rarest})")
    return True


def compared(kind: str, seed: int, *, seconds: float | None, calls: int | None) -> bool:
    """Compares the model with a server, run by run. Returns True if they are the same."""
    end = None if seconds is None else time.monotonic() + seconds
    program = binary(kind)
    with Server(program, options=OPTIONS) as server, Real(server) as real:
        comparison = Comparison(kind, real)
        number = seed
        while number == seed or (
            (end is None or time.monotonic() < end) and (calls is None or comparison.tally.calls.total() < calls)
        ):
            difference = comparison.run(number)
            if difference is None and number % ON_SERVER_CLOCK == 0:
                difference = comparison.run_on_server_clock(number)
            if difference is not None:
                print(f"{version(program)}: {difference}")
                return False
            number += 1
        print(f"{version(program)}: runs {seed} to {number - 1}: {comparison.tally}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
