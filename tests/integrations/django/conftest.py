"""A Django project in this process, on SQLite in a folder of the run; processes of its manage.py share its database."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cluster.server import Server
from shardq.worker import Worker
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from shardq.integrations.django import ShardqBackend

PROJECT = Path(__file__).with_name("project")
ROOT = PROJECT.parents[3]


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project, set up and migrated. Returns its folder."""
    folder = tmp_path_factory.mktemp("site")
    os.environ |= {"SITE_FOLDER": str(folder), "SITE_URL": "redis://127.0.0.1:1", "SITE_NAME": "none"}
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.integrations.django.project.settings"
    import django
    from django.core.management import call_command

    django.setup()
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)  # exits where a model has no migration
    call_command("migrate", verbosity=0)
    return folder


class Site:
    """The project with a server, and an engine of the test's own."""

    def __init__(self, folder: Path, url: str, name: str) -> None:
        self.environ = os.environ | {"SITE_FOLDER": str(folder), "SITE_URL": url, "SITE_NAME": name}
        self.url, self.name = url, name
        self._started: list[subprocess.Popen[str]] = []

    @contextmanager
    def settings(self, **options: Any) -> Iterator[ShardqBackend]:
        """The backend with these options, while the block lasts."""
        from django.test import override_settings

        from shardq.integrations.django.backend import close_engines
        from shardq.integrations.django.contract import task_backends

        params = {
            "BACKEND": "shardq.integrations.django.ShardqBackend",
            "QUEUES": ["default", "mail"],
            "OPTIONS": {"url": self.url, "name": self.name, "shards": 1, **options},
        }
        with override_settings(TASKS={"default": params}):
            try:
                yield task_backends["default"]
            finally:
                close_engines()

    @contextmanager
    def worker(self, backend: ShardqBackend, **options: Any) -> Iterator[Worker]:
        """A worker in this process, with pollers."""
        from django.db import connections

        from shardq.integrations.django.executor import worker_for

        worker = worker_for(backend, backend.queue_names, **options)
        backend.engine.start()
        thread = threading.Thread(target=worker.run, name="test-worker")
        thread.start()
        try:
            yield worker
        finally:
            worker.stop()
            thread.join()
            connections.close_all()

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Starts `manage.py` with these words."""
        process = subprocess.Popen(
            [sys.executable, PROJECT / "manage.py", *words],
            cwd=ROOT,
            env=self.environ | {"PYTHONPATH": str(ROOT)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        """Ends what a test that failed has left running."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def run(self, *words: str) -> tuple[int, str]:
        """Runs it to its end. Returns its exit code and what it printed."""
        process = self.start(*words)
        printed, _ = process.communicate(timeout=100)
        return process.returncode, printed


@pytest.fixture
def site(project: Path, single: Server, name: str) -> Iterator[Site]:
    made = Site(project, single.url, name)
    yield made
    made.close()


def ended(*results: Any) -> None:
    """Waits until the tasks of these results have ended, and reads them."""

    def all_ended() -> bool:
        for result in results:
            if not result.is_finished:
                result.refresh()
        return all(result.is_finished for result in results)

    wait_until(all_ended, "all tasks have ended", timeout=60)
