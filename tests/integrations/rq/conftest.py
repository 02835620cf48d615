"""RQ on a database of its own of the shared server, and its unmodified worker in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis
import rq

from cluster.server import Server
from shardq import Engine
from tests.sinks.seen import database_of

DB = 9

StartWorker = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def connection(single: Server) -> Iterator[redis.Redis]:
    yield from database_of(single, DB)


@pytest.fixture
def queue(connection: redis.Redis) -> rq.Queue:
    return rq.Queue("mail", connection=connection)


@pytest.fixture
def engine(single: Server, name: str) -> Iterator[Engine]:
    with Engine(single.url, name=name, shards=4, timeout=10.0) as engine:
        yield engine


@pytest.fixture
def start_worker(single: Server) -> Iterator[StartWorker]:
    """Starts ``rq worker``, which runs jobs in its own process."""
    with ExitStack() as stack:

        def start(*words: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "rq.cli", "worker", "--url", f"{single.url}/{DB}", "--quiet"]
            command += ["--worker-class", "rq.SimpleWorker", *words]
            worker = subprocess.Popen(command, start_new_session=True)
            stack.callback(worker.wait, 30)
            stack.callback(os.killpg, worker.pid, signal.SIGKILL)  # with its scheduler
            return worker

        yield start
