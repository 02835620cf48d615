"""The other commands of manage.py, and the checks of the settings."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from typing import Any

import pytest

from tests.integrations.django.conftest import Site, ended


def test_old_results_are_removed(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    from django.core.management import call_command
    from django.utils import timezone

    from shardq.integrations.django.models import StoredResult
    from tests.integrations.django.project.shop import tasks

    StoredResult.objects.all().delete()
    with site.settings(keep_results=dt.timedelta(days=2)) as backend, site.worker(backend):
        results = [tasks.add.enqueue(n) for n in range(4)]
        ended(*results)
        stored = StoredResult.objects.filter
        stored(pk=results[0].id).update(finished_at=timezone.now() - dt.timedelta(days=3))
        old = timezone.now() - dt.timedelta(days=3)
        stored(pk=results[1].id).update(finished_at=None, last_attempted_at=old, status="RUNNING")
        stored(pk=results[2].id).update(finished_at=timezone.now() - dt.timedelta(days=1))
        call_command("shardq_prune")
        assert set(StoredResult.objects.values_list("pk", flat=True)) == {each.id for each in results[2:]}
        call_command("shardq_prune", "--older", "12h")
        assert [each.pk for each in StoredResult.objects.all()] == [results[3].id]
    assert capsys.readouterr().out.split() == ["2", "results", "removed", "1", "results", "removed"]


@pytest.mark.slow
def test_the_command_of_shardq_knows_the_engine_and_the_database(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from django.core.management import CommandError, call_command
    from django.utils import timezone

    from tests.integrations.django.project.shop import tasks

    with site.settings() as backend:
        tasks.add.using(priority=1, run_after=timezone.now() + dt.timedelta(days=1)).enqueue(1)
        code, printed = site.run("shardq", "--backend", "default", "stats", "--json")
        assert code == 0, printed
        stats = json.loads(printed)
        assert (stats["name"], stats["topics"].keys()) == (backend.engine.name, {"default.high"})
        for variable in ("SHARDQ_URL", "SHARDQ_NAME", "SHARDQ_DATABASE"):
            monkeypatch.setenv(variable, "")
        monkeypatch.delenv("SHARDQ_DATABASE")
        monkeypatch.setattr("shardq.cli.outbox.set_up_logging", lambda **_: None)  # it is of the whole process
        capsys.readouterr()
        call_command("shardq", "outbox", "status")
        assert capsys.readouterr().out.strip() == "none waits"
        with pytest.raises(CommandError, match="TASKS has no 'other'"):
            call_command("shardq", "stats", backend="other")


@pytest.mark.parametrize(
    ("params", "id", "said"),
    [
        ({"OPTIONS": {"nmae": "shop"}}, "shardq.E002", "there is no option 'nmae'; did you mean 'name'?"),
        ({"OPTIONS": {"codec": "raw"}}, "shardq.E002", "payloads are JSON"),
        ({"OPTIONS": {"url": "http://a"}}, "shardq.E002", "http"),
        ({"OPTIONS": {"transactions": True}}, "shardq.E002", "use one of 'commit', 'outbox', 'ignore'"),
        ({"OPTIONS": {"keep_results": "7d"}}, "shardq.E002", "None keeps no results"),
        ({"OPTIONS": {"database": "other"}}, "shardq.E002", "not an alias in DATABASES; use one of 'default'"),
        ({"OPTIONS": []}, "shardq.E002", "give a dict"),
        ({"QUEUES": ["two words"]}, "shardq.E001", "use letters, digits and _ . - only"),
        ({"QUEUES": ["mail.low"]}, "shardq.E001", "the priorities of a queue"),
        ({"QUEUES": ["m" * 60]}, "shardq.E001", "56 characters are possible"),
        ({}, None, ""),
    ],
)
def test_settings_are_checked(project: Any, params: dict[str, Any], id: str | None, said: str) -> None:
    from django.core.checks import run_checks
    from django.core.exceptions import ImproperlyConfigured
    from django.test import override_settings

    from shardq.integrations.django.contract import task_backends

    backend = {"BACKEND": "shardq.integrations.django.ShardqBackend", **params}
    with override_settings(TASKS={"default": backend}):
        found = [(message.id, message.msg) for message in run_checks()]
        assert [each for each, _ in found] == ([] if id is None else [id])
        assert all(message.startswith("TASKS['default']") and said in message for _, message in found)
        if id == "shardq.E002":
            with pytest.raises(ImproperlyConfigured, match="TASKS"):
                _ = task_backends["default"].engine


def test_settings_without_the_app_are_told_how_to_add_it(site: Site) -> None:
    from django.core.checks import run_checks
    from django.test import modify_settings

    with site.settings(), modify_settings(INSTALLED_APPS={"remove": ["shardq.integrations.django"]}):
        [message] = [each for each in run_checks() if each.id == "shardq.E003"]
        assert message.hint is not None
        assert "Add 'shardq.integrations.django' to INSTALLED_APPS" in message.hint
    with site.settings(keep_results=None), modify_settings(INSTALLED_APPS={"remove": ["shardq.integrations.django"]}):
        assert [each.id for each in run_checks() if each.id == "shardq.E003"] == []


def test_a_missing_package_is_named_with_the_line_that_installs_it() -> None:
    program = (
        "import sys; sys.modules['django_tasks'] = None\n"
        "import django\n"
        "from shardq.integrations.django import ShardqBackend\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    import django

    if django.VERSION < (6, 0):
        assert "pip install 'shardq[django-tasks]'" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
