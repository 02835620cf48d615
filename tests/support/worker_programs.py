"""Programs of all sorts around a worker with several processes.

    python -m tests.support.worker_programs CASE URL NAME OPTIONS

What a program does with its threads, signals, children and descriptors must not disturb the children of the worker, nor
they it. Options and notes are those of ``working``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from shardq import Worker
from tests.support.waiting import wait_until
from tests.support.workers import say
from tests.support.working import Options, prepared, stopped_at_the_end

STRANGER_CODE = 7
STRANGER_S = 60.0


class Program:
    """What the cases are made of."""

    def __init__(self, worker: Worker, folder: Path) -> None:
        self.worker = worker
        self.folder = folder

    def main(self) -> None:
        self.worker.run()

    def thread(self) -> None:
        thread = threading.Thread(target=self.worker.run)
        thread.start()
        thread.join()

    def pool(self) -> None:
        """On a thread that did other work before, beside one that does some now."""
        with ThreadPoolExecutor(2) as pool:
            pool.submit(time.time).result()
            over = threading.Event()
            pool.submit(over.wait)
            pool.submit(self.worker.run).result()
            over.set()

    def blocked(self) -> None:
        """A program that waits for its signals (``sigwait``) blocks them in all its threads."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self.thread()

    def loop(self) -> None:
        """An event loop in the main thread, which has signal handlers of its own."""

        async def beside() -> None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, (self.folder / "heard").touch)
            await asyncio.to_thread(self.worker.run)

        asyncio.run(beside())

    def ignores(self) -> None:
        """The system reaps every child at once."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        self.main()

    def reaps(self) -> None:
        """As a process 1 does: it waits for whatever child has ended."""

        def reap(*_: object) -> None:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass

        signal.signal(signal.SIGCHLD, reap)
        self.main()

    def strangers(self) -> None:
        """A child of its own that has ended, and a handler of SIGCHLD: both as they were in the end."""
        heard: list[int] = []

        def handler(number: int, _: object) -> None:
            heard.append(number)

        signal.signal(signal.SIGCHLD, handler)
        stranger = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({STRANGER_CODE})"])
        self.main()
        assert signal.getsignal(signal.SIGCHLD) is handler
        assert heard
        assert os.waitstatus_to_exitcode(os.waitpid(stranger.pid, 0)[1]) == STRANGER_CODE

    def nohup(self) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.main()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

    def dies(self) -> None:
        """Children end at once. The program notes when each was forked."""
        began = time.monotonic()

        def note() -> None:
            with (self.folder / "forks").open("a") as file:
                file.write(f"{time.monotonic() - began}\n")

        os.register_at_fork(after_in_child=lambda: os._exit(3), after_in_parent=note)
        self.main()

    def struck(self) -> None:
        """Each child gets SIGTERM before it does anything."""
        os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
        self.thread()

    def prints(self) -> None:
        """Something is printed and not flushed when the children are forked."""
        sys.stdout = os.fdopen(os.dup(1), "w")  # one that keeps it, whatever PYTHONUNBUFFERED says
        sys.stdout.write("once\n")
        self.main()

    def forks(self) -> None:
        """The program forks for itself, with ``multiprocessing``, say. Its pid is in a file; it ends with the test."""

        def fork() -> None:
            wait_until(lambda: (self.folder / "fork").exists(), "it is to fork")
            pid = os.fork()
            if not pid:
                os.write(os.open(self.folder / "stranger", os.O_WRONLY | os.O_CREAT), str(os.getpid()).encode())
                (self.folder / "forked").touch()
                time.sleep(STRANGER_S)
                os._exit(0)

        threading.Thread(target=fork).start()
        self.main()


def main(case: str, url: str, name: str, text: str) -> None:
    options = msgspec.json.decode(text, type=Options)
    engine, worker = prepared(url, name, options)
    stopped_at_the_end(worker)
    say("ready")
    run: Callable[[], None] = getattr(Program(worker, Path(options.folder)), case)
    run()
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
