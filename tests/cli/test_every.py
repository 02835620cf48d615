"""shardq every: recurring tasks from a shell."""

from __future__ import annotations

import pytest

from shardq import Engine
from shardq.core.layout.keys import control_keys
from tests.cli.shell import Shell
from tests.support.servers import Servers
from tests.support.states import claim
from tests.support.workers import SOON_S

DAILY = ("nightly", "--cron", "0 3 * * *", "--tz", "Europe/Berlin", "--topic", "reports")


def test_none(shardq: Shell, engine: Engine) -> None:
    assert shardq.run("every").out == "none\n"
    done = shardq.run("every", "--json")
    assert (done.code, done.out) == (0, "")


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


def test_the_options_of_its_tasks(shardq: Shell, engine: Engine) -> None:
    options: tuple[str, ...] = ("--header", "a=b", "--tag", "x", "--max-attempts", "3", "--expires", "1h")
    options += ("--overlap", "skip", "--webhook", "https://customer.example/in")
    options += ("--start", "2020-01-01T00:00:00Z", "--end", "2900-01-01T00:00:00Z", "--owner", "billing")
    shown = shardq.run("every", "poll", "--interval", "1h", *options, "--json").object
    assert (shown["overlap"], shown["owner"], shown["skipped"]) == ("skip", "billing", 0)
    assert (shown["start"], shown["end"]) == ("2020-01-01T00:00:00Z", "2900-01-01T00:00:00Z")
    info = engine.get(engine.schedule("poll").run())
    assert info is not None
    assert (dict(info.headers), info.tags, info.max_attempts) == ({"a": "b"}, ("x",), 3)
    assert info.url == "https://customer.example/in"


def test_prune(shardq: Shell, engine: Engine) -> None:
    for name in ("a", "b", "c"):
        engine.every(name, interval=3600, owner="billing")
    engine.every("d", interval=3600)
    assert shardq.run("every", "--prune", "billing", "--keep", "b").out == (
        "schedule 'a' is removed\nschedule 'c' is removed\n"
    )
    assert shardq.run("every", "--prune", "billing", "--keep", "b").out == "none is removed\n"
    assert shardq.run("every", "--prune", "billing", "--json").object == {"owner": "billing", "removed": ["b"]}
    assert [each.name for each in engine.schedules()] == ["d"]


def test_one_that_can_not_be_read(shardq: Shell, engine: Engine, servers: Servers, name: str) -> None:
    keys = control_keys(name)
    servers.ask(keys.slot, "HSET", keys.schedules, "odd", "{}", "odd/declared", "{}")
    done = shardq.run("every")
    assert done.code == 0
    assert "can't be read" in done.lines[2]
    assert "schedule 'odd' can't be served here: it can't be read: another version" in done.err
    assert "schedule 'odd'" in shardq.run("stats").out
    assert "schedule 'odd': what is stored can't be read here" in shardq.run("health").out
    assert shardq.run("every", "odd", "--remove").out == "schedule 'odd' is removed\n"


def test_what_there_is_not(shardq: Shell, engine: Engine) -> None:
    done = shardq.run("every", "nightly", "--remove")
    assert (done.code, done.err) == (1, "error: there is no schedule named 'nightly'; `shardq every` lists all\n")
    done = shardq.run("every", "nightly", "--pause")
    assert (done.code, done.err) == (1, "error: there is no schedule named 'nightly'; `shardq every` lists all\n")


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
        (("a", "--interval", "1s", "{"), "the payload is not JSON"),
        (("a", "--cron", "daily"), "cron can't be 'daily'"),
        (("a/b", "--interval", "1s"), "the name of a schedule can't be 'a/b'"),
        (("a", "--prune", "b"), "--prune takes the OWNER and --keep alone"),
        (("--keep", "b"), "--keep is for --prune OWNER"),
        (("a", "--interval", "1s", "--header", "b"), "'b' is not a header; write it as KEY=VALUE"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else None,
)
def test_misuse(shell: Shell, words: tuple[str, ...], told: str) -> None:
    done = shell.run("every", *words, "--url", "redis://127.0.0.1:1")
    assert done.code == 2, done.err
    assert told in done.err
