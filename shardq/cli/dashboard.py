"""dashboard: the command that serves the dashboard of an engine, until Ctrl-C. metrics: the commands that print the
Grafana dashboard and the alert rules which come with the package.
"""

from __future__ import annotations

import ipaddress
import secrets
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.resources import files

import click
from click.core import ParameterSource

from shardq.cli.options import Given, Read, Whole, command, reporting, setting, shared
from shardq.cli.output import complain, say, set_up_root, tell
from shardq.cli.serving import Ending, log_option
from shardq.cli.session import opened
from shardq.errors import MissingPackage

HOST, PORT = "127.0.0.1", 8787

LOOPBACK = ("127.0.0.1", "::1")

NEEDED = "the dashboard needs Starlette, uvicorn and Jinja: pip install 'shardq[dashboard]'"


def _networks(text: str) -> list[str]:
    """Addresses and networks with commas between them. Raises ValueError."""
    return [str(ipaddress.ip_network(each.strip(), strict=False)) for each in text.split(",")]


@command("Serve a dashboard for browsers, until Ctrl-C.")
@setting(
    "--host",
    metavar="ADDRESS",
    default=HOST,
    help=f"The address to listen on. Default: {HOST}, for this machine only; 0.0.0.0 is every network.",
)
@setting("--port", type=Whole(0, 65535), default=PORT, help=f"Default: {PORT}; 0 takes a free one.")
@setting(
    "--token",
    hide_input=True,
    metavar="SECRET",
    help="The secret to sign in with, 16 characters or more. Set the variable: every user of the machine can read a "
    "command line, so it is refused there. Default: a new one at each start.",
)
@setting("--read-only", is_flag=True, help="Show all, and change nothing.")
@setting(
    "--allow-host",
    metavar="NAME",
    help="Browsers reach it by this name, through a proxy on this machine. Separate several with commas.",
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
@click.option("--open", "browse", is_flag=True, help="Open it in a browser, too.")
@log_option
@shared
def dashboard(
    given: Given,
    host: str,
    port: int,
    token: str | None,
    read_only: bool,
    allow_host: str | None,
    behind_tls: bool,
    trusted_proxy: list[str] | None,
    browse: bool,
    log: str,
) -> int:
    """Serve a dashboard of the engine: whether all is well, live rates and lateness, lists of tasks, what falls
    due, shards, nodes, topics and processes; with buttons to pause, limit, requeue, cancel and resize.

    It prints an address with a token; without the token no page is shown. An open page costs the servers some
    thousandths of a core, a closed one nothing.

    example:
      shardq dashboard                           (prints the address to open)
      shardq dashboard --open --read-only
      shardq dashboard --port 0                  (a free port)

    for other users, with a token of your own, behind a proxy that has TLS:
      export SHARDQ_DASHBOARD_TOKEN=$(openssl rand -hex 16)
      shardq dashboard --host 0.0.0.0 --allow-host queue.example.org --behind-tls --trusted-proxy 10.0.0.5
    """
    try:
        from shardq.dashboard.application import app
        from shardq.dashboard.serving import served  # here: other commands need none of it
    except ModuleNotFoundError as exc:
        raise MissingPackage(f"there is no {exc.name!r}; {NEEDED}") from exc
    if click.get_current_context().get_parameter_source("token") is ParameterSource.COMMANDLINE:
        raise click.UsageError(
            "every user of this machine can read a command line: set $SHARDQ_DASHBOARD_TOKEN instead"
        )
    secret = token or secrets.token_urlsafe(24)
    with opened(given, log=log) as engine, Ending() as ending:
        hosts = filter(None, (allow_host or "").split(","))
        found = app(engine, token=secret, read_only=read_only, hosts=hosts, behind_tls=behind_tls)
        set_up_root(verbose=given.verbose, form=log)  # for the lines of uvicorn and asyncio
        proxies = trusted_proxy or (LOOPBACK if behind_tls else ())
        with served(found, host, port, proxies=proxies, close=engine.close) as place, ExitStack() as stack:
            link = f"{place}/sign-in#token={secret}"
            # a token that is kept elsewhere is not repeated: what is printed ends up in logs
            url = f"{place}/" if token else link
            if given.json:
                tell({"url": url, "read_only": read_only})
            else:
                say(f"dashboard of {engine.name!r} at {url}" + (", with your token" if token else ""))
            if not given.json:
                complain("Ctrl-C ends it")
            if browse:
                click.launch(stack.enter_context(_leading_to(link)))
            ending.wait()
    if not given.json:
        complain("stopped")
    return ending.code if ending.signal == signal.SIGINT else 0


@contextmanager
def _leading_to(link: str) -> Iterator[str]:
    """A file for this user alone that leads a browser there: the words that start one can be read by others."""
    with tempfile.NamedTemporaryFile("w", prefix="shardq-", suffix=".html") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={link}">\n')
        file.flush()
        yield file.name


@click.group(short_help="Print a Grafana dashboard, or alert rules for Prometheus.")
def metrics() -> None:
    """Print a Grafana dashboard, or alert rules, for the metrics of `shardq run --http` and `shardq work --http`."""


@command("Print the Grafana dashboard.", name="dashboard", of=metrics)
@reporting
def grafana() -> None:
    """Print a dashboard for Grafana 9 or newer, in JSON. Grafana asks you for the data source.

    example:
      shardq metrics dashboard > shardq.json        (Dashboards, New, Import)
    """
    _print("grafana.json")


@command("Print the alert rules.", of=metrics)
@reporting
def alerts() -> None:
    """Print a file of alert rules for Prometheus (rule_files).

    example:
      shardq metrics alerts > /etc/prometheus/rules/shardq.yml
    """
    _print("alerts.yml")


def _print(name: str) -> None:
    say((files("shardq.metrics") / name).read_text(encoding="utf-8").rstrip())
