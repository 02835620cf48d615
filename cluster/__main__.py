"""``python -m cluster``: ``command``."""

from __future__ import annotations

import sys

from cluster.entry import run


def _main() -> int:
    from cluster.command import main

    return main()


if __name__ == "__main__":
    sys.exit(run(_main))
