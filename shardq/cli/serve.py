"""serve: the command that serves an engine over HTTP, until Ctrl-C, in this process or in several."""

from __future__ import annotations

import ipaddress
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import click

from shardq import Engine
from shardq.cli.options import Given, Read, Whole, command, setting, shared
from shardq.cli.output import complain, say, set_up_root, tell
from shardq.cli.serving import MAX_PROCESSES, Ending, Shutdown, child, log_option
from shardq.cli.session import opened
from shardq.core.drivers import descriptors
from shardq.core.fleet.member import NO_DISPATCHER, dispatchers
from shardq.engine.around import EngineAccess
from shardq.errors import BadInput, MissingPackage, ServerFault, ShardqError
from shardq.worker.supervisor import ProcessSupervisor

HOST, PORT = "127.0.0.1", 8787

LOOPBACK = ("127.0.0.1", "::1")

NEEDED = "serving needs Starlette, uvicorn, httptools and Jinja: pip install 'shardq[serve]'"

ACCESS = "shardq.http.access"

_Begun = Callable[[ExitStack, socket.socket], None]

ANSWER_S = 5.0
"""A process that ends has so long for the requests under way."""


def _networks(text: str) -> list[str]:
    """Addresses and networks with commas between them. Raises ValueError."""
    return [str(ipaddress.ip_network(each.strip(), strict=False)) for each in text.split(",")]


@command("Serve the HTTP API and the dashboard.")
@setting(
    "--host",
    metavar="ADDRESS",
    default=HOST,
    help=f"The address to listen on. Default: {HOST}, for this machine only; 0.0.0.0 is every network.",
)
@setting("--port", type=Whole(0, 65535), default=PORT, help=f"Default: {PORT}; 0 takes a free one.")
@click.option(
    "--tokens",
    metavar="FILE",
    envvar="SHARDQ_TOKENS",
    help="The file that says who may do what: `shardq token` makes its lines. Default: $SHARDQ_TOKENS; without it "
    "every user of this machine may do all, and nobody else anything.",
)
@setting("--dispatch", is_flag=True, help="Run a dispatcher, too, as `shardq run` does.")
@setting(
    "--processes",
    type=Whole(1, MAX_PROCESSES),
    default=1,
    help="Serve in N processes; one that dies is restarted. Default: 1, this one.",
)
@setting("--read-only", is_flag=True, help="Show all, and change nothing.")
@setting(
    "--spool",
    metavar="FILE",
    help="Keep pushes and commands in this file while no server can be reached, and carry them out later.",
)
@setting("--access-log", is_flag=True, help="Log a line for each request.")
@setting(
    "--allow-host",
    metavar="NAME",
    help="It is reached by this name, through a proxy on this machine. Separate several with commas.",
)
@setting(
    "--behind-tls",
    is_flag=True,
    help="A proxy in front of it speaks https: browsers send its cookies by https only, and X-Forwarded-For counts.",
)
@setting(
    "--trusted-proxy",
    type=Read("address", _networks),
    help="The proxy whose X-Forwarded-For counts: an address or a network (10.0.0.0/8); several with commas. Default: "
    "this machine with --behind-tls, else none.",
)
@click.option("--create", is_flag=True, help="Create the engine if the name is new.")
@click.option("--open", "browse", is_flag=True, help="Open the dashboard in a browser, too.")
@log_option
@shared
def serve(
    given: Given,
    host: str,
    port: int,
    tokens: str | None,
    dispatch: bool,
    processes: int,
    read_only: bool,
    spool: str | None,
    access_log: bool,
    allow_host: str | None,
    behind_tls: bool,
    trusted_proxy: list[str] | None,
    create: bool,
    browse: bool,
    log: str,
) -> int:
    """Serve the engine over HTTP: an API for programs in any language, and a dashboard for browsers, which shows
    whether all is well, live rates, lists of tasks, what falls due, shards, nodes, topics and processes, with buttons
    to pause, limit, requeue, cancel and resize.

    GET /v1/openapi.json describes the API. Nothing is kept in this process: any number of them may serve one engine,
    and one that dies loses nothing that was answered.

    example:
      shardq serve                         (for this machine; prints the address)
      shardq serve --dispatch --create     (with a dispatcher: all in one process)
      shardq serve --open --read-only
      shardq serve --port 0                (a free port)

    for others, with tokens, behind a proxy that has TLS:
      shardq token shop --role producer --topic 'order-*' >> tokens
      shardq token ops --role operator >> tokens
      shardq serve --tokens tokens --host 0.0.0.0 --processes 2 --behind-tls
    """
    try:
        from shardq.http.application import app
        from shardq.http.server import bound_at, served, url_at  # here: other commands need none of it
        from shardq.http.tokens import Tokens
    except ModuleNotFoundError as exc:
        raise MissingPackage(f"there is no {exc.name!r}; {NEEDED}") from exc
    if not tokens:
        _check_alone(host, {"--allow-host": allow_host, "--behind-tls": behind_tls, "--trusted-proxy": trusted_proxy})
    descriptors.more()
    hosts = [name for name in (allow_host or "").split(",") if name]
    proxies = trusted_proxy or (LOOPBACK if behind_tls else ())
    with opened(given, create=create, dispatches=dispatch, log=log) as engine, bound_at(host, port) as bound:
        make = partial(app, tokens=tokens or None, read_only=read_only, hosts=hosts, behind_tls=behind_tls)
        if tokens:
            Tokens(tokens)  # a wrong file is told before a process begins
        set_up_root(verbose=given.verbose, form=log)  # for the lines of uvicorn and asyncio
        if access_log:
            logging.getLogger(ACCESS).setLevel(logging.INFO)

        def begun(stack: ExitStack, taken: socket.socket) -> None:
            """Serves from now on, in this process."""
            from shardq import AsyncEngine  # here: the help needs no asyncio

            options = EngineAccess(engine).options
            ours = AsyncEngine(
                options.url,
                name=options.name,
                timeout=options.timeout,
                connect_timeout=options.connect_timeout,
                far=given.far_url,
                spool=spool,
            )

            async def start() -> None:
                try:
                    await ours.open()
                except ServerFault:
                    if dispatch:
                        raise
                if dispatch:
                    await ours.start()

            door = make(ours)

            async def close() -> None:
                await door.close()
                await ours.close()

            stack.enter_context(served(door, taken, proxies=proxies, start=start, close=close))

        def told() -> None:
            url = f"{url_at(bound)}/"
            if given.json:
                tell({"url": url, "read_only": read_only, "processes": processes})
            else:
                say(f"serving {engine.name!r} at {url}" + (f", for the tokens of {tokens}" if tokens else ""))
            if not dispatch:
                _warn_of_dispatchers(engine)
            if not given.json:
                complain("Ctrl-C ends it")
            if browse:
                click.launch(url)

        code = _alone(bound, begun, told) if processes == 1 else _supervise(given, processes, bound, begun, told)
    if not given.json:
        complain("stopped")
    return code


def _check_alone(host: str, of_proxies: dict[str, Any]) -> None:
    """Without tokens nobody but the users of this machine may reach it."""
    from shardq.http.guard import is_loopback  # as above

    if host != "localhost" and not is_loopback(host.strip("[]")):
        raise BadInput(
            f"without tokens it listens on this machine only, and not at {host}: give --tokens FILE (`shardq token` "
            "makes a line of it), or leave --host out"
        )
    if given := [option for option, value in of_proxies.items() if value]:
        raise BadInput(
            f"{given[0]} is for a proxy, and without tokens that would let in everybody: give --tokens FILE (`shardq "
            "token` makes a line of it)"
        )


def _warn_of_dispatchers(engine: Engine) -> None:
    try:
        if not dispatchers(engine.fleet()):
            complain(NO_DISPATCHER)
    except ShardqError:  # health tells it
        pass


def _alone(bound: socket.socket, begun: _Begun, told: Callable[[], None]) -> int:
    with Ending() as ending, ExitStack() as stack:
        begun(stack, bound)
        told()
        ending.wait()
    return ending.code if ending.signal == signal.SIGINT else 0


def _supervise(given: Given, processes: int, bound: socket.socket, begun: _Begun, told: Callable[[], None]) -> int:
    """Serves in children, which accept from one socket."""
    with Shutdown() as shutdown:

        def life() -> None:
            with ExitStack() as stack:
                begun(stack, bound.dup())
                shutdown.stop.wait()

        told()
        supervisor = ProcessSupervisor(processes, what="gateway")
        supervisor.run(child(given, life), shutdown.stop, shutdown.hurry, heard=shutdown.heard, grace=ANSWER_S)
    return shutdown.code
