"""A relay of an outbox, whose engine has a far store in the same database, and far tasks that are soon near: ``python
-m tests.support.far_relaying AFTER_S MARGIN_S URL NAME DATABASE``. Says its process id when it runs.
"""

from __future__ import annotations

import os
import sys

from shardq import Engine
from shardq.features.far import far, rows
from shardq.outbox import OutboxRelay
from tests.support.workers import say, wait_for_the_end


def main(after_s: float, margin_s: float, url: str, name: str, database: str) -> None:
    rows.MARGIN_S = margin_s
    vars(far)["LEAST_AHEAD_S"] = 0.1
    with Engine(url, name=name, far=database, ahead=after_s) as engine, OutboxRelay(engine, database):
        say(str(os.getpid()))
        wait_for_the_end()


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:])
