"""The reports on a cold store: of the loader of a process, and of ``engine.stats().cold``."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class LoaderReport:
    loaded: int
    """Rows that this process has moved."""
    left_s: float
    """The seconds until something may be late, if nothing is loaded from now on."""
    problems: tuple[str, ...]


class ColdStats(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the table of far tasks.

    >>> if cold := engine.stats().cold:
    ...     about = "" if cold.exact else "at least" if cold.at_least else "about"
    ...     print(about, cold.tasks, "wait there, the first of", cold.first)
    """

    database: str
    """Without its secrets."""
    after: float
    """``cold_after``: what is due within so many seconds is loaded."""
    topics: tuple[str, ...] = ()
    """``cold_topics``: far tasks of these have their place there under ids of the caller's own, too."""
    tasks: int | None = None
    """The tasks in the table; None where it can't be read. They are in none of the other counts."""
    exact: bool = True
    """False: ``tasks`` is the database's estimate."""
    at_least: bool = False
    """True: there are so many at least, and the database has no estimate of the rest."""
    first: dt.datetime | None = None
    """The hour in which the first of them is due; None without one."""
    loaded: int | None = None
    """The tasks that this process has moved to Redis; None where no dispatcher runs here."""
    left: float | None = None
    """The seconds until a task may be late, if nothing is loaded from now on; likewise."""
    problems: tuple[str, ...] = ()
    """The reasons why tasks can't be loaded by this process, or the table can't be read."""


LATE_S = 3600.0 + 60.0
"""A task that is still in the table so long after the beginning of its hour was due, and is not loaded."""
