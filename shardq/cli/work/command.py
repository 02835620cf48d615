"""work: the command that runs a worker of the user's module, until SIGINT or SIGTERM."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from shardq.cli.http import check_one_process, http, served
from shardq.cli.logs import log_option, set_up_logging, set_up_root
from shardq.cli.numbers import Whole
from shardq.cli.options import Given, pass_given, reporting
from shardq.cli.output import complain, going_on, say, tell
from shardq.cli.processes import MAX_PROCESSES, child
from shardq.cli.settings import Setting
from shardq.cli.signals import Shutdown
from shardq.cli.work.reloading import CHANGED, serve_until_changed
from shardq.cli.work.serving import serve
from shardq.cli.work.target import Target, engine_behind
from shardq.core.model.ids import shown_topic
from shardq.engine.tables import counted
from shardq.errors import BadInput
from shardq.worker import Worker
from shardq.worker.base import plan_of
from shardq.worker.supervisor import ProcessSupervisor

if TYPE_CHECKING:
    from shardq.worker import AsyncWorker

MAX_CONCURRENCY = 100_000


@click.command(
    short_help="Run a worker of your module, until Ctrl-C.",
    epilog="""\b
example:
  shardq work shopapp:worker                    (a worker of shopapp.py)
  shardq work shopapp:engine --concurrency 32   (the tasks of an engine)
  shardq work shop.jobs:make_worker             (a function that returns one)
  shardq work shopapp:worker --processes 4 --topics mail,invoice
  shardq work shopapp:worker --reload           (while you write it)
\b
exit codes:
  0         a signal came, and what ran was finished, or given back after its grace
  1         the module failed, or the servers can't be reached
  2         there is no such worker; nothing was done
  130, 143  a second Ctrl-C or SIGTERM: what ran was given back at once""",
)
@click.argument("target", metavar="MODULE:WORKER")
@click.option(
    "--processes",
    cls=Setting,
    type=Whole(1, MAX_PROCESSES),
    metavar="N",
    help="Run handlers in so many processes; one that dies is started again. Default: the worker's own, or 1.",
)
@click.option(
    "--concurrency",
    cls=Setting,
    type=Whole(1, MAX_CONCURRENCY),
    metavar="N",
    help="Run so many handlers at once in each process. Default: the worker's own.",
)
@click.option(
    "--topics",
    cls=Setting,
    metavar="TOPIC,...",
    help="Serve only these topics of the worker, the first ones first; '' is the default topic. Default: all.",
)
@http
@click.option("--reload", is_flag=True, help="Start again when a .py file of the program is saved: for development.")
@log_option
@reporting
@pass_given
def work(
    given: Given,
    target: str,
    processes: int | None,
    concurrency: int | None,
    topics: str | None,
    http: str | None,
    reload: bool,
    log: str,
) -> int:
    """Import MODULE, from the current directory too, and run its WORKER until Ctrl-C or SIGTERM.

    WORKER is a worker, an engine whose declared tasks are served, or a function without arguments that returns one.
    The module says which server it uses: its engine has a URL, or takes $SHARDQ_URL. Due tasks are moved by
    `shardq run`, or by a process that called engine.start(): where there is neither, a warning says so within 3 s.

    The first signal has it claim no more, and finish what runs within the worker's grace; a second one ends it at once.
    """
    if given.url is not None or given.name is not None:
        raise BadInput("work takes no --url and no --name: the engine of the module has its own; set $SHARDQ_URL")
    typed = click.get_current_context().get_parameter_source("processes") is ParameterSource.COMMANDLINE
    if reload and typed and processes != 1:
        raise BadInput("--reload runs one process; leave out --processes")
    if reload and http is not None:
        raise BadInput("--reload is for development, and starts again often; leave out --http")
    set_up_logging(verbose=given.verbose, form=log)
    wanted = Target.parsed(target)

    def load() -> Worker | AsyncWorker:
        chosen = [topic.strip() for topic in topics.split(",")] if topics is not None else None
        worker = wanted.load(topics=chosen, concurrency=concurrency)
        set_up_root(verbose=given.verbose, form=log)
        return worker

    worker = None if reload else load()  # Ctrl-C interrupts that
    with Shutdown() as shutdown:
        if worker is None:
            wanted.look()
            supervisor = ProcessSupervisor(1, again=CHANGED)
            loaded = partial(_say, given, processes=1)
            life = partial(serve_until_changed, load, shutdown.stop, shutdown.hurry, loaded=loaded)
            grace = math.inf  # the child knows the worker's
            supervisor.run(child(given, life), shutdown.stop, shutdown.hurry, heard=shutdown.heard, grace=grace)
        else:
            _serve(given, worker, processes, http, shutdown)
    if not given.json:
        complain("stopped")
    return shutdown.code


def _serve(
    given: Given, worker: Worker | AsyncWorker, processes: int | None, http: str | None, shutdown: Shutdown
) -> None:
    if isinstance(worker, Worker):
        processes = processes or worker.processes
        worker.processes = 1  # in each of them
    count = processes or 1
    check_one_process(http, count)
    _say(given, worker, processes=count)
    life = partial(serve, worker, shutdown.stop, shutdown.hurry)
    if count == 1:
        with served(engine_behind(worker), http, "worker"):
            life()
    else:
        supervisor = ProcessSupervisor(count)
        supervisor.run(child(given, life), shutdown.stop, shutdown.hurry, heard=shutdown.heard, grace=worker.grace)


def _say(given: Given, worker: Worker | AsyncWorker, *, processes: int) -> None:
    """Tells what is served, and where."""
    engine, topics = engine_behind(worker), list(plan_of(worker).handlers)
    with going_on():
        if given.json:
            served = {"name": engine.name, "url": engine.options.safe_url, "topics": topics}
            tell(served | {"concurrency": worker.concurrency, "processes": processes})
            return
        where = "" if processes == 1 else f" in each of {processes} processes"
        names = ", ".join(shown_topic(topic) for topic in topics)
        say(
            f"serving {names} of {engine.name!r} at {engine.options.safe_url}: "
            f"{counted(worker.concurrency, 'handler')} at once{where}; Ctrl-C ends it"
        )
