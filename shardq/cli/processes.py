"""The life of a child process of ``run`` and ``work``. ``worker.supervisor`` watches the children."""

from __future__ import annotations

import sys
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
        # A live table of the parent has put its own in their place.
        sys.stdout, sys.stderr = sys.__stdout__ or sys.stdout, sys.__stderr__ or sys.stderr
        try:
            return work()
        except ShardqError as exc:
            if given.verbose:
                traceback.print_exc()
            complain(f"error: {in_options(str(exc))}")
            return FAILED

    return life
