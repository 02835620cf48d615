"""Embedded servers as seen from outside: their processes, and their answers."""

from __future__ import annotations

from pathlib import Path

import psutil
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from shardq.features.embedded import Embedded


def client(use: Embedded) -> redis.Redis:
    return redis.Redis.from_url(use.url, decode_responses=True)


def server_pid(use: Embedded) -> int:
    with client(use) as connection:
        return int(connection.info("server")["process_id"])


def gone(pid: int) -> bool:
    """True if the process has ended, or is a zombie without memory."""
    try:
        return not psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:  # or a zombie
        return True


def answers(socket: Path) -> bool:
    connection = redis.Redis(unix_socket_path=str(socket), retry=Retry(NoBackoff(), 0))
    try:
        return connection.ping()
    except redis.ConnectionError:
        return False
    finally:
        connection.close()


def servers_in(folder: Path) -> list[psutil.Process]:
    """Returns every server that runs in this directory, reachable or not."""
    found = []
    for process in psutil.process_iter():
        try:
            if "server" in process.name() and process.cwd() == str(folder) and process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found
