"""A real Sidekiq for `make test-brokers`: Debian's ruby-sidekiq, which is not installed by us.

``python -m cluster.sidekiq`` says if it is there, and how to get it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.other_server import installed
from cluster.server import ServerFailed

MISSING = (
    "Sidekiq's command sidekiq is not found on the PATH. Get it with: apt-get install --no-install-recommends "
    "ruby-sidekiq (Debian, Ubuntu), or: gem install sidekiq. SHARDQ_BROKERS=FOLDER:FOLDER names other places."
)

STOP_S = 30.0


def program() -> str:
    """The path of the command. Raises ServerFailed with how to get it."""
    return installed("sidekiq", missing=MISSING)


@contextmanager
def running(url: str, jobs: Path, *queues: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Sidekiq on a Redis, with the classes of a Ruby file."""
    command = [program(), "-r", str(jobs), "-c", "2", "-t", "1", *(word for queue in queues for word in ("-q", queue))]
    process = subprocess.Popen(command, env=os.environ | {"REDIS_URL": url}, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    try:
        program()
    except ServerFailed as exc:
        sys.exit(str(exc))
