"""The program of the page runs as it stands there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.cluster.test_deploy import free_port
from tests.support.pages import programs
from tests.support.waiting import wait_until


@pytest.mark.promise
@pytest.mark.slow
def test_the_program_of_the_page_runs(tmp_path: Path, url: str, name: str) -> None:
    [program] = programs("dashboard")
    port = free_port()
    program = program.replace("port=8000", f"port={port}").replace('name="dashboard-page"', f"name={name!r}")
    process = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env=os.environ | {"SHARDQ_URL": url})
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, follow_redirects=True) as client:

            def pushed() -> bool:
                try:
                    return client.get("/order").text.startswith("mail/")
                except httpx.ConnectError:
                    return False

            wait_until(pushed, "it serves", timeout=60)
            page = client.post("/queue/sign-in", data={"token": "a long secret of yours"})
            assert page.url.path == "/queue/"
            assert "<dd>1</dd>" in page.text
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
