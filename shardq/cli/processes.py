"""The life of a child process of ``run`` and ``work``. ``worker.supervisor`` watches the children."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from shardq.cli.options import Given
from shardq.cli.output import complain
from shardq.cli.words import in_options
from shardq.errors import ShardqError
from shardq.worker.supervisor import Work

MAX_PROCESSES = 1000
FAILED = 1


def child(given: Given, work: Callable[[], int | None]) -> Work:
    """Returns the life of a child that does this work; what goes wrong is said in a line."""

    def life() -> int | None:
        try:
            return work()
        except ShardqError as exc:
            if given.verbose:
                complain(traceback.format_exc().rstrip())
            complain(f"error: {in_options(str(exc))}")
            return FAILED

    return life
