"""Opens the engine that the options name. Called by the commands that need one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shardq.calls.control import read_topology
from shardq.cli.logs import set_up_logging
from shardq.cli.options import Given
from shardq.drivers.settings import Settings
from shardq.drivers.sync import Driver
from shardq.engine import Engine
from shardq.errors import ShardqError
from shardq.layout.keys import control_keys


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
        exists = _exists(settings, name)
        if not exists and not create:
            where = f"the embedded server in {server.path}" if server else settings.safe_url
            unasked = " (neither --url nor $SHARDQ_URL is given)" if asked.options.url is None else ""
            raise ShardqError(
                f"there is no engine named {name!r} at {where}{unasked}; give another --name or --url; "
                "the first push or run makes a new one"
            )
        # the engine enters the embedded server by itself, so that it can restart one that dies meanwhile
        shards = shards or (None if exists else given.new_shards)
        with Engine(asked.options.url, name=name, shards=shards, codec=codec) as engine:
            yield engine
    finally:
        if server is not None:
            server.leave()


def _exists(settings: Settings, name: str) -> bool:
    driver = Driver(settings)
    try:
        driver.open()
        return bool(driver.call(read_topology(control_keys(name))))
    finally:
        driver.close()
