"""manage.py shardq_worker: runs the tasks of a backend, until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import atexit
import math
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections
from django.utils import autoreload
from django.utils.module_loading import autodiscover_modules

from shardq.core.model.quantities import seconds
from shardq.engine.around import DEFAULT_LEASE_S, EngineAccess
from shardq.errors import BadInput, ShardqError
from shardq.integrations.django.backend import ShardqBackend, backend_named
from shardq.integrations.django.calls import wrong_queue
from shardq.integrations.django.executor import worker_for
from shardq.worker import Worker
from shardq.worker.base import DEFAULT_CONCURRENCY, DEFAULT_GRACE_S

EPILOG = """\
example:
  manage.py shardq_worker
  manage.py shardq_worker --queues mail,default --concurrency 32
  manage.py shardq_worker --processes 4 --no-dispatcher    (beside `manage.py shardq run`)
  manage.py shardq_worker --reload                         (while you write tasks)

The first SIGTERM or Ctrl-C has it claim no more, and finish what runs within --grace; a second one ends it at once,
and gives back what runs.
"""


class Command(BaseCommand):
    help = (
        "Run the tasks of a backend in TASKS, until Ctrl-C or SIGTERM: functions on threads, coroutine functions on an "
        "event loop. It also moves tasks when they are due, so one of these is all that runs beside the web server."
    )

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.epilog = EPILOG
        # Django's own puts the options of every command last; alone it would join the lines of the examples.
        parser.formatter_class = type("_Help", (parser.formatter_class, argparse.RawDescriptionHelpFormatter), {})
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument

        def add_number(name: str, default: int, help: str) -> None:
            add(name, type=int, default=default, metavar="N", help=f"{help} Default: {default}.")

        def add_time(name: str, default: float, help: str) -> None:
            add(name, type=_seconds, default=default, metavar="TIME", help=f"{help} Default: {default:g}s.")

        add("--backend", default="default", metavar="ALIAS", help="The backend in TASKS. Default: default.")
        first = "Serve only these, the first ones first where priorities are equal. Default: QUEUES of the backend."
        add("--queues", metavar="NAME,...", help=first)
        add_number("--concurrency", DEFAULT_CONCURRENCY, "Run so many tasks at once in each process.")
        add_number("--processes", 1, "Run tasks in so many processes; one that dies is started again.")
        add_time("--grace", DEFAULT_GRACE_S, "How long tasks may finish when it stops: 90, 5m.")
        add_time("--lease", DEFAULT_LEASE_S, "How long the tasks of a worker that died wait for another.")
        others = "Leave moving due tasks to others: other workers, or `manage.py shardq run`."
        add("--no-dispatcher", action="store_true", help=others)
        http = "Serve /livez, /readyz and /metrics there; port 0 takes a free one, and says which."
        add("--http", metavar="HOST:PORT", help=http)
        again = "Start again when a file of the program is saved: for development."
        add("--reload", action="store_true", help=again)

    def handle(self, *args: Any, **options: Any) -> None:
        if options["reload"]:
            if options["processes"] != 1 or options["http"]:
                raise CommandError("--reload is for development: leave out --processes and --http")
            autoreload.run_with_reloader(self._reloading, options)
            return
        self._run(options)

    def _reloading(self, options: dict[str, Any]) -> None:
        """Runs in a thread; the main thread watches files, and ends the process when one is saved, or by a signal."""
        thread = threading.current_thread()

        def made(worker: Worker) -> None:
            @atexit.register
            def stop() -> None:
                worker.stop()
                thread.join(worker.grace + 5.0)

        self._run(options, made)

    def _run(self, options: dict[str, Any], made: Callable[[Worker], None] | None = None) -> None:
        if options["http"] and options["processes"] > 1:
            raise CommandError("--http serves one process: leave out --processes, or start several with a port each")
        try:
            backend = backend_named(options["backend"])
            queues = _queues(backend, options["queues"])
            autodiscover_modules("tasks")
            engine = backend.engine
            given = {name: options[name] for name in ("concurrency", "processes", "grace", "lease")}
            worker = worker_for(backend, queues, **given)
            if made is not None:
                made(worker)
            # Children would share what is open here.
            connections.close_all()
            with ExitStack() as stack:
                stack.callback(engine.close)
                if options["http"]:
                    from shardq.metrics.http import Address, ProbeServer  # here: most workers serve nothing

                    server = stack.enter_context(ProbeServer(engine, Address.parsed(options["http"]), duty="worker"))
                    self.stderr.write(f"probes and metrics at {server.url}")
                if options["no_dispatcher"]:
                    engine.open()
                else:
                    engine.start()  # with --processes here, in the parent
                where = "" if options["processes"] == 1 else f" in each of {options['processes']} processes"
                self.stdout.write(
                    f"serving {', '.join(queues)} of {engine.name!r} at {EngineAccess(engine).options.safe_url}: "
                    f"{worker.concurrency} tasks at once{where}; Ctrl-C ends it"
                )
                self.stdout.flush()
                worker.run()
            self.stderr.write("stopped")
        except BadInput as exc:
            raise CommandError(str(exc), returncode=2) from exc
        except (ShardqError, ImproperlyConfigured) as exc:
            raise CommandError(str(exc)) from exc


def _queues(backend: ShardqBackend, chosen: str | None) -> list[str]:
    names = list(map(str, backend.queue_names))
    if chosen is not None:
        given = [name.strip() for name in chosen.split(",")]
        foreign = [name for name in given if names and name not in names]
        if foreign:
            raise CommandError(f"--queues: {foreign[0]!r} is not in QUEUES of TASKS[{backend.alias!r}], {names}")
        names = given
    if not names:
        raise CommandError(f"QUEUES of TASKS[{backend.alias!r}] is empty, so any are possible: name them with --queues")
    for name in names:
        if (wrong := wrong_queue(name)) is not None:
            raise CommandError(wrong)
    return names


def _seconds(text: str) -> float:
    try:
        found = seconds(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None
    if not math.isfinite(found):
        raise argparse.ArgumentTypeError(f"{text!r} is too long")
    return found
