"""The common part of serving commands: child processes, and --http with the probes and metrics of their process. Called
by ``run``, ``work`` and ``outbox``.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from shardq.cli.options import Given, setting
from shardq.cli.output import complain, in_options
from shardq.errors import BadInput, ShardqError
from shardq.worker.supervisor import Work

if TYPE_CHECKING:
    from shardq.engine import AsyncEngine, Engine
    from shardq.metrics.http import Duty

    Text = click.ParamType[str]
else:
    Text = click.ParamType  # which older versions of click can't take a parameter for


class _Place(Text):
    """HOST:PORT, checked, and kept as text: settings show it."""

    name = "host:port"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from shardq.metrics.http import Address  # here: most commands serve nothing

        Address.parsed(value)
        return value


http = setting(
    "--http",
    metavar="HOST:PORT",
    type=_Place(),
    help="Serve /livez, /readyz and /metrics there; port 0 takes a free one, and says which.",
)


@contextmanager
def served(engine: Engine | AsyncEngine, place: str | None, duty: Duty) -> Iterator[None]:
    """Serves the probes and metrics of this process, if that was asked for."""
    if place is None:
        yield
        return
    from shardq.metrics.http import Address, ProbeServer  # as above

    with ProbeServer(engine, Address.parsed(place), duty=duty) as server:
        complain(f"probes and metrics at {server.url}")
        yield


def check_one_process(place: str | None, processes: int) -> None:
    if place is not None and processes > 1:
        raise BadInput("--http serves one process: leave out --processes, or start several commands with a port each")


MAX_PROCESSES = 1000
FAILED = 1


def child(given: Given, work: Callable[[], int | None]) -> Work:
    """Returns the life of a child that does this work; what goes wrong is said in a line."""

    def life() -> int | None:
        try:
            return work()
        except ShardqError as exc:
            if given.verbose:
                complain(traceback.format_exc().rstrip())
            complain(f"error: {in_options(str(exc))}")
            return FAILED

    return life
