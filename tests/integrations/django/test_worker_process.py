"""`manage.py shardq_worker` as a process: it ends in good order, and loses nothing when it is killed."""

from __future__ import annotations

import re
import signal
import urllib.error
import urllib.request
from collections import Counter
from functools import partial
from typing import Any

import pytest

from tests.integrations.django.conftest import Site
from tests.support.waiting import wait_until

TASKS = 60


def notes(prefix: str) -> list[str]:
    from tests.integrations.django.project.shop.models import Note

    return list(Note.objects.filter(text__startswith=prefix).values_list("text", flat=True))


def reached(rows: Any, count: int) -> bool:
    return bool(rows.count() >= count)


def settled(backend: Any) -> bool:
    stats = backend.engine.stats()
    return bool(stats.scheduled == stats.ready == stats.leased == 0)


@pytest.mark.slow
def test_sigterm_lets_tasks_finish(site: Site) -> None:
    from tests.integrations.django.project.shop import tasks

    with site.settings() as backend:
        held = [task.enqueue(f"{site.name} {n}") for n, task in enumerate([tasks.hold, tasks.ahold])]
        process = site.start("shardq_worker", "--concurrency", "2", "--http", "127.0.0.1:0")
        assert process.stdout is not None
        first = process.stdout.readline()
        [probes] = re.findall(r"^probes and metrics at (http://\S+)$", first.rstrip())
        wait_until(lambda: len(notes(f"begun {site.name}")) == 2, "both have begun", timeout=60)
        wait_until(lambda: ready(f"{probes}/readyz"), "it is ready")
        assert {backend.get_result(each.id).status for each in held} == {"RUNNING"}
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: not ready(f"{probes}/readyz"), "it is stopping")
        late = tasks.note.enqueue(f"{site.name} late")
        tasks.note.func(f"go {site.name} 0")
        tasks.note.func(f"go {site.name} 1")
        printed = process.stdout.read()  # communicate() knows nothing of what readline() has read ahead
        process.stdout.close()
        assert process.wait(timeout=60) == 0, printed
        assert printed.startswith("serving default, mail of ")
        assert printed.rstrip().endswith("stopped")
        assert sorted(notes(site.name)) == [f"{site.name} {n}" for n in range(2)]
        statuses = [backend.get_result(each.id).status for each in [*held, late]]
        assert statuses == ["SUCCESSFUL", "SUCCESSFUL", "READY"]


@pytest.mark.slow
def test_every_task_is_done_although_workers_are_killed(site: Site) -> None:
    from shardq.integrations.django.models import StoredResult
    from tests.integrations.django.project.shop import tasks

    # The dispatcher is here: a new one waits for some seconds until the shards of one that was killed are its own.
    words = ("shardq_worker", "--concurrency", "4", "--lease", "2")
    with site.settings() as backend:
        backend.engine.start()
        kinds = [tasks.slow, tasks.aslow]
        ids = {kinds[n % 2].enqueue(f"{site.name} {n}", 0.05).id: f"{site.name} {n}" for n in range(TASKS)}
        done = StoredResult.objects.filter(pk__in=ids, status="SUCCESSFUL")
        for least in (5, 25):
            process = site.start(*words, "--no-dispatcher")
            wait_until(partial(reached, done, least), "some are done", timeout=60)
            process.kill()
            process.communicate()
        process = site.start(*words, "--processes", "2")
        wait_until(lambda: done.count() == TASKS, "all are done", timeout=100)
        wait_until(partial(settled, backend), "all are settled", timeout=60)
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=60)
        assert process.returncode == 0, printed
        ran = Counter(notes(site.name))
        assert set(ran) == set(ids.values()), "each has run, and no other"
        assert backend.engine.stats().dead == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--queues", "mail,letters"], "'letters' is not in QUEUES of TASKS['default'], ['default', 'mail']"),
        (["--backend", "other"], "TASKS has no 'other' with BACKEND"),
        (["--concurrency", "0"], "concurrency=0 is not possible"),
        (["--http", "nowhere"], "'nowhere' is no HOST:PORT"),
        (["--http", "127.0.0.1:0", "--processes", "2"], "--http serves one process"),
        (["--reload", "--processes", "2"], "--reload is for development"),
        (["--grace", "soon"], "'soon' is not a length of time"),
    ],
)
def test_wrong_words_are_told(site: Site, words: list[str], said: str) -> None:
    from django.core.management import CommandError, call_command

    with site.settings(), pytest.raises(CommandError) as caught:
        call_command("shardq_worker", *words)
    assert said in str(caught.value)


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url) as answer:
            return int(answer.status) == 200
    except urllib.error.HTTPError:
        return False
