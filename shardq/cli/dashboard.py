"""dashboard: the command that serves the dashboard of an engine, until Ctrl-C."""

from __future__ import annotations

import secrets

import click

from shardq.cli.logs import log_option
from shardq.cli.numbers import Whole
from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import complain, say, tell
from shardq.cli.session import opened
from shardq.cli.settings import SecretSetting, Setting
from shardq.cli.signals import Ending
from shardq.errors import MissingPackage

HOST, PORT = "127.0.0.1", 8787

NEEDED = "the dashboard needs Starlette, uvicorn and Jinja: pip install 'shardq[dashboard]'"


@click.command(
    short_help="Serve a dashboard for browsers, until Ctrl-C.",
    epilog="""\b
example:
  shardq dashboard                           (prints the address to open)
  shardq dashboard --open --read-only
  shardq dashboard --port 0                  (a free port)
\b
for others than you, with a token of your own, behind a proxy that has TLS:
  export SHARDQ_DASHBOARD_TOKEN=$(openssl rand -hex 16)
  shardq dashboard --host 0.0.0.0 --allow-host queue.example.org""",
)
@click.option(
    "--host",
    cls=Setting,
    metavar="ADDRESS",
    default=HOST,
    help=f"Listen there. Default: {HOST}, for this machine only; 0.0.0.0 is every network.",
)
@click.option(
    "--port",
    cls=Setting,
    type=Whole(0, 65535),
    metavar="N",
    default=PORT,
    help=f"Default: {PORT}; 0 takes a free one.",
)
@click.option(
    "--token",
    cls=SecretSetting,
    metavar="SECRET",
    help="What a browser has to show, 16 characters or more; better in the variable than on the command line. "
    "Default: a new one at each start.",
)
@click.option("--read-only", cls=Setting, is_flag=True, help="Show all, and change nothing.")
@click.option(
    "--allow-host",
    cls=Setting,
    metavar="NAME",
    help="A name under which browsers reach it through a proxy on this machine; several with commas.",
)
@click.option("--open", "browse", is_flag=True, help="Open it in a browser, too.")
@log_option
@shared
@pass_given
def dashboard(
    given: Given,
    host: str,
    port: int,
    token: str | None,
    read_only: bool,
    allow_host: str | None,
    browse: bool,
    log: str,
) -> int:
    """Serve a dashboard of the engine: if all is well or why not, rates and lateness live, lists of tasks, what falls
    due, shards, nodes, topics and processes; with buttons to pause, limit, requeue, cancel and resize.

    It prints an address with a token, without which nobody sees anything. A page that is open costs the servers some
    thousandths of a core, one that is not costs nothing.
    """
    try:
        from shardq.dashboard.application import app
        from shardq.dashboard.serving import served  # here: other commands need none of it
    except ModuleNotFoundError as exc:
        raise MissingPackage(f"there is no {exc.name!r}; {NEEDED}") from exc
    secret = token or secrets.token_urlsafe(24)
    with opened(given, log=log) as engine, Ending() as ending:
        found = app(engine, token=secret, read_only=read_only, hosts=filter(None, (allow_host or "").split(",")))
        with served(found, host, port, close=engine.close) as place:
            link = f"{place}/?token={secret}"
            # a token that is kept elsewhere is not repeated: what is printed ends up in logs
            url = f"{place}/" if token else link
            if given.json:
                tell({"url": url, "read_only": read_only})
            else:
                say(f"dashboard of {engine.name!r} at {url}" + (", with your token" if token else ""))
                complain("Ctrl-C ends it")
            if browse:
                click.launch(link)
            ending.wait()
    if not given.json:
        complain("stopped")
    return ending.code
