"""Celery's own worker as a process, the app in this one, and what its tasks have seen."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import kombu.pools
import redis

from tests.support.waiting import wait_until

MODULE = "tests.integrations.celery.app"
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=INFO")
VARIABLE = "SHARDQ_TEST_CELERY"
SOON_S = 60.0


class Stand:
    """One app: its settings, its runs, and workers of it."""

    def __init__(self, url: str, name: str, *, broker: str | None = None, db: int = 0, **settings: Any) -> None:
        self.queue = f"q{uuid.uuid4().hex[:8]}"
        self.settings = {
            "broker": broker or f"{url}/{db}",
            "backend": f"{url}/0",
            "engine": f"{url}/0",
            "name": name,
            "queue": self.queue,
            "runs": f"runs:{self.queue}",
            **settings,
        }
        self.redis = redis.Redis.from_url(f"{url}/0")

    def module(self) -> Any:
        """The module of the app, anew in this process."""
        os.environ[VARIABLE] = json.dumps(self.settings)
        spec = importlib.util.find_spec(MODULE)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def runs(self) -> list[dict[str, Any]]:
        """What tasks have seen, in the order of their runs."""
        return [json.loads(each) for each in self.redis.lrange(self.settings["runs"], 0, -1)]

    def ids(self) -> list[str]:
        return [run["id"] for run in self.runs()]

    def wait(self, count: int, timeout: float = SOON_S) -> list[dict[str, Any]]:
        """Waits for so many runs."""
        wait_until(lambda: self.redis.llen(self.settings["runs"]) >= count, f"{count} tasks have run", timeout=timeout)
        return self.runs()

    def worker(self, *words: str, more: Mapping[str, Any] | None = None) -> CeleryWorker:
        return CeleryWorker({**self.settings, **(more or {})}, words)


class CeleryWorker:
    """``celery -A … worker``, told to stop at the end of the block."""

    def __init__(self, settings: Mapping[str, Any], words: tuple[str, ...]) -> None:
        self._log = Path(f"/tmp/{settings['queue']}-{uuid.uuid4().hex[:6]}.log")
        command = [sys.executable, "-m", "celery", "-A", MODULE, "worker", "-n", f"{uuid.uuid4().hex[:8]}@here"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *QUIET, *words],
                env={**os.environ, VARIABLE: json.dumps(dict(settings))},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        wait_until(lambda: " ready." in self.log() or self.process.poll() is not None, "it is ready", timeout=SOON_S)
        assert self.process.poll() is None, self.log()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        if kind is not None:
            print(self.log()[-6000:])
        self._log.unlink(missing_ok=True)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL for it and its children, which are its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)


@contextlib.contextmanager
def closing(module: Any) -> Iterator[Any]:
    """Closes all that an app has opened in this process."""
    app = module.app
    try:
        yield module
    finally:
        module.delaying.remove()
        module.engine.close()
        gc.collect()  # results tell their backend that they go
        backend = app.backend
        if hasattr(backend, "client"):
            backend.remove_pending_result = lambda result: result  # results that go later have nothing to tell
            backend.result_consumer.stop()
            backend.client.connection_pool.disconnect()
        app.close()
        kombu.pools.reset()
        module.runs.connection_pool.disconnect()
