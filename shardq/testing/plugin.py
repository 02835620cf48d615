"""The pytest plugin: its options and fixtures. pytest loads it in every run, so it imports nothing before it is used.

``-p no:shardq`` leaves it out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from shardq import AsyncEngine, Engine
    from shardq.testing import AsyncClock, Clock

ENVIRONMENT = "SHARDQ_TEST_URL"

LONGEST_S = 30.0
"""The longest time for which a test in real time waits at once; longer ones are skipped."""

MARKER = (
    "shardq(real_time=None, start=None, shards=1, **options): how shardq_clock and shardq_engine are made: in real "
    "time or not, the clock's first now (an aware datetime), the number of shards, and other options of shardq.Engine"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shardq", "tests of programs that use shardq")
    text = "the server for engines of tests, such as redis://127.0.0.1:6379/0"
    group.addoption(
        "--shardq-url",
        metavar="URL",
        help=f"{text} (default: ${ENVIRONMENT}, else shardq_url in the ini file, else an embedded server of the run)",
    )
    group.addoption(
        "--shardq-real-time",
        action="store_true",
        help="shardq_clock moves no virtual time, but waits, while real pollers dispatch; tests that would wait for "
        f"more than {LONGEST_S:g} seconds at once are skipped",
    )
    parser.addini("shardq_url", text)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture(scope="session")
def shardq_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the server for engines of tests. An embedded one is shared by all tests of a run, also of its parallel
    processes, and ends with the last of them.
    """
    config = request.config
    url = config.getoption("--shardq-url") or os.environ.get(ENVIRONMENT) or config.getini("shardq_url")
    if url:
        yield url
        return
    folder = tmp_path_factory.getbasetemp()
    if hasattr(config, "workerinput"):
        folder = folder.parent  # that of all processes of a run with pytest-xdist
    from shardq.errors import EmbeddedFault
    from shardq.features import embedded

    try:
        server = embedded.enter(folder / "shardq-server")
    except EmbeddedFault as exc:
        pytest.fail(
            f"there is no server for shardq's fixtures; name one by --shardq-url or ${ENVIRONMENT}, or: {exc}",
            pytrace=False,
        )
    with server:
        yield server.url


@pytest.fixture
def shardq_clock(request: pytest.FixtureRequest, shardq_url: str) -> Iterator[Clock]:
    """A clock that the test moves; see ``shardq.testing.Clock``. With --shardq-real-time, and in tests with
    ``@pytest.mark.shardq(real_time=True)``, it waits instead.
    """
    from shardq.testing.clock import Clock

    with Clock(shardq_url, **_clock_options(request)) as clock:
        yield clock


@pytest.fixture
def shardq_engine(request: pytest.FixtureRequest, shardq_clock: Clock) -> Engine:
    """An engine of the test's own, under a new name, which goes by ``shardq_clock``. It has one shard, so that tasks
    become ready in the order of their due times; ``@pytest.mark.shardq(shards=16, codec="msgpack")`` has other options.
    """
    from shardq import Engine

    return shardq_clock.adopt(Engine(shardq_clock.url, **_engine_options(request)))


@pytest.fixture
def shardq_async_clock(request: pytest.FixtureRequest, shardq_url: str) -> Iterator[AsyncClock]:
    """Like ``shardq_clock``, for tests on asyncio: ``await shardq_async_clock.advance(days=1)``."""
    from shardq.testing.clock import AsyncClock

    clock = AsyncClock(shardq_url, **_clock_options(request))
    yield clock
    clock.close_from_outside()


@pytest.fixture
def shardq_async_engine(request: pytest.FixtureRequest, shardq_async_clock: AsyncClock) -> AsyncEngine:
    """Like ``shardq_engine``, for tests on asyncio, whatever runs them: pytest-asyncio, anyio, or
    ``asyncio.run`` in the test. It opens itself at its first use.
    """
    from shardq import AsyncEngine

    return shardq_async_clock.adopt(AsyncEngine(shardq_async_clock.url, **_engine_options(request)))


def _marked(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The options of all markers ``shardq`` of the test; the nearest counts."""
    options: dict[str, Any] = {}
    for marker in request.node.iter_markers("shardq"):
        if marker.args:
            pytest.fail(f"@pytest.mark.shardq takes options by name, not {marker.args!r}: {MARKER}", pytrace=False)
        options = {**marker.kwargs, **options}
    return options


def _clock_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The options of a clock, as the command line and the test's markers say."""
    marked = _marked(request)
    start, real_time = marked.get("start"), marked.get("real_time")
    real_time = bool(request.config.getoption("--shardq-real-time") if real_time is None else real_time)
    if real_time and start is not None:
        pytest.skip("start= is for virtual time")
    return {"start": start, "real_time": real_time, "too_long": _too_long}


def _too_long(seconds: float) -> None:
    if seconds > LONGEST_S:
        pytest.skip(f"it would wait for {seconds:,.0f} seconds of real time, more than {LONGEST_S:g}")


def _engine_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    own = {name: value for name, value in _marked(request).items() if name not in ("start", "real_time")}
    return {"shards": 1, **own}
