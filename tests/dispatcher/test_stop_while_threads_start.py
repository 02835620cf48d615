"""A dispatcher that is stopped while its forwarder or its migrator is being started ends, and so do they."""

from __future__ import annotations

import threading

import pytest

from shardq import Engine, Task
from tests.support.waiting import wait_until

SHARDS = 4


class StoppedAtStart:
    """Stops the engine from another thread the moment a thread of that name is about to start."""

    def __init__(self, engine: Engine, thread: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done = threading.Event()
        self.errors: list[RuntimeError] = []
        self._engine = engine
        self._thread = thread
        self._start = threading.Thread.start
        monkeypatch.setattr(threading.Thread, "start", lambda thread: self._on_start(thread))

    def _on_start(self, thread: threading.Thread) -> None:
        if thread.name == self._thread:
            stopping = threading.Thread(target=self._stop, name="stopping")
            self._start(stopping)
            stopping.join(0.3)  # as far as it comes before this one has started
        self._start(thread)

    def _stop(self) -> None:
        try:
            self._engine.stop()
        except RuntimeError as exc:
            self.errors.append(exc)
        finally:
            self.done.set()


@pytest.fixture
def engine(url: str, name: str) -> Engine:
    return Engine(url, name=name, shards=SHARDS, timeout=10.0)


@pytest.mark.parametrize("url", ["cluster"], indirect=True)
def test_the_forwarder(engine: Engine, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine:
        engine.start()
        # most shards are in another slot than the list
        engine.forward("email", to=f"mine:{name}")
        stopped = StoppedAtStart(engine, "shardq-forwarder", monkeypatch)
        engine.push_many([Task(n, topic="email") for n in range(50)])
        wait_until(stopped.done.is_set, "the engine has stopped")
        assert stopped.errors == []


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_the_migrator(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine:
        engine.start()
        stopped = StoppedAtStart(engine, "shardq-migrator", monkeypatch)
        engine.resize(2 * SHARDS)
        wait_until(stopped.done.is_set, "the engine has stopped")
        assert stopped.errors == []
