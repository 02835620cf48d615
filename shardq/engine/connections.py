"""Connections to an engine's server for what works beside the engine: the outbox relay, and commands that read what no
engine offers.

The engines open theirs by themselves: they keep their share of an embedded server through a fork.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.engine.options import Options


@contextmanager
def connected(options: Options, make: Callable[[Settings], Driver] = Driver) -> Iterator[Driver]:
    """Opens a driver of the caller's own for the server of an engine, with a share of it if that is embedded."""
    settings, server = options.enter()
    try:
        driver = make(settings)
        try:
            driver.open()
            yield driver
        finally:
            driver.close()
    finally:
        if server is not None:
            server.leave()
