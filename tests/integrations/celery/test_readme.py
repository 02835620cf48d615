"""The program of the page runs as it stands there, beside a worker of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.server import Server
from tests.support.pages import programs
from tests.support.waiting import wait_until


@pytest.mark.promise
@pytest.mark.slow
def test_the_program_of_the_page(single: Server, name: str, tmp_path: Path) -> None:
    [program] = programs("integrations/celery")
    program = program.replace('name="celery-page"', f"name={name!r}")
    program = program.replace('"shop", broker', f'"shop", task_default_queue={name!r}, broker')
    (tmp_path / "shop.py").write_text(program)
    log = tmp_path / "worker.log"
    given = os.environ | {"SHARDQ_URL": single.url}
    command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "--pool=solo", "--loglevel=INFO"]
    with log.open("wb") as out:
        worker = subprocess.Popen(command, cwd=tmp_path, env=given, stdout=out, stderr=out)
    try:
        wait_until(lambda: b" ready." in log.read_bytes() or worker.poll() is not None, "it is ready", timeout=60)
        shop = [sys.executable, "shop.py"]
        done = subprocess.run(shop, cwd=tmp_path, env=given, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr + log.read_text()
        assert done.stdout == "order 42 waits REVOKED\n"
        assert b"order 42 waits" in log.read_bytes()
    finally:
        worker.terminate()
        worker.wait(30)
