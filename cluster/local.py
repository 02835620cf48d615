"""The cluster of a directory, which outlives the command that started it. Called by ``python -m cluster``.

``.cluster/`` holds the files of its nodes and a record of their processes. A process is known by its id, its
name *and* the time it was started, so that one which got the id of a dead node later is left alone.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import redis

from cluster import processes, servers
from cluster.cluster import Cluster
from cluster.ports import HOST
from cluster.server import Server, ServerFailed
from cluster.view import View, parse

FOLDER = Path(".cluster")
_ANSWER_S = 2.0
_KILL_S = 10.0


class Busy(Exception):
    """Another command is at work in this directory."""


@dataclass(frozen=True)
class Process:
    """One node's process, as recorded."""

    port: int
    pid: int
    started: str

    def find(self) -> bool:
        """True while it runs, and still is that one."""
        found = processes.living(self.pid)
        return found is not None and found.started == self.started and "server" in found.name


@dataclass(frozen=True)
class Record:
    """The facts that ``up`` leaves for ``status`` and ``down``."""

    url: str
    server: str
    processes: list[Process]

    def alive(self) -> list[Process]:
        return [process for process in self.processes if process.find()]


@contextmanager
def holding(folder: Path = FOLDER) -> Iterator[None]:
    """One command at a time. Makes the folder; one without a cluster is removed at the end."""
    folder.mkdir(exist_ok=True)
    lock = folder / "lock"
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"another command is at work in {folder.absolute()}: wait until it is done") from None
        try:
            yield
        finally:
            if not _file(folder).exists():
                shutil.rmtree(folder)


def recorded(folder: Path = FOLDER) -> Record | None:
    """The cluster that was started here; its processes may have died since."""
    try:
        found = json.loads(_file(folder).read_text())
    except FileNotFoundError:
        return None
    return Record(found["url"], found["server"], [Process(**each) for each in found["processes"]])


def up(binary: Path, *, masters: int, replicas: int, folder: Path = FOLDER) -> Record:
    """Start a cluster here. If this fails or is interrupted, nothing stays."""
    _remove_files(folder)  # of a start that was killed: a node would remember its old cluster
    cluster = Cluster(binary, masters=masters, replicas=replicas, folder=folder.absolute())
    try:
        cluster.start()
        record = Record(cluster.url, servers.version(binary), [_process(node) for node in cluster.nodes])
        _file(folder).write_text(json.dumps(asdict(record), indent=2))
        cluster.let_go()
    except BaseException:
        cluster.close()
        _remove_files(folder)
        raise
    return record


def _process(node: Server) -> Process:
    found = processes.living(node.pid)
    if found is None:
        raise ServerFailed(f"the node at port {node.port} ended right after its start")
    return Process(node.port, node.pid, found.started)


def down(record: Record, *, folder: Path = FOLDER) -> int:
    """Kill its processes and remove its files; how many still ran."""
    found = record.alive()
    processes.kill((process.pid for process in found), timeout=_KILL_S)
    _remove_files(folder)
    return len(found)


def look(process: Process) -> View | None:
    """How a node sees the cluster; None if it does not answer."""
    client = redis.Redis(HOST, process.port, socket_timeout=_ANSWER_S, decode_responses=True)
    command: Callable[..., str] = client.execute_command
    try:
        return parse(command("CLUSTER", "NODES"))
    except redis.RedisError:
        return None
    finally:
        client.close()


def _remove_files(folder: Path) -> None:
    _file(folder).unlink(missing_ok=True)
    for node in folder.glob("node-*"):
        shutil.rmtree(node)


def _file(folder: Path) -> Path:
    return folder / "record.json"
