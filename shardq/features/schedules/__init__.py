"""Recurring tasks: ``engine.every("nightly", cron="0 3 * * *", payload=…)``.

``every`` is what a caller declares, with its timetable, ``entry`` what is stored of it, and ``requests`` read and
write it; ``occurrences`` says what to push, and when to look again. ``declaring`` holds the operations of the engine's
commands, and ``handle_aio`` what ``engine.schedule(name)`` returns; ``pushing_ahead`` pushes and takes back, ``known``
are the steps of a dispatcher, and ``scheduler`` is its thread. ``README.md`` beside this file says how it works and
what holds.
"""

from shardq.features.schedules.every import Every, Schedule

__all__ = ["Every", "Schedule"]
