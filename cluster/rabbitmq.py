"""A real RabbitMQ for `make test-brokers`: Debian's rabbitmq-server, which is not installed by us, on free ports, and
gone with the process that started it.

``python -m cluster.rabbitmq`` says if it is there, and how to get it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from cluster.other_server import OtherServer, installed
from cluster.ports import HOST, free_port
from cluster.server import ServerFailed

PLACES = "/usr/lib/rabbitmq/bin:/usr/local/sbin:/usr/sbin:/opt/homebrew/sbin"
"""Debian's own command in /usr/sbin changes the user; the one behind it comes first."""

MISSING = (
    "RabbitMQ's {program} is not found in {places}, or on the PATH. Get it with: apt-get install "
    "--no-install-recommends rabbitmq-server (Debian, Ubuntu; its service need not run: systemctl disable --now "
    "rabbitmq-server), or: brew install rabbitmq (macOS). SHARDQ_BROKERS=FOLDER:FOLDER names other places."
)


def program(name: str) -> str:
    """The path of one of RabbitMQ's programs. Raises ServerFailed with how to get it."""
    return installed(name, places=PLACES, missing=MISSING.format(program=name, places=PLACES.replace(":", ", ")))


class RabbitServer(OtherServer):
    title = "RabbitMQ"

    def __init__(self, config: str = "") -> None:
        """``config``: what its rabbitmq.conf has."""
        self._server, self._epmd = program("rabbitmq-server"), program("epmd")
        super().__init__()
        self._names = str(free_port())
        self._config = config

    def _prepare(self) -> None:
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "rabbitmq.conf").write_text(self._config)
        dist_port = str(free_port())
        self._given = os.environ | {
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": self._names,
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_NODENAME": f"shardq{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": dist_port,
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
        }

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.address}/"

    def _launch(self) -> None:
        # in the foreground, or the broker starts one that stays
        self._begin([self._epmd, "-address", HOST, "-port", self._names], env=self._given)
        self._begin([self._server], env=self._given)

    def control(self, *words: str) -> None:
        """Runs rabbitmqctl."""
        command = [program("rabbitmqctl"), *words]
        done = subprocess.run(command, env=self._given, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise ServerFailed(f"rabbitmqctl {' '.join(words)}: {done.stdout}{done.stderr}")

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
