"""Opens the engine that the options name, and looks at one over and over in a thread of its own: the main one stays
free for signals and keys. Called by the commands that need an engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from shardq.cli.logs import set_up_logging
from shardq.cli.options import Given
from shardq.cli.output import going_on
from shardq.core import operation
from shardq.core.calls.control import read_topology
from shardq.core.drivers.discover import ASK_TIMEOUT_S
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import control_keys
from shardq.engine import Engine
from shardq.engine.advice import find_failed, lost
from shardq.engine.base import Inside
from shardq.engine.options import DEFAULT_CONNECT_TIMEOUT_S, DEFAULT_TIMEOUT_S, STATS_TIMEOUT_S
from shardq.errors import ServerFault, ShardqError, Unavailable


@contextmanager
def looking(given: Given) -> Iterator[Engine]:
    """Opens the engine for a view, which waits for no server that is gone: it says what is lost."""
    with opened(given, timeout=STATS_TIMEOUT_S) as engine:
        try:
            yield engine
        except ServerFault as exc:
            raise _with_lost(Inside(engine).open_driver(), exc) from exc


@contextmanager
def opened(
    given: Given,
    *,
    create: bool = False,
    shards: int | None = None,
    codec: str = "json",
    log: str | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> Iterator[Engine]:
    """Opens the engine, and closes it at the end.

    Without ``create`` the name must exist: a misspelt one is an error, and leaves nothing behind on the server.
    ``log``: the form of the log.
    """
    set_up_logging(verbose=given.verbose, form=log)
    name = given.engine_name
    until = min(timeout, DEFAULT_CONNECT_TIMEOUT_S)
    asked = Engine(given.engine_url, name=name, codec=codec, timeout=timeout, connect_timeout=until)
    settings, server = Inside(asked).options.enter()
    try:
        exists = _exists(settings, name)
        if not exists and not create:
            where = f"the embedded server in {server.path}" if server else settings.safe_url
            unasked = " (neither --url nor $SHARDQ_URL is given)" if Inside(asked).options.url is None else ""
            raise ShardqError(
                f"there is no engine named {name!r} at {where}{unasked}; give another --name or --url; "
                "the first push or run makes a new one"
            )
        # the engine enters the embedded server by itself, so that it can restart one that dies meanwhile
        shards = shards or (None if exists else given.new_shards)
        with Engine(
            Inside(asked).options.url, name=name, shards=shards, codec=codec, timeout=timeout, connect_timeout=until
        ) as engine:
            yield engine
    finally:
        if server is not None:
            server.leave()


def _exists(settings: Settings, name: str) -> bool:
    driver = Driver(settings)
    try:
        driver.open()
        keys = control_keys(name)
        try:
            return bool(driver.call(read_topology(keys), settings.timeout - ASK_TIMEOUT_S))
        except ServerFault as exc:
            raise _with_lost(driver, exc, f"the topology of {name!r} is in slot {keys.slot}") from exc
    finally:
        driver.close()


def _with_lost(driver: Driver, exc: ServerFault, what: str = "") -> ServerFault:
    """The error, with the nodes that are lost before it. ``what`` needs them."""
    told = [lost(node) for node in operation.run(driver, find_failed(), ASK_TIMEOUT_S) if node.slots]
    return Unavailable("; ".join(filter(None, [*told, what])) + f": {exc}") if told else exc


Seen = TypeVar("Seen")

Told = Callable[[Seen | None, str], None]
"""Takes what a look has found, or None and why it failed."""


class Looker(Generic[Seen]):
    """The looks at one engine, started once and stopped once. ``told`` is called in their thread."""

    def __init__(self, engine: Engine, look: Callable[[], Seen], told: Told[Seen], every_s: float) -> None:
        self._engine = engine
        self._look = look
        self._told = told
        self._every_s = every_s
        self._due = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shardq-looker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def now(self) -> None:
        """Makes the next look begin at once."""
        self._due.set()

    def stop(self) -> None:
        """Ends the thread. Closes the engine first, which ends a look that waits for a silent server."""
        self._ending.set()
        self._due.set()
        self._engine.close()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():
            self._due.clear()
            try:
                seen, trouble = self._look(), ""
            except ShardqError as exc:
                seen, trouble = None, str(exc)
            if self._ending.is_set():
                return
            with going_on():
                self._told(seen, trouble)
            self._due.wait(self._every_s)
