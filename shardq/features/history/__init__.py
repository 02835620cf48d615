"""The past of an engine: ``engine.history("day")``.

A dispatcher writes a row each minute into one string of fixed size, a ring of the minutes of a day and of the hours of
thirty days. ``stored`` is its form, ``recorder`` the thread that writes it, and ``history`` what is read from it.
"""

from shardq.features.history.history import History, HistoryPoint

__all__ = ["History", "HistoryPoint"]
