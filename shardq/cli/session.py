"""Opens the engine that the options name. Called by the commands that need one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from shardq.calls.control import read_topology
from shardq.cli.logs import set_up_logging
from shardq.cli.options import Given
from shardq.drivers.settings import Settings
from shardq.drivers.sync import Driver
from shardq.engine import Engine
from shardq.errors import ShardqError
from shardq.layout.keys import control_keys
from shardq.layout.topology import Topology


@contextmanager
def opened(
    given: Given, *, create: bool = False, shards: int | None = None, codec: str = "json", log: str | None = None
) -> Iterator[Engine]:
    """Opens the engine, and closes it at the end.

    Without ``create`` the name must exist: a misspelt one is an error, and leaves nothing behind on the server.
    ``log``: the form of the log.
    """
    set_up_logging(verbose=given.verbose, form=log)
    name = given.engine_name
    asked = Engine(given.engine_url, name=name, codec=codec)
    settings, server = asked.options.enter()
    try:
        stored = _stored_shards(settings, name)
        if stored is None and not create:
            where = server.path if server else settings.safe_url
            raise ShardqError(
                f"there is no engine named {name!r} at {where}; give another --name or --url; "
                "the first push or run makes a new one"
            )
        # the engine enters the embedded server by itself, so that it can restart one that dies meanwhile
        url = f"embedded://{quote(os.fsencode(server.path))}" if server else asked.options.url
        with Engine(url, name=name, shards=shards or stored or given.new_shards, codec=codec) as engine:
            yield engine
    finally:
        if server is not None:
            server.leave()


def _stored_shards(settings: Settings, name: str) -> int | None:
    driver = Driver(settings)
    try:
        driver.open()
        fields = driver.call(read_topology(control_keys(name)))
    finally:
        driver.close()
    return Topology.from_fields(fields).shards if fields else None
