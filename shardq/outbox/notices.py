"""How a relay waits for new rows: by LISTEN where the database tells of them, else for a moment."""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

import sqlalchemy as sa

SLICE_S = 0.5
"""How long a relay that listens takes to notice that it is to stop."""


class Notices(Protocol):
    def wait(self, most_s: float) -> None:
        """Returns when there may be new rows, when the relay is to stop, and at the latest after so many seconds."""

    def close(self) -> None: ...


class Polling:
    """No notices: every wait takes its time."""

    def __init__(self, stopping: threading.Event, poll_s: float) -> None:
        self._stopping = stopping
        self._poll_s = poll_s

    def wait(self, most_s: float) -> None:
        self._stopping.wait(min(self._poll_s, most_s))

    def close(self) -> None:
        pass


class Listening:
    """PostgreSQL's LISTEN on a connection of its own, for the driver psycopg: others can't wait for notices plainly."""

    def __init__(self, stopping: threading.Event, listen_s: float, database: sa.Engine, channel: str) -> None:
        self._stopping = stopping
        self._listen_s = listen_s
        pooled = database.raw_connection()
        connection: Any = pooled.driver_connection
        self._connection = connection
        # It listens from now on, so it does not return to the pool.
        pooled.detach()
        try:
            self._connection.autocommit = True
            self._connection.execute(f'LISTEN "{channel}"')
        except BaseException:
            self._connection.close()
            raise

    def wait(self, most_s: float) -> None:
        until = time.monotonic() + min(self._listen_s, most_s)
        while not self._stopping.is_set() and (left := until - time.monotonic()) > 0:
            for _ in self._connection.notifies(timeout=min(left, SLICE_S), stop_after=1):
                return

    def close(self) -> None:
        self._connection.close()


def notices(database: sa.Engine, channel: str, stopping: threading.Event, *, poll_s: float, listen_s: float) -> Notices:
    """Listens where that is possible. Waits end when ``stopping`` is set, and at the latest after ``poll_s`` without
    notices, after ``listen_s`` with them.
    """
    if database.dialect.name == "postgresql" and database.dialect.driver == "psycopg":
        return Listening(stopping, listen_s, database, channel)
    return Polling(stopping, poll_s)
