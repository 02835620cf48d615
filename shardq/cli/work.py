"""work: the command that runs a worker of the user's module, until SIGINT or SIGTERM; with --reload anew whenever a
file of the program is saved.

The worker runs in a thread of its own, so that it hears no signals: the main thread does, or the process that watches
this one. Both kinds of worker are told by ``stop()``, once to end and once more to hurry. For --reload the parent
imports nothing of the program: it forks a child that does, which ends with ``CHANGED`` when a file is saved, and is
started again.
"""

from __future__ import annotations

import io
import math
import os
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable
from concurrent import futures
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from shardq.cli.options import Given, Whole, command, pass_given, reporting, setting
from shardq.cli.output import complain, going_on, say, set_up_logging, set_up_root, tell
from shardq.cli.serving import MAX_PROCESSES, Shutdown, check_one_process, child, http, log_option, served
from shardq.cli.target import LoadFailed, Target, engine_behind
from shardq.core.locks import LOOK_S, SignalSafeEvent
from shardq.core.model.ids import shown_topic
from shardq.core.threads import begun
from shardq.engine.around import EngineAccess, counted
from shardq.errors import BadInput
from shardq.worker import Worker
from shardq.worker.base import plan_of
from shardq.worker.supervisor import ProcessSupervisor

if TYPE_CHECKING:
    from shardq.worker import AsyncWorker, Worker

MAX_CONCURRENCY = 100_000


@command("Run a worker of your module, until Ctrl-C.")
@click.argument("target", metavar="MODULE:WORKER")
@setting(
    "--processes",
    type=Whole(1, MAX_PROCESSES),
    help="Run handlers in N processes; one that dies is restarted. Default: the worker's own number, or 1.",
)
@setting(
    "--concurrency",
    type=Whole(1, MAX_CONCURRENCY),
    help="Run N handlers at once in each process. Default: the worker's own number.",
)
@setting(
    "--topics",
    metavar="TOPIC,...",
    help="Serve only these topics of the worker, the first ones first; '' is the default topic. Default: all.",
)
@http
@click.option("--reload", is_flag=True, help="Start again when a .py file of the program is saved: for development.")
@setting("--quiet", is_flag=True, help="Print nothing but warnings.")
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
    quiet: bool,
    log: str,
) -> int:
    """Import MODULE, from the current directory too, and run its WORKER until Ctrl-C or SIGTERM: it claims ready
    tasks and runs their handlers.

    WORKER is a worker, an engine (then its declared tasks are served), or a function without arguments that returns
    one. The module says which server it uses: its engine has a URL, or takes $SHARDQ_URL. `shardq run`, or a
    process that called engine.start(), makes due tasks ready; if there is neither, a warning says so within 3 s.

    On the first signal the worker claims no more, and running handlers finish within its grace. A second signal ends
    it at once.

    example:
      shardq work shopapp:worker                    (a worker of shopapp.py)
      shardq work shopapp:engine --concurrency 32   (the tasks of an engine)
      shardq work shop.jobs:make_worker             (a function that returns one)
      shardq work shopapp:worker --processes 4 --topics mail,invoice
      shardq work shopapp:worker --reload           (while you write it)

    exit codes:
      0         ended by a signal: running handlers finished, or their tasks
                were given back after the grace
      1         the module failed, or the servers can't be reached
      2         there is no such worker; nothing was done
      130, 143  a second Ctrl-C or SIGTERM: running tasks were given back at once
    """
    if given.url is not None or given.name is not None:
        raise BadInput("work takes no --url and no --name: the engine of the module has its own; set $SHARDQ_URL")
    typed = click.get_current_context().get_parameter_source("processes") is ParameterSource.COMMANDLINE
    if reload and typed and processes != 1:
        raise BadInput("--reload runs one process; leave out --processes")
    if reload and http is not None:
        raise BadInput("--reload is for development, and starts again often; leave out --http")
    set_up_logging(verbose=given.verbose, form=log)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what handlers print is seen at once, in a file, too
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
            loaded = partial(_say, given, processes=1, quiet=quiet)
            life = partial(serve_until_changed, load, shutdown.stop, shutdown.hurry, loaded=loaded)
            grace = math.inf  # the child knows the worker's
            supervisor.run(child(given, life), shutdown.stop, shutdown.hurry, heard=shutdown.heard, grace=grace)
        else:
            _serve(given, worker, processes, http, shutdown, quiet=quiet)
    if not given.json and not quiet:
        complain("stopped")
    return shutdown.code


def _serve(
    given: Given,
    worker: Worker | AsyncWorker,
    processes: int | None,
    http: str | None,
    shutdown: Shutdown,
    *,
    quiet: bool,
) -> None:
    if isinstance(worker, Worker):
        processes = processes or worker.processes
        worker.processes = 1  # in each of them
    count = processes or 1
    check_one_process(http, count)
    _say(given, worker, processes=count, quiet=quiet)
    life = partial(serve, worker, shutdown.stop, shutdown.hurry)
    if count == 1:
        with served(engine_behind(worker), http, "worker"):
            life()
    else:
        supervisor = ProcessSupervisor(count)
        supervisor.run(child(given, life), shutdown.stop, shutdown.hurry, heard=shutdown.heard, grace=worker.grace)


def _say(given: Given, worker: Worker | AsyncWorker, *, processes: int, quiet: bool) -> None:
    """Tells what is served, and where."""
    if quiet:
        return
    engine, handlers = engine_behind(worker), plan_of(worker).handlers
    batches = {topic: handler.batching.size for topic, handler in handlers.items() if handler.batching is not None}
    with going_on():
        if given.json:
            served = {"name": engine.name, "url": EngineAccess(engine).options.safe_url, "topics": list(handlers)}
            tell(served | {"batches": batches, "concurrency": worker.concurrency, "processes": processes})
            return
        where = "" if processes == 1 else f" in each of {processes} processes"
        of = {topic: f" (batches of {size:,})" for topic, size in batches.items()}
        names = ", ".join(shown_topic(topic) + of.get(topic, "") for topic in handlers)
        say(
            f"serving {names} of {engine.name!r} at {EngineAccess(engine).options.safe_url}: "
            f"{counted(worker.concurrency, 'handler')} at once{where}; Ctrl-C ends it"
        )


def serve(worker: Worker | AsyncWorker, stop: SignalSafeEvent, hurry: SignalSafeEvent) -> None:
    """Runs the worker until ``stop``, and without its grace from ``hurry`` on; then closes its engine."""
    run, tell = _of_threads(worker) if isinstance(worker, Worker) else _of_asyncio(worker)
    ended = begun(run, "shardq-work")
    for event in (stop, hurry):
        while not (ended.done() or event.wait(LOOK_S)):
            pass
        if not ended.done():
            tell()
    while not ended.done():
        futures.wait([ended], LOOK_S)
    ended.result()


def _of_threads(worker: Worker) -> tuple[Callable[[], None], Callable[[], None]]:
    def run() -> None:
        try:
            worker.run()
        finally:
            engine_behind(worker).close()

    return run, worker.stop


def _of_asyncio(worker: AsyncWorker) -> tuple[Callable[[], None], Callable[[], None]]:
    import asyncio  # here: no other command needs it

    loop = asyncio.new_event_loop()  # it takes calls before it runs

    async def run() -> None:
        try:
            await worker.run()
        finally:
            closing = engine_behind(worker).close()
            assert closing is not None, "an asyncio worker has an AsyncEngine"
            await closing

    def run_loop() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run())

    def tell() -> None:
        with suppress(RuntimeError):  # it has just ended
            loop.call_soon_threadsafe(worker.stop)

    return run_loop, tell


CHANGED = 3
"""The exit code of a child that is to be started again."""

FILES_S = 0.3
"""Between two looks at the files."""


class Files:
    """The .py files of the program: those of modules that were imported since it was made, and are neither Python's nor
    installed.
    """

    def __init__(self) -> None:
        self._before = frozenset(sys.modules)
        python = map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
        installed = (*site.getsitepackages(), site.getusersitepackages())
        self._foreign = tuple(path + os.sep for path in {*python, *installed})
        self._saved: dict[str, int] = {}
        """Each file, and when it was saved as the program was loaded."""

    def add(self, files: Iterable[str] = ()) -> None:
        """Notes the modules that are there by now, and further files."""
        modules = [module for name, module in list(sys.modules.items()) if name not in self._before]
        # By the dict: some modules import more when they are asked for a name.
        loaded = (vars(module).get("__file__") for module in modules if isinstance(module, ModuleType))
        for file in filter(None, (*files, *loaded)):
            if file.endswith(".py") and file not in self._saved and not file.startswith(self._foreign):
                with suppress(OSError):
                    self._saved[file] = Path(file).stat().st_mtime_ns

    def changed(self) -> str | None:
        """Returns a file that was saved since it was noted. One that is gone may be about to be written anew."""
        self.add()
        for file, saved in self._saved.items():
            with suppress(OSError):
                if Path(file).stat().st_mtime_ns != saved:
                    return file
        return None


def serve_until_changed(
    load: Callable[[], Worker | AsyncWorker],
    stop: SignalSafeEvent,
    hurry: SignalSafeEvent,
    *,
    loaded: Callable[[Worker | AsyncWorker], None],
) -> int:
    """The life of a child: runs the worker, or shows why it can't be loaded, until a file changes or ``stop``."""
    # By the bytecode, a change in the same second that keeps the file's size would be none.
    sys.dont_write_bytecode = True
    files = Files()
    try:
        worker = load()
    except (LoadFailed, BadInput) as exc:
        files.add(exc.files if isinstance(exc, LoadFailed) else ())
        complain(f"error: {exc}; waiting until a file is saved")
        while not stop.wait(FILES_S):
            if files.changed() is not None:
                return CHANGED
        return 0
    files.add()
    loaded(worker)
    changed = threading.Event()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(FILES_S):
            if file := files.changed():
                complain(f"{os.path.relpath(file)} has changed: starting again")
                changed.set()
                stop.set()
                return

    threading.Thread(target=watch, name="shardq-files", daemon=True).start()
    try:
        serve(worker, stop, hurry)
    finally:
        ended.set()
    return CHANGED if changed.is_set() else 0
