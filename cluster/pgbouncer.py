"""A real PgBouncer in transaction mode for `make test-brokers`: Debian's pgbouncer, which is not installed by us, on a
free port before a server of ``postgres``, and gone with the process that started it.

``python -m cluster.pgbouncer`` says if it is there, and how to get it.
"""

from __future__ import annotations

import os
import sys

import psycopg

from cluster.other_server import OtherServer, installed
from cluster.ports import HOST
from cluster.postgres import NOBODY, USER, Postgres
from cluster.server import ServerFailed

PLACES = "/usr/sbin:/usr/local/sbin:/opt/homebrew/bin"

MISSING = (
    "PgBouncer's program pgbouncer is not found in {places}, or on the PATH. Get it with: apt-get install "
    "--no-install-recommends pgbouncer (Debian, Ubuntu; its service need not run: systemctl disable --now pgbouncer), "
    "or: brew install pgbouncer (macOS). SHARDQ_BROKERS=FOLDER:FOLDER names other places."
)

CONFIG = """\
[databases]
* = host={host} port={database} user={user}

[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 200
server_reset_query_always = 0
logfile =
pidfile =
"""


def program() -> str:
    """The path of the program. Raises ServerFailed with how to get it."""
    return installed("pgbouncer", places=PLACES, missing=MISSING.format(places=PLACES.replace(":", ", ")))


class PgBouncer(OtherServer):
    title = "PgBouncer"

    def __init__(self, database: Postgres, *, connections: int = 2) -> None:
        """``connections``: those to each database, which all clients share."""
        self._program = program()
        super().__init__()
        self._database, self._connections = database, connections

    def _prepare(self) -> None:
        config = CONFIG.format(
            host=HOST, port=self.port, database=self._database.port, user=USER, connections=self._connections
        )
        file = self.folder / "pgbouncer.ini"
        file.write_text(config)
        if os.geteuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
            os.chown(file, NOBODY, NOBODY)

    def url(self, name: str) -> str:
        """The URL of a database through this."""
        return f"postgresql+psycopg://{USER}@{HOST}:{self.port}/{name}"

    def _launch(self) -> None:
        owner = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        self._begin((self._program, self.folder / "pgbouncer.ini"), cwd=self.folder, **owner)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url("postgres").replace("+psycopg", ""), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


if __name__ == "__main__":
    try:
        program()
    except ServerFailed as exc:
        sys.exit(str(exc))
