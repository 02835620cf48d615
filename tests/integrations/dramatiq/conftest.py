"""Dramatiq on the shared server, in a namespace of its own, and its unmodified worker in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest
import redis
from dramatiq.brokers.redis import RedisBroker

from cluster.server import Server
from shardq import Engine
from tests.integrations.dramatiq.actors import Actors, Note

StartWorker = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def client(single: Server, name: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(single.url) as client:
        yield client
        for key in client.scan_iter(f"{name}:*", count=1000):
            client.delete(key)


@pytest.fixture
def actors(single: Server, name: str, client: redis.Redis) -> Iterator[Actors]:
    broker = RedisBroker(url=single.url, namespace=name)  # type: ignore[no-untyped-call]
    note = Note(single.url, f"{name}:ran")
    yield Actors(broker, note)
    note.client.close()
    broker.client.connection_pool.disconnect()


@pytest.fixture
def engine(single: Server, name: str) -> Iterator[Engine]:
    with Engine(single.url, name=name, shards=4, timeout=10.0) as engine:
        yield engine


@pytest.fixture
def start_worker(single: Server, name: str) -> Iterator[StartWorker]:
    """Starts ``dramatiq``; names are of further variables of its environment."""
    with ExitStack() as stack:

        def start(**variables: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "dramatiq", "tests.integrations.dramatiq.app:broker"]
            command += ["--processes", "1", "--threads", "2"]
            environment = os.environ | {"TESTS_URL": single.url, "TESTS_KEY": name} | variables
            worker = subprocess.Popen(
                command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
            )
            stack.callback(worker.wait, 30)
            stack.callback(_kill, worker.pid)
            return worker

        yield start


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
