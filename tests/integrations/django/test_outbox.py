"""Django's transactions carry tasks, and the relay moves them like any others."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import sqlalchemy as sa

import shardq
from cluster.postgres import Postgres
from shardq import outbox
from shardq.relay.database import open_database
from tests.support.waiting import wait_until

SITE = Path(__file__).with_name("site.py")


@pytest.mark.parametrize("vendor", ["sqlite3", "postgresql"])
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_tasks_of_committed_transactions_are_moved(
    vendor: str, postgres: Postgres, tmp_path: Path, url: str, name: str
) -> None:
    settings: dict[str, object] = {"ENGINE": f"django.db.backends.{vendor}"}
    if vendor == "sqlite3":
        database_url = f"sqlite:///{tmp_path}/site.db"
        settings["NAME"] = f"{tmp_path}/site.db"
    else:
        database_url = postgres.make_database(f"d{uuid.uuid4().hex}")
        parts = sa.make_url(database_url)
        settings |= {"NAME": parts.database, "USER": parts.username, "HOST": parts.host, "PORT": parts.port}
    done = subprocess.run(
        [sys.executable, SITE, json.dumps(settings)], capture_output=True, text=True, timeout=100, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    kept = json.loads(done.stdout)
    assert kept[0].startswith("mail/")
    assert kept[2] == "four"
    database = open_database(database_url)
    outbox.create(database)  # finds what the migration made
    met: list[str] = []
    with shardq.Engine(url, name=name, shards=2) as engine:
        engine.start()
        consumer = engine.consumer(["mail", ""])
        with outbox.OutboxRelay(engine, database):

            def all_met() -> bool:
                deliveries = consumer.claim(10, wait=0.05)
                met.extend(delivery.id for delivery in deliveries)
                consumer.ack(deliveries)
                return len(met) >= len(kept)

            wait_until(all_met, "all tasks were claimed", timeout=60)
    database.dispose()
    assert sorted(met) == sorted(kept)
