"""Logs from the worker's threads.

An exception or a hook has a text of the user's own making, and filters and handlers of logging are the user's code,
too. None of it may end a thread, or keep a task from being settled.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping

log: logging.Logger = logging.getLogger("shardq.worker")

MOST_REMEMBERED = 1000
"""Causes that are remembered: some are made of payloads, of which there is no end."""


def tell(
    level: int,
    text: str,
    *words: object,
    exc: BaseException | None = None,
    extra: Mapping[str, object] | None = None,
    to: logging.Logger = log,
) -> None:
    """Logs, with the traceback of ``exc``, and with the fields of ``extra``. Never raises."""
    with contextlib.suppress(BaseException):
        # A tuple: of the exception alone, logging would ask if it is true.
        trace = None if exc is None else (type(exc), exc, exc.__traceback__)
        to.log(level, text, *words, exc_info=trace, extra=extra, stacklevel=2)


class Once:
    """Remembers the causes that were logged, the first ``MOST_REMEMBERED`` of them. No other is new."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def new(self, cause: str) -> bool:
        if cause in self._said or len(self._said) >= MOST_REMEMBERED:
            return False
        self._said.add(cause)
        return True
