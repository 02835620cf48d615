"""Opens the engine that the options name, and looks at one over and over in a thread of its own: the main one stays
free for signals and keys. Called by the commands that need an engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from shardq import Engine
from shardq.cli.options import Given
from shardq.cli.output import complain, going_on, set_up_logging
from shardq.cli.serving import Ending
from shardq.core import operation
from shardq.core.calls.control import read_topology
from shardq.core.drivers.questions import ASK_TIMEOUT_S
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import control_keys
from shardq.core.threads import Loop
from shardq.engine.around import (
    DEFAULT_CONNECT_TIMEOUT_S,
    DEFAULT_TIMEOUT_S,
    STATS_TIMEOUT_S,
    EngineAccess,
    find_failed,
    lost,
)
from shardq.errors import ServerFault, ShardqError, Unavailable

AWAITED_S = 0.5
"""Between two looks for an engine that another process is to create."""


@contextmanager
def looking(given: Given) -> Iterator[Engine]:
    """Opens the engine for a view, which waits for no server that is gone: it says what is lost."""
    with opened(given, timeout=STATS_TIMEOUT_S) as engine:
        try:
            yield engine
        except ServerFault as exc:
            raise _with_lost(EngineAccess(engine).open_driver(), exc) from exc


@contextmanager
def opened(
    given: Given,
    *,
    create: bool = False,
    dispatches: bool = False,
    wait: bool = False,
    shards: int | None = None,
    codec: str = "json",
    log: str | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
    sinks: Sequence[str] | None = None,
    secrets: str | None = None,
) -> Iterator[Engine]:
    """Opens the engine, and closes it at the end.

    Without ``create`` the name must exist: a misspelt one is an error, and leaves nothing behind on the server. With
    it a new name is told, unless the command ``dispatches`` it: nobody else does. With
    ``wait`` the command waits for the process that creates it; raises Ended if it is told to end first. ``log``: the
    form of the log. ``sinks`` and ``secrets``: what may leave this process by routes; None: as the environment says.
    """
    set_up_logging(verbose=given.verbose, form=log)
    name = given.engine_name
    until = min(timeout, DEFAULT_CONNECT_TIMEOUT_S)
    far = given.far_url
    asked = Engine(given.engine_url, name=name, codec=codec, timeout=timeout, connect_timeout=until, far=far)
    settings, server = EngineAccess(asked).options.enter()
    try:
        exists = _exists(settings, name)
        where = f"the embedded server in {server.path}" if server else settings.safe_url
        if not exists and wait:
            _await(settings, name, where)
        elif not exists and not create:
            unasked = " (neither --url nor $SHARDQ_URL is given)" if EngineAccess(asked).options.url is None else ""
            raise ShardqError(
                f"there is no engine named {name!r} at {where}{unasked}; give another --name or --url; "
                "the first push makes a new one, as does `shardq run --create`"
            )
        elif not exists and not dispatches:
            complain(
                f"there was no engine named {name!r} at {where}; this makes one. Nobody dispatches it until you start "
                f"`shardq run --name {name}`, or a program that calls engine.start(). If the name is a slip, "
                f"`shardq engines --remove {name}` removes it"
            )
        # the engine enters the embedded server by itself, so that it can restart one that dies meanwhile
        shards = shards or (None if exists else given.settings.get("shards"))
        with Engine(
            EngineAccess(asked).options.url,
            name=name,
            shards=shards,
            codec=codec,
            timeout=timeout,
            connect_timeout=until,
            far=far,
            sinks=sinks,
            secrets=secrets,
        ) as engine:
            yield engine
    finally:
        if server is not None:
            server.leave()


class Ended(Exception):
    """The command was told to end while it waited."""


def _await(settings: Settings, name: str, where: str) -> None:
    with Ending() as ending:
        log.warning(
            "there is no engine named %r at %s yet: waiting for a process that creates it, such as your program or "
            "`shardq work`; --create or --shards N creates it here",
            name,
            where,
        )
        while not _exists(settings, name):
            if ending.wait(AWAITED_S):
                raise Ended


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
    told = [
        lost(node, "what it holds").text for node in operation.run(driver, find_failed(), ASK_TIMEOUT_S) if node.slots
    ]
    return Unavailable("; ".join(filter(None, [*told, what])) + f": {exc}") if told else exc


log: logging.Logger = logging.getLogger("shardq")

Seen = TypeVar("Seen")

Told = Callable[[Seen | None, str], None]
"""Takes what a look has found, or None and why it failed."""


class Looker(Loop):
    """The looks at one engine. ``told`` is called in their thread."""

    def __init__(self, engine: Engine, look: Callable[[], Seen], told: Told[Seen], every_s: float) -> None:
        def step() -> float:
            try:
                seen, trouble = look(), ""
            except ShardqError as exc:
                seen, trouble = None, str(exc)
            if not self.stopping.is_set():
                with going_on():
                    told(seen, trouble)
            return every_s

        super().__init__("shardq-looker", step, log, fails="a look has failed", works="looks succeed again")
        self._engine = engine

    def stop(self) -> None:
        """Ends the thread. Closes the engine first, which ends a look that waits for a silent server."""
        super().stop()
        self._engine.close()
        self.join()
