"""shardq every: recurring tasks from a shell."""

from __future__ import annotations

import pytest

from shardq import Engine
from tests.cli.shell import Shell
from tests.support.states import claim
from tests.support.workers import SOON_S

DAILY = ("nightly", "--cron", "0 3 * * *", "--tz", "Europe/Berlin", "--topic", "reports")


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_none(shardq: Shell, engine: Engine) -> None:
    assert shardq.run("every").out == "none\n"
    done = shardq.run("every", "--json")
    assert (done.code, done.out) == (0, "")


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_declare_and_list(shardq: Shell, engine: Engine) -> None:
    done = shardq.run("every", *DAILY, '{"all": true}', "--jitter", "1m", "--catch-up", "none")
    assert done.code == 0, done.err
    assert done.out.startswith("schedule 'nightly': 0 3 * * * (Europe/Berlin), up to 60 s later, next 20")
    done = shardq.run("every", "poll", "--interval", "1h30m", "--json")
    shown = done.object
    assert (shown["name"], shown["interval"], shown["payload"], shown["paused"]) == ("poll", 5400.0, None, False)
    nightly, poll = shardq.run("every", "--json").objects
    assert (nightly["cron"], nightly["tz"], nightly["topic"]) == ("0 3 * * *", "Europe/Berlin", "reports")
    assert (nightly["payload"], nightly["jitter"], nightly["catch_up"]) == ({"all": True}, 60.0, "none")
    assert poll == shown
    head, _, *rows = shardq.run("every").lines
    assert head.split() == ["name", "recurs", "topic", "last", "(UTC)", "next", "(UTC)", "missed"]
    assert rows[0].split()[:6] == ["nightly", "0", "3", "*", "*", "*"]
    assert "every 5400 s" in rows[1]
    assert "2 schedules" in shardq.run("stats").out


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_pause_resume_remove_and_run_now(shardq: Shell, engine: Engine) -> None:
    shardq.run("every", *DAILY, "[1]")
    assert shardq.run("every", "nightly", "--pause").out == "schedule 'nightly' is paused\n"
    assert "1 schedule (1 paused)" in shardq.run("stats").out
    assert shardq.run("every", "nightly", "--resume", "--json").object == {"schedule": "nightly", "resumed": True}
    id = shardq.run("every", "nightly", "--run-now").out.strip()
    engine.start()
    (delivery,) = claim(engine.consumer("reports"), 1)
    assert (delivery.id, delivery.payload) == (id, [1])
    assert shardq.run("every", "nightly", "--remove").out == "schedule 'nightly' is removed\n"


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_what_there_is_not(shardq: Shell, engine: Engine) -> None:
    done = shardq.run("every", "nightly", "--remove")
    assert (done.code, done.err) == (1, "there is no schedule named 'nightly'\n")
    done = shardq.run("every", "nightly", "--pause")
    assert (done.code, done.err) == (1, "error: there is no schedule named 'nightly'; `shardq every` lists all\n")


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_dispatcher_of_the_shell_serves_it(shardq: Shell, engine: Engine) -> None:
    shardq.run("every", "poll", "--interval", "0.5")
    shardq.start("run", "--quiet")
    (delivery,) = engine.consumer().claim(1, wait=SOON_S)
    assert delivery.id.startswith("every-poll@20")
    assert shardq.run("every", "poll", "--remove").code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--pause",), "give the NAME of a schedule"),
        (("a",), "give --cron or --interval; or one of --pause"),
        (("a", "--pause", "--topic", "t"), "--pause takes the NAME alone"),
        (("a", "--run-now", "{}"), "--run-now takes the NAME alone"),
        (("a", "--interval", "5 parsecs"), "is not a length of time"),
        (("a", "--interval", "1s", "--cron", "* * * * *"), "and not both"),
        (("a", "--interval", "1s", "--tz", "UTC"), "together with --cron"),
        (("a", "--interval", "1s", "{"), "PAYLOAD is not JSON: '{'"),
        (("a", "--cron", "daily"), "cron can't be 'daily'"),
        (("a/b", "--interval", "1s"), "the name of a schedule can't be 'a/b'"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else None,
)
def test_misuse(shell: Shell, words: tuple[str, ...], told: str) -> None:
    done = shell.run("every", *words, "--url", "redis://127.0.0.1:1")
    assert done.code == 2, done.err
    assert told in done.err
