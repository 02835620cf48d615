"""The files of the page about Django are a site that works, also in the child of a fork."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.server import Server
from tests.support.pages import programs

VISIT = """
import os, sys, threading
os.environ["DJANGO_SETTINGS_MODULE"] = "mysite.settings"
import django
django.setup()
from django.core.management import call_command
from django.test import Client
call_command("migrate", verbosity=0)
from shardq.integrations.django import engine
from shardq.integrations.django.executor import worker_for
from shardq.integrations.django.backend import backend_named
from tests.support.waiting import wait_until
client = Client(headers={"host": "localhost"})
id = client.get("/order/").json()["id"]
print(id.partition("/")[0], client.get(f"/status/{id}").json())
from django.db import connections
connections.close_all()
pid = os.fork()  # as a server that loads the site before it forks
if not pid:
    try:
        client.get("/order/")
    finally:
        os._exit(0)
os.waitpid(pid, 0)
worker = worker_for(backend_named("default"), ["mail"])
engine().start()
thread = threading.Thread(target=worker.run)
thread.start()
wait_until(lambda: client.get(f"/status/{id}").json()["status"] == "SUCCESSFUL", "it is done", timeout=60)
worker.stop()
thread.join()
print(client.get(f"/status/{id}").json())
print([(each.state, *each.payload["args"]) for each in engine().tasks(topic="mail.high")])
engine().close()
"""


@pytest.mark.promise
@pytest.mark.slow
def test_the_site_of_the_page_works(single: Server, name: str, tmp_path: Path) -> None:
    import django

    for text in programs("integrations/django"):
        [place] = re.findall(r"^# (\S+\.py)\n", text)
        file = tmp_path / place
        file.parent.mkdir(exist_ok=True)
        if django.VERSION >= (6, 0):  # as the comments of the page say
            text = text.replace('"django_tasks", ', "").replace("from django_tasks import", "from django.tasks import")
        # A name of the test's own, and the host of its client.
        file.write_text(text.replace('"name": "shop"', f'"name": "{name}"') + "ALLOWED_HOSTS = ['localhost']\n")
    done = subprocess.run(
        [sys.executable, "-c", VISIT],
        cwd=tmp_path,
        env={"SHARDQ_URL": single.url, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "mail {'status': 'READY', 'value': None}",
        "{'status': 'SUCCESSFUL', 'value': 'mail to ann@example.org'}",
        "[('scheduled', 'bob@example.org'), ('scheduled', 'bob@example.org')]",
    ]
