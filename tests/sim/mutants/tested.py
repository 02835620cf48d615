"""Tests that run on a mutant: one pytest session that has imported everything and started its servers, and a fork of it
for each mutant. A fork is ended at the first test that fails.

``serve`` runs a session over folders, and hands a ``Bench`` over to whoever gives it work; it returns when that does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import coverage
import pytest
import redis
from _pytest.runner import runtestprotocol

from cluster.server import Server
from shardq.core.calls.request import Call
from shardq.core.scripts import Script
from tests.lua.shard import User
from tests.sim.branches.reached import ROOT
from tests.sim.model.server import Server as Model

BUSY_MS = 3000
"""A script that runs for so long is in an endless loop."""

TEST_CPU_S = 5
"""The same on a model, where no server tells of it. The longest test takes a quarter of a second."""

Work = Callable[["Bench"], None]


@dataclass
class Verdict:
    """What became of one mutant in one stage."""

    is_killed: bool
    by: str = ""
    """The test, the run, or how it ended."""
    seconds: float = 0.0


class Bench:
    """A session that is ready: its tests, and the server that they share."""

    def __init__(self, session: pytest.Session) -> None:
        self.items = {item.nodeid: item for item in session.items if _is_wanted(item)}
        self.server: Server | None = None

    def warm_up(self) -> None:
        """Runs tests until the server that all share is there."""
        for item in self.items.values():
            if "single" in getattr(item, "fixturenames", ()) or "url" in getattr(item, "fixturenames", ()):
                self.run(item)
                assert self.server is not None, "a test has started it"
                self.server.ask("CONFIG", "SET", "lua-time-limit", str(BUSY_MS))
                return

    def run(self, item: pytest.Item) -> bool:
        """Runs one test. Returns True if it passes. Only what the session shares stays."""
        reports = runtestprotocol(item, nextitem=item.session, log=False)  # type: ignore[arg-type]
        return all(report.passed or report.skipped for report in reports)

    def calls(self, item: pytest.Item) -> tuple[bool, set[str]]:
        """Runs one test. Returns True if it passes, and the scripts that it sent, with lanes ``with_keys``."""
        with _recorded() as sent:
            passed = self.run(item)
        return passed, sent

    def lines(self, item: pytest.Item, modules: Sequence[str]) -> tuple[bool, set[str]]:
        """Runs one test. Returns True if it passes, and the lines of these modules that it came by."""
        files = {str(ROOT / module): module for module in modules}
        watching = coverage.Coverage(data_file=None, config_file=False, include=list(files), messages=False)
        watching.set_option("run:disable_warnings", ["no-data-collected"])
        watching.start()
        try:
            passed = self.run(item)
        finally:
            watching.stop()
        data = watching.get_data()
        return passed, {f"{files[file]}:{line}" for file in files for line in data.lines(file) or ()}

    def judged(self, prepare: Callable[[], object], tests: Iterable[str], most_s: float) -> Verdict:
        """Runs tests in a fork, up to the first that fails. ``prepare`` is called there before them."""

        def work() -> str:
            prepare()
            for test in tests:
                _allow(TEST_CPU_S)
                if not self.run(self.items[test]):
                    return test
            return ""

        verdict = forked(work, most_s=most_s, watch=self._stuck)
        if self.server is not None:
            self._clean(self.server)
        return verdict

    def _stuck(self) -> str:
        """Looks if the server runs a script that does not end, and ends it."""
        if self.server is None:
            return ""
        try:
            self.server.ask("PING", timeout=20.0)
        except redis.ResponseError as exc:
            if "BUSY" not in str(exc):
                raise
            return "a script that does not end"
        except (redis.ConnectionError, redis.TimeoutError) as exc:
            return f"a server that does not answer: {exc}"
        return ""

    def _clean(self, server: Server) -> None:
        try:
            with contextlib.suppress(redis.ResponseError):
                server.ask("SCRIPT", "KILL")
            server.ask("FLUSHALL", timeout=5.0)
            server.ask("SCRIPT", "FLUSH", timeout=5.0)
            server.ask("CONFIG", "SET", "maxmemory", "0", timeout=5.0)
        except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError):
            server.kill()
            server.start()
            server.ask("CONFIG", "SET", "lua-time-limit", str(BUSY_MS))


def forked(
    work: Callable[[], str], *, most_s: float, cpu_s: int = 0, watch: Callable[[], str] | None = None
) -> Verdict:
    """Runs work in a fork, which answers what killed the mutant, or nothing. A fork that ends in another way, or not
    within its time, is a mutant that was killed.
    """
    began = time.monotonic()
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        _in_the_fork(work, theirs, cpu_s)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        told, ended = b"", ""
        while not ended:
            status = _waited(pid, 1.0)
            if status is not None:
                told = pipe.read()
                break
            if time.monotonic() - began > most_s:
                ended = f"more than {most_s:.0f} s"
            elif watch is not None:
                ended = watch()
        if ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    seconds = time.monotonic() - began
    if ended:
        return Verdict(True, ended, seconds)
    if told.startswith(b"!"):
        return Verdict(bool(told[1:]), told[1:].decode(), seconds)
    assert status is not None
    return Verdict(True, f"a process that ended by {os.waitstatus_to_exitcode(status)}", seconds)


def _in_the_fork(work: Callable[[], str], pipe: int, cpu_s: int) -> None:
    import resource

    told = "an error of the session"
    try:
        if cpu_s:
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
        told = work()
    except BaseException as exc:  # noqa: BLE001  whatever it is, this process ends here
        told = f"{type(exc).__name__}: {exc}"
    finally:
        os.write(pipe, b"!" + told.encode("utf-8", "backslashreplace")[:4000])
        os._exit(0)


def _allow(cpu_s: int) -> None:
    """This process ends when it has used so much more of the processor's time."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + cpu_s, most))


def _waited(pid: int, seconds: float) -> int | None:
    """The status of a process that ends within so many seconds."""
    end = time.monotonic() + seconds
    pause = 0.002
    while True:
        gone, status = os.waitpid(pid, os.WNOHANG)
        if gone:
            return status
        if time.monotonic() > end:
            return None
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)


@contextlib.contextmanager
def _recorded() -> Iterator[set[str]]:
    """Tells which scripts are sent in this block."""
    sent: set[str] = set()
    packed, ask, run = Call.packed, User.ask, Model.run_coded

    def packing(self: Call[Any]) -> bytes:
        sent.add(_told(self.script))
        return packed(self)

    def asking(self: User, call: Call[Any]) -> Any:
        sent.add(_told(call.script))
        return ask(self, call)

    def running(self: Model, script: Script, keys: list[bytes], words: list[bytes]) -> Any:
        sent.add(_told(script))
        return run(self, script, keys, words)

    with (
        mock.patch.object(Call, "packed", packing),
        mock.patch.object(User, "ask", asking),
        mock.patch.object(Model, "run_coded", running),
    ):
        yield sent


def with_keys(name: str) -> str:
    """A script as it is sent to an engine that has keys: without them it has no lanes."""
    return f"{name} with keys"


def _told(script: Script) -> str:
    return with_keys(script.name) if "local function lane_of(" in script.text else script.name


def _is_wanted(item: pytest.Item) -> bool:
    """One server is enough: a script does the same on a cluster."""
    parts = item.nodeid.partition("[")[2].rstrip("]").split("-")
    return "cluster" not in parts


@dataclass(eq=False)
class _Plugin:
    work: Work
    bench: Bench | None = None
    failure: BaseException | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        value = yield
        if self.bench is not None and fixturedef.argname == "single":
            assert isinstance(value, Server)
            self.bench.server = value
        return value

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.bench = Bench(session)
        try:
            self.bench.warm_up()
            self.work(self.bench)
        except BaseException as exc:  # noqa: BLE001  pytest would tell it in its own way
            self.failure = exc
        return True


def serve(folders: Sequence[Path], work: Work, marks: str = "") -> None:
    """Runs a session over folders of tests, and ``work`` in it. ``marks``: which of them, as for -m."""
    plugin = _Plugin(work)
    arguments = ["-q", "-s", "-W", "ignore::pytest.PytestAssertRewriteWarning", "-m", marks]
    for needless in ("cacheprovider", "benchmark", "xdist", "logging"):
        arguments += ["-p", f"no:{needless}"]
    pytest.main([*arguments, *map(str, folders)], plugins=[plugin])
    if plugin.failure is not None:
        raise plugin.failure
