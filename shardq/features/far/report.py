"""The reports on a far store: of the loader of a process, and of ``engine.stats().far``."""

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


class FarStats(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the table of far tasks.

    >>> if far := engine.stats().far:
    ...     about = "" if far.exact else "at least" if far.at_least else "about"
    ...     print(about, far.tasks, "wait there, the first of", far.first)
    """

    database: str
    """Without its secrets."""
    ahead: float
    """``ahead``: what is due within so many seconds is loaded."""
    tasks: int | None = None
    """The tasks in the table; None where it can't be read. They are in none of the other counts."""
    exact: bool = True
    """False: ``tasks`` is the database's estimate."""
    at_least: bool = False
    """True: there are so many at least, and the database has no estimate of the rest."""
    first: dt.datetime | None = None
    """When the first of them is due; None without one."""
    loaded: int | None = None
    """The tasks that this process has moved to Redis; None where no dispatcher runs here."""
    left: float | None = None
    """The seconds until a task may be late, if nothing is loaded from now on; likewise."""
    problems: tuple[str, ...] = ()
    """The reasons why tasks can't be loaded by this process, or the table can't be read."""


LATE_S = 60.0
"""A task that is still in the table so long after it was due is not loaded."""
