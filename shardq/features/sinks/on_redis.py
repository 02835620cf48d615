"""The common base of sinks on another Redis: its connections."""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import parse_qsl

from shardq.core.calls.request import Command
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.features.sinks.base import Sink
from shardq.features.sinks.urls import TIMEOUT, timeout

T = TypeVar("T")

CONNECTIONS = 4
TIMEOUT_S = 3.0
"""Longer than a connection takes, shorter than a failover: those are for the circuit."""

REMEMBERED_S = 300
"""The time for which a sink remembers what it has taken, where it can tell duplicates by that: longer than what a
process that was killed had leased waits for another.
"""


class OnRedis(Sink):
    """Connects by the URL of an engine, which may also have ``timeout=``; ``send`` is for who derives from it."""

    def __init__(self, url: str) -> None:
        timeout_s = timeout(url.partition("://")[0], dict(parse_qsl(url.partition("?")[2])), TIMEOUT_S)
        self._settings = Settings.from_url(
            url, timeout=timeout_s, connect_timeout=timeout_s, connections=CONNECTIONS, also=(TIMEOUT,)
        )
        self._driver: Driver | None = None

    def open(self) -> None:
        self._driver = Driver(self._settings)
        self._driver.open()

    def _call(self, command: Command[T]) -> T:
        assert self._driver is not None, "it is open"
        return self._driver.call(command)

    def interrupt(self) -> None:
        driver = self._driver
        if driver is not None:
            driver.close()

    def close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()
