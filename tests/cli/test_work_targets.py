"""The worker that a user names is found, or they are told in their words why it is not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardq.cli.app import app
from shardq.cli.options import Given
from shardq.cli.target import LoadFailed, Target
from shardq.errors import BadInput
from shardq.worker import AsyncWorker, Worker
from shardq.worker.base import plan_of

MODULE = """
import shardq

engine = shardq.Engine("redis://127.0.0.1:1")
asyncio_engine = shardq.AsyncEngine("redis://127.0.0.1:1")
empty = shardq.Engine("redis://127.0.0.1:1")

@engine.task(topic="mail")
def send(): ...

@engine.task(topic="news")
def tell(): ...

@asyncio_engine.task
async def asend(): ...

worker = engine.worker({"mail": 2, "news": 1}, concurrency=3)
idle = empty.worker()

class Shop:
    worker = worker

def make(): return worker
def make_engine(): return asyncio_engine
def make_nothing(): return None
def needs(url): return worker
async def amake(): return worker
def fails(): raise KeyError("secret")
number = 42
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The module's name; it is in the current directory."""
    name = "targets_of_work"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("path", "kind", "topics"),
    [
        ("worker", Worker, ["mail", "news"]),
        ("Shop.worker", Worker, ["mail", "news"]),
        ("engine", Worker, ["mail", "news"]),
        ("asyncio_engine", AsyncWorker, [""]),
        ("make", Worker, ["mail", "news"]),
        ("make_engine", AsyncWorker, [""]),
    ],
)
def test_what_is_served(module: str, path: str, kind: type, topics: list[str]) -> None:
    worker = Target.parsed(f"{module}:{path}").load()
    assert type(worker) is kind
    assert list(plan_of(worker).handlers) == topics


def test_topics_and_concurrency_are_those_of_the_command(module: str) -> None:
    worker = Target.parsed(f"{module}:worker").load(topics=["news"], concurrency=7)
    plan = plan_of(worker)
    assert list(plan.handlers) == ["news"]
    assert [each.topic for each in plan.functions] == ["news"]
    assert plan.weights == {"news": 1}
    assert plan.concurrency == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "names no worker; write MODULE:WORKER, such as shopapp:worker"),
        ("{}:", "names no worker"),
        ("{}.py:worker", "is a file; give the name of its module: targets_of_work:worker"),
        ("shop/app.py", "give the name of its module: shop.app:worker"),
        ("{}:1x", "can't be a module and its worker"),
        ("target_of_work:worker", "there is no module 'target_of_work' .* did you mean 'targets_of_work'"),
        ("{}.jobs:worker", "there is no module 'targets_of_work.jobs'"),
        ("{}:wroker", "has no 'wroker'; .* has engine, asyncio_engine, empty, worker, idle"),
        ("{}:Shop.x", r"has no 'Shop\.x'"),
        ("{}:number", ":number is of type int; give a worker, an engine with tasks, or a function"),
        ("{}:send", ":send is a task, which a worker runs"),
        ("{}:make_nothing", "is of type NoneType"),
        ("{}:needs", "needs arguments"),
        ("{}:amake", "is a coroutine function"),
        ("{}:empty", "has no tasks: declare functions with @empty.task"),
        ("{}:idle", "the worker has no handler, and its engine no task"),
    ],
)
def test_what_is_no_worker(module: str, text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Target.parsed(text.format(module)).load()


def test_topics_that_it_does_not_serve(module: str) -> None:
    with pytest.raises(BadInput, match=r"does not serve 'x'; its topics are \['mail', 'news'\]"):
        Target.parsed(f"{module}:worker").load(topics=["mail", "x"])


def test_a_factory_that_fails_shows_its_own_traceback(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LoadFailed, match=":fails failed: KeyError"):
        Target.parsed(f"{module}:fails").load()
    err = capsys.readouterr().err
    assert err.count("  File ") == 1
    assert err.endswith("KeyError: 'secret'\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [("import nosuchthing", "No module named 'nosuchthing'"), ("raise SystemExit(3)", "SystemExit: 3"), ("1 +", "1 +")],
)
def test_an_import_that_fails(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, shown: str
) -> None:
    (tmp_path / f"{module}.py").write_text(text)
    with pytest.raises(LoadFailed, match="could not be imported") as caught:
        Target.parsed(f"{module}:worker").load()
    assert shown in capsys.readouterr().err
    assert str(tmp_path / f"{module}.py") in caught.value.files


def test_the_help_has_examples_and_variables() -> None:
    done = CliRunner().invoke(app, ["work", "--help"], obj=Given())
    assert done.exit_code == 0
    assert "example:\n    shardq work shopapp:worker" in done.output
    assert "[env var: SHARDQ_WORK_PROCESSES;" in " ".join(done.output.split())


def test_a_look_imports_nothing(module: str) -> None:
    Target.parsed(f"{module}:worker").look()
    assert module not in sys.modules
    with pytest.raises(BadInput, match="there is no module 'elsewhere_'"):
        Target.parsed("elsewhere_.x:worker").look()
