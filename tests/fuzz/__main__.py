"""``make fuzz``: rounds of the tests of this folder until the time is over, with more examples than in `make test`, and
others in each round. Ends with 1 at the first round that fails, and tells how to repeat it.
"""

from __future__ import annotations

import argparse
import secrets
import subprocess
import sys
import time

PYTEST = (
    *(sys.executable, "-m", "pytest", "tests/fuzz", "-n", "0", "-q", "--timeout", "3600"),
    *("-p", "no:cacheprovider", "--hypothesis-profile=fuzz"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="when no other round begins (default: %(default)g)")
    parser.add_argument("--seed", type=int, help="of the first round (default: a random one)")
    options = parser.parse_args()
    seed = secrets.randbelow(10**9) if options.seed is None else options.seed
    end, rounds = time.monotonic() + 60 * options.minutes, 0
    while not rounds or time.monotonic() < end:
        began = time.monotonic()
        if subprocess.run([*PYTEST, f"--hypothesis-seed={seed}"], check=False).returncode:
            print(
                f"The round with the seed {seed} failed. To repeat it: make fuzz MINUTES=0 SEED={seed}. To repeat the "
                "example alone: put its @reproduce_failure, from above, at the property, and run that with "
                "--hypothesis-profile=fuzz."
            )
            return 1
        rounds += 1
        print(f"round {rounds}, seed {seed}: {time.monotonic() - began:.0f} s without a failure", flush=True)
        seed += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
