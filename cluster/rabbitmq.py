"""A real RabbitMQ for `make test-brokers`: Debian's rabbitmq-server, which is not installed by us, on free ports, and
gone with the process that started it.

``python -m cluster.rabbitmq`` says if it is there, and how to get it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from cluster import warden
from cluster.ports import HOST, free_port
from cluster.server import ServerFailed

START_TIMEOUT_S = 90.0
PLACES = "/usr/lib/rabbitmq/bin:/usr/local/sbin:/usr/sbin:/opt/homebrew/sbin"
"""Debian's own command in /usr/sbin changes the user; the one behind it comes first."""

MISSING = (
    "RabbitMQ's {program} is not found in {places}, or on the PATH. Get it with: apt-get install "
    "--no-install-recommends rabbitmq-server (Debian, Ubuntu; its service need not run: systemctl disable --now "
    "rabbitmq-server), or: brew install rabbitmq (macOS). SHARDQ_BROKERS=FOLDER:FOLDER names other places."
)


def program(name: str) -> str:
    """The path of one of RabbitMQ's programs. Raises ServerFailed with how to get it."""
    places = os.pathsep.join([os.environ.get("SHARDQ_BROKERS", ""), PLACES, os.environ.get("PATH", "")])
    found = shutil.which(name, path=places)
    if found is None:
        raise ServerFailed(MISSING.format(program=name, places=PLACES.replace(":", ", ")))
    return found


class RabbitServer:
    """One broker, for a ``with`` block. ``kill()`` is SIGKILL; ``start()`` starts it again with what it had stored."""

    def __init__(self) -> None:
        self._server, self._epmd = program("rabbitmq-server"), program("epmd")
        self.folder = Path(tempfile.mkdtemp(prefix="shardq-rabbit-"))
        self.port = free_port()
        self._names = str(free_port())
        self._log = self.folder / "log"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._key = warden.new_key()

    def __enter__(self) -> Self:
        warden.note(self._key, pid=None, folder=self.folder)
        try:
            (self.folder / "plugins").write_text("[].\n")
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{HOST}:{self.port}/"

    def start(self) -> None:
        given = {
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": self._names,
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_NODENAME": f"shardq{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": str(self.folder / "none"),
        }
        with self._log.open("ab") as log:
            # in the foreground, or the broker starts one that stays
            epmd = self._begun([self._epmd, "-address", HOST, "-port", self._names], given, log.fileno())
            warden.note(self._key, pid=-epmd.pid, folder=self.folder)
            self._begun([self._server], given, log.fileno(), group=epmd.pid)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._processes[-1].poll() is not None or time.monotonic() > deadline:
                raise ServerFailed(f"RabbitMQ did not start:\n{self._log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.05)

    def _begun(self, words: list[str], given: dict[str, str], log: int, *, group: int = 0) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            words, env=os.environ | given, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=group
        )
        self._processes.append(process)
        return process

    def kill(self) -> None:
        processes, self._processes = self._processes, []
        if processes:
            os.killpg(processes[0].pid, signal.SIGKILL)
        for process in processes:
            process.wait()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        warden.note(self._key, pid=None, folder=None)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=5) as connection:
                connection.settimeout(5)
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                return connection.recv(1) == b"\x01"  # the begin of a method: it is up, and not only its port
        except OSError:
            return False


if __name__ == "__main__":
    try:
        program("rabbitmq-server"), program("epmd")
    except ServerFailed as exc:
        sys.exit(str(exc))
