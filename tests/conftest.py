"""Servers and names for the tests. Every server is a real one; none is started before a test asks for it.

``url`` runs a test on one server and on a cluster; ``--server`` chooses the program, ``--server all`` runs
every test on every kind found. Tests share these servers, and stay apart by ``name``; one that breaks its
server takes ``own_server`` or ``own_cluster``, one that freezes nodes and lets them go on ``lasting_cluster``.

``engines`` makes engines of both kinds: a test that takes it, or ``engine``, runs for threads and for asyncio. With
``url`` it runs on the diagonal, ``DIAGONAL``, or in one of its ways, ``ONE_WAY``; one marked ``square`` in all four.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import os
import signal
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from cluster.cluster import Cluster
from cluster.server import Server
from cluster.servers import DEFAULT, KINDS, binary, found
from shardq import Consumer, Engine
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from tests.support import browser, tiers
from tests.support.diagonal import diagonal
from tests.support.engines import SHARDS, Engines
from tests.support.leaks import Leaks
from tests.support.servers import Servers
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from cluster.postgres import Postgres

ROOT = Path(__file__).parents[1]

# No test breaks the shared cluster: it must not fail over because the machine was busy for two seconds.
_CALM_NODE_TIMEOUT_MS = 15_000

# Longer than any test holds a node back.
_LASTING_NODE_TIMEOUT_MS = 120_000

# A machine that stands still in an example is no failure of what is tried, and a run finds what the one before found:
# look for new examples with --hypothesis-profile=default.
hypothesis.settings.register_profile(
    "certain", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("certain")
# `make fuzz` looks for new ones.
hypothesis.settings.register_profile(
    "fuzz",
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)

DIAGONAL = [("sync", "single"), ("asyncio", "cluster")]
"""The ways of a test of both engines on both kinds of servers. Drivers are tried in all four, scripts on one server,
and each of them once on a cluster. What lies between is the same for threads and asyncio, on one server and on many.
"""

ONE_WAY = ("delivery", "dispatcher", "fleet", "history", "keys", "schedules", "versions", "webhooks")
"""Folders of what scripts, pollers and loops of threads do, whoever asks for it: each of their tests takes one way."""

# Engines warn of servers that keep nothing on their disks: these would write a snapshot, but the time never comes.
_UNSUSPECTED = {"save": "31536000 1000000000"}

# A shell ignores SIGINT in the background, and processes inherit that: those that tests interrupt would not get it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--server",
        default=DEFAULT,
        choices=(*KINDS, "all"),
        help="the kind of server to test on; a named kind that is not found fails (default: %(default)s)",
    )
    parser.addoption(
        "--browser",
        default="found",
        choices=("found", "required"),
        help="run the tests in a browser where one is found, or fail where there is none (default: %(default)s)",
    )
    parser.addoption("--brokers", action="store_true", help="also the tests on brokers that no package brings")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Ordering())
    if config.getoption("--browser") == "required":
        try:
            browser.needed()
        except browser.NoBrowser as exc:
            raise pytest.UsageError(str(exc)) from None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the tests on brokers that no package brings, unless `make test-brokers` asks for them, and those in a
    browser where there is none; ``pytest_terminal_summary`` says so. `make test` loads none that it leaves out whole.
    """
    if config.getoption("markexpr") == tiers.AT_EACH_CHANGE and tiers.is_of_a_tool_alone(collection_path):
        return True
    if collection_path == Path(__file__).parent / "brokers":
        return None if config.getoption("--brokers") else True
    if config.getoption("--browser") == "required" or not collection_path.match(f"*/{browser.FOLDER}"):
        return None
    return True if browser.found() is None else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before -m chooses by these marks."""
    tiers.mark(items)


class Ordering:
    """The last that looks at the tests that are chosen."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if (processes := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))) > 1:
            items[:] = tiers.spread(items, processes)


def pytest_collection(session: pytest.Session) -> None:
    """Every process of a run loads all tests. On a new machine each would compile all of them, half a minute of work:
    so each begins with other files, and finds what the others have compiled by then.
    """
    count, worker = os.environ.get("PYTEST_XDIST_WORKER_COUNT"), os.environ.get("PYTEST_XDIST_WORKER", "")
    if count is None:
        return
    roots = [Path(each) for each in session.config.args]
    files = [path for root in roots if root.is_dir() for path in sorted(root.rglob("test_*.py"))]
    if session.config.getoption("markexpr") == tiers.AT_EACH_CHANGE:
        files = [path for path in files if not tiers.is_of_a_tool_alone(path.absolute())]
    for path in files[int(worker.removeprefix("gw")) :: int(count)]:
        with contextlib.suppress(Exception):  # the collection tells it, if it is one of its files
            importlib.import_module(".".join(path.absolute().relative_to(ROOT).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """A garbage collection goes through all objects that there are, half a million of them after the collection of the
    whole suite, and many tests end with one: see ``Leaks``. These stay, so that it need not look at them.
    """
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in tiers.told(terminalreporter.stats):
        terminalreporter.write_line(line)
    if config.getoption("--browser") == "found" and (line := browser.left_out()):
        terminalreporter.write_line(line, yellow=True)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server_binary" in metafunc.fixturenames:
        kind = metafunc.config.getoption("--server")
        kinds = list(found()) if kind == "all" else [kind]
        metafunc.parametrize("server_binary", kinds, indirect=True, scope="session")
    if metafunc.definition.get_closest_marker("square") is None:
        folder = metafunc.definition.path.relative_to(ROOT / "tests").parts[0]
        diagonal(metafunc, ("engines", "url"), DIAGONAL, one=folder in ONE_WAY)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Makes captured logs valid Unicode: a test process can't send others to the process that reports."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def server_binary(request: pytest.FixtureRequest) -> Path:
    """The server program under test."""
    return binary(request.param)


@pytest.fixture(scope="session")
def single(server_binary: Path) -> Iterator[Server]:
    """One server, shared by all tests."""
    with Server(server_binary, options=_UNSUSPECTED) as server:
        yield server


@pytest.fixture(scope="session")
def cluster(server_binary: Path) -> Iterator[Cluster]:
    """A cluster of three masters with a replica each, shared by all tests."""
    with Cluster(
        server_binary, masters=3, replicas=1, node_timeout_ms=_CALM_NODE_TIMEOUT_MS, options=_UNSUSPECTED
    ) as cluster:
        yield cluster


@pytest.fixture(scope="session", params=["single", "cluster"])
def url(request: pytest.FixtureRequest, server_binary: Path) -> str:
    """The URL to connect to. A test runs on a server and on a cluster, unless it parametrizes ``url`` indirectly."""
    server: Server | Cluster = request.getfixturevalue(request.param)
    return server.url


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL, shared by all tests; each makes a database of its own in it."""
    # Its client is not there where the lowest versions of the dependencies are tried.
    from cluster.postgres import Postgres

    with Postgres() as server:
        yield server


# What is answered is in the file, whatever happens to the process: with the default, "everysec", a write may wait two
# seconds for a slow disk while its answer is sent, and SIGKILL then takes it along.
_KEPT = {"appendonly": "yes", "appendfsync": "no"}


@pytest.fixture
def own_server(server_binary: Path) -> Iterator[Server]:
    """A server for this test alone, which may break it: it keeps an append-only file."""
    with Server(server_binary, options=_KEPT) as server:
        yield server


@pytest.fixture
def replica(own_server: Server) -> Iterator[Server]:
    """A replica of ``own_server``, in step with it."""
    own_server.ask("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    with Server(own_server.binary, options={"replicaof": own_server.address.replace(":", " ")}) as replica:
        wait_until(lambda: _online(own_server) == 1, "the replica is in step", timeout=30)
        yield replica


def _online(master: Server) -> int:
    """Replicas that get the writes as they are made."""
    return sum("online" in str(value) for key, value in master.ask("INFO", "replication").items() if "slave" in key)


@pytest.fixture
def own_cluster(server_binary: Path) -> Iterator[Cluster]:
    """A cluster for this test alone, which may break it: it fails over after two seconds."""
    with Cluster(server_binary, masters=3, replicas=1, options=_KEPT) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _lasting_cluster(server_binary: Path) -> Iterator[Cluster]:
    with Cluster(server_binary, masters=3, replicas=0, node_timeout_ms=_LASTING_NODE_TIMEOUT_MS) as cluster:
        yield cluster


@pytest.fixture
def lasting_cluster(_lasting_cluster: Cluster) -> Iterator[Cluster]:
    """Three masters without replicas, shared by the tests that freeze some of them: none fails over, and all of them go
    on when the test ends.
    """
    yield _lasting_cluster
    for node in _lasting_cluster.nodes:
        if not node.running:
            node.resume()


@pytest.fixture
def name() -> str:
    """The name of an engine that no other test uses."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture(params=["sync", "asyncio"])
def engines(request: pytest.FixtureRequest) -> Iterator[Engines]:
    made = Engines(request.param)
    yield made
    made.end()


@pytest.fixture(params=["asyncio", "uvloop"])
def loops(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs a test on the event loop of asyncio, and on uvloop."""
    if request.param == "uvloop":
        # It is not there where the lowest versions of the dependencies are tried.
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    yield
    asyncio.set_event_loop_policy(None)


@pytest.fixture
def engine(engines: Engines, url: str, name: str) -> Engine:
    """An open engine with a new name, without pollers."""
    return engines.opened(url, name=name, shards=SHARDS, timeout=10.0)


@pytest.fixture
def running(engine: Engine) -> Engine:
    """The same engine, dispatching."""
    engine.start()
    return engine


@pytest.fixture
def other(engines: Engines, running: Engine, url: str, name: str) -> Engine:
    """Another process of the fleet of ``running``, as the servers see it."""
    return engines.opened(url, name=name, shards=SHARDS)


@pytest.fixture
def consumer(engine: Engine) -> Consumer:
    """A consumer of the default topic."""
    return engine.consumer()


@pytest.fixture
def servers(url: str) -> Iterator[Servers]:
    """The servers behind ``url``, for plain commands."""
    with Servers(url) as servers:
        yield servers


@pytest.fixture
def driver(url: str) -> Iterator[Driver]:
    """An open driver of threads, without an engine."""
    driver = Driver(Settings.from_url(url))
    driver.open()
    yield driver
    driver.close()


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fails a test that leaves threads of an engine or open sockets. The first fixture, so it checks last."""
    leaks = Leaks()
    yield
    leaks.check()
