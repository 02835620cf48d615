"""The option --http of the commands that serve: probes and metrics of their process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from shardq.cli.output import complain
from shardq.engine import AsyncEngine, Engine
from shardq.errors import BadInput

if TYPE_CHECKING:
    from shardq.metrics.http import Address
    from shardq.metrics.probes import Duty


def _address(ctx: click.Context, param: click.Parameter, text: str | None) -> Address | None:
    if text is None:
        return None
    from shardq.metrics.http import Address  # here: most commands serve nothing

    return Address.parsed(text)


http = click.option(
    "--http",
    metavar="HOST:PORT",
    callback=_address,
    help="Serve /livez, /readyz and /metrics there; port 0 takes a free one, and says which.",
)


@contextmanager
def served(engine: Engine | AsyncEngine, address: Address | None, duty: Duty) -> Iterator[None]:
    """Serves the probes and metrics of this process, if that was asked for."""
    if address is None:
        yield
        return
    from shardq.metrics.http import ProbeServer  # as above

    with ProbeServer(engine, address, duty=duty) as server:
        complain(f"probes and metrics at {server.url}")
        yield


def check_one_process(address: Address | None, processes: int) -> None:
    if address is not None and processes > 1:
        raise BadInput("--http serves one process: leave out --processes, or start several commands with a port each")
