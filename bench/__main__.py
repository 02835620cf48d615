"""``python -m bench``: ``command``."""

from __future__ import annotations

import sys

from cluster.entry import run


def _main() -> int:
    from bench.children import silence_advice
    from bench.command import main

    silence_advice()
    return main()


if __name__ == "__main__":
    sys.exit(run(_main))
