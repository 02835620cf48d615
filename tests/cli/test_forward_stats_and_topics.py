"""forward, stats and topics."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from unittest.mock import ANY

from cluster.server import Server
from shardq import Engine
from shardq.core.fleet.member import NO_DISPATCHER
from shardq.core.layout.keys import shard_keys
from shardq.engine.health import MAX_LATE_S
from tests.cli.conftest import SHARDS
from tests.cli.shell import LONGEST_S, ON_BOTH, Shell
from tests.support.servers import Servers
from tests.support.waiting import wait_until


@ON_BOTH
def test_forward(shardq: Shell, engine: Engine) -> None:
    done = shardq.run("forward", "email", "--to", "celery", "--left")
    assert (done.code, done.out) == (0, "topic 'email' now goes to the list 'celery' by LPUSH\n")
    engine.stats()  # meets the new topology
    route = engine.topology.routes["email"]
    assert (route.to, route.side) == ("celery", "left")
    refused = shardq.run("forward", "email", "--to", "celery", "--maxlen", "10")
    assert (refused.code, "--maxlen is for streams of Redis; leave it out" in refused.err) == (2, True)
    kept = shardq.run("forward", "email", "--to", "stream:mails", "--maxlen", "10000")
    assert kept.out == "topic 'email' now goes to the stream 'mails', about 10,000 entries\n"
    assert shardq.run("forward", "email", "--off", "--json").object == {
        "topic": "email",
        "to": None,
        "side": None,
        "maxlen": None,
    }
    engine.stats()
    assert engine.topology.routes == {}
    assert shardq.run("forward", "", "--to", "x", "--json").object == {
        "topic": "",
        "to": "x",
        "side": "right",
        "maxlen": None,
    }


@ON_BOTH
def test_stats_as_a_table(shardq: Shell, engine: Engine) -> None:
    for n in range(3):
        engine.push(n, delay=3600)
    engine.start()
    done = shardq.run("stats")
    assert (done.code, done.err) == (0, "")
    ok, head, _, *rows, total, topics, _, default, where, settings = [line for line in done.lines if line.strip()]
    assert ok == "ok"
    assert head.split()[:5] == ["shard", "scheduled", "ready", "leased", "dead"]
    assert topics.split() == ["topic", "scheduled", "ready", "oldest", "leased", "dead", "dispatched", "set"]
    assert default.split() == ["(default)", "3", "0", "-", "0", "0", "0", "-"]
    less = [line for line in shardq.run("stats", "--totals").lines if line.strip()]
    assert less[3].split()[:2] == ["all", "3"]
    assert [row.split()[0] for row in rows] == [str(shard) for shard in range(SHARDS)]
    assert sum(int(row.split()[1]) for row in rows) == 3
    assert total.split()[:2] == ["all", "3"]
    assert where.startswith(f"{engine.name}: {SHARDS} shards on ")
    assert engine.stats().server in where
    assert settings == "settings: 25 attempts a task; dead tasks are kept for 30 d, 100,000 at most"


@ON_BOTH
def test_stats_as_json(shardq: Shell, engine: Engine) -> None:
    engine.push(1, topic="email", delay=3600)
    seen = shardq.run("stats", "--json").object
    assert {"name": engine.name, "scheduled": 1, "ready": 0, "leased": 0, "dead": 0, "dispatched": 0}.items() <= (
        seen.items()
    )
    assert [shard["shard"] for shard in seen["shards"]] == list(range(SHARDS))
    assert sum(shard["scheduled"] for shard in seen["shards"]) == 1
    assert {"node", "head_age", "late_ms", "ready_by_topic"} <= seen["shards"][0].keys()
    email = seen["topics"]["email"]
    assert {"scheduled": 1, "ready": 0, "oldest_ready": None, "estimated": {}}.items() <= email.items()
    assert -3600.5 < seen["head_age"] < -1800
    kept = {"dead_age": 2_592_000, "dead_count": 100_000, "done_age": 0, "done_count": 100_000}
    assert seen["settings"] == {"max_attempts": 25} | kept
    assert shardq.run("stats", "--json", "--totals").object["shards"] == []


def test_a_shard_that_can_not_be_seen(shardq: Shell, engine: Engine, url: str) -> None:
    with Servers(url) as servers:
        keys = shard_keys(engine.name, 2)
        servers.ask(keys.slot, "SET", keys.leased, "not a zset")
        for command in ("stats", "shards"):
            done = shardq.run(command)
            assert done.code == (1 if command == "stats" else 0)
            said = done.lines[0].removeprefix("not ok: ") if command == "stats" else done.err
            assert said.startswith("shard 2 could not be seen, the totals are without: ")
            assert "WRONGTYPE" in said
            (row,) = [line for line in done.lines if line.split()[:1] == ["2"]]
            assert row.count("–") >= 4
            shards = shardq.run(command, "--json").object["shards"]
            assert [bool(shard["error"]) for shard in shards] == [False, False, True, False]
        servers.ask(keys.slot, "DEL", keys.leased)


def test_stats_says_by_its_exit_code_that_tasks_are_late(shardq: Shell, engine: Engine) -> None:
    engine.push(1, delay=3600)
    told, done = shardq.run("stats", "--json"), shardq.run("stats")
    assert (done.code, done.lines[0]) == (0, "ok"), "nobody dispatches, and nobody has to"
    assert done.err == f"{NO_DISPATCHER}\n"
    assert (told.code, told.object["ok"], told.object["reasons"]) == (0, True, [])
    assert told.object["warnings"] == [done.err.strip()]
    engine.push(1, at=time.time() - 2 * MAX_LATE_S)
    done = shardq.run("stats")
    assert done.code == 1
    nobody, late, *_ = done.lines
    assert nobody == f"not ok: {NO_DISPATCHER}"
    assert "tasks are overdue, by up to " in late
    assert "either no dispatcher runs, or those that do can't keep up; `shardq run` starts one" in late
    told = shardq.run("stats", "--json")
    assert (told.code, told.object["ok"], told.object["reasons"]) == (1, False, [ANY, ANY])
    engine.start()
    wait_until(lambda: shardq.run("stats").code == 0, "somebody dispatches")
    told = shardq.run("stats", "--json")
    assert (told.object["ok"], told.object["reasons"], told.object["warnings"]) == (True, [], [])


@ON_BOTH
def test_topics(shardq: Shell, engine: Engine) -> None:
    engine.start()
    assert shardq.run("topics").out == "none\n"
    for topic in ("", "calls", "mail"):
        engine.push(1, topic=topic)
    shardq.run("pause", "mail")
    shardq.run("limit", "calls", "--rate", "2.5", "--concurrency", "1000")
    shardq.run("forward", "letters", "--to", "post box", "--left")
    wait_until(lambda: engine.stats().ready == 3, "all are ready")
    done = shardq.run("topics")
    assert (done.code, done.err) == (0, "")
    head, _, *rows = [line.strip().split(maxsplit=7) for line in done.lines]
    assert head == ["topic", "scheduled", "ready", "oldest", "leased", "dead", "dispatched", "set"]
    assert [(topic, ready, dispatched, given) for topic, _, ready, _, _, _, dispatched, given in cells(rows)] == [
        ("(default)", "1", "1", "-"),
        ("calls", "1", "1", "at most 2.5 a second, 1,000 at once"),
        ("letters", "0", "0", "to the list 'post box' by LPUSH"),
        ("mail", "1", "1", "paused"),
    ]
    nothing = {"scheduled": 0, "held": 0, "retrying": 0, "leased": 0, "dead": 0, "died": 0, "estimated": {}}
    nothing |= {"dispatched_per_s": None, "taken_per_s": None, "paused_until": None}
    one = nothing | {"ready": 1, "dispatched": 1, "oldest_ready": ANY, "paused": False, "limit": None, "route": None}
    assert shardq.run("topics", "--json").objects == [
        one | {"topic": ""},
        one | {"topic": "calls", "limit": {"rate": 2.5, "concurrency": 1000}},
        one
        | {"topic": "letters", "ready": 0, "dispatched": 0, "oldest_ready": None}
        | {"route": {"to": "post box", "side": "left", "maxlen": None}},
        one | {"topic": "mail", "paused": True},
    ]
    assert shardq.run("stats", "--json").object["topics"].keys() == {"", "calls", "letters", "mail"}


def cells(rows: list[list[str]]) -> list[list[str]]:
    """The cells of each row, where an age like 0.1 s is one."""
    return [[*row[:3], *" ".join(row[3:]).replace(" s ", "s ", 1).split(maxsplit=4)] for row in rows]


def test_stats_watch_looks_again_until_it_is_interrupted(shardq: Shell, engine: Engine) -> None:
    process = shardq.start("stats", "--watch", "0.1", "--json")
    assert process.stdout is not None
    first, second = process.stdout.readline(), process.stdout.readline()
    assert '"scheduled":0' in first
    assert '"scheduled":0' in second
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_a_name_that_is_not_there_is_not_made_by_looking(shardq: Shell, name: str) -> None:
    for words in (["stats"], ["get", "x"], ["cancel", "x"], ["reschedule", "x", "--delay", "5"]):
        done = shardq.run(*words)
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith(f"error: there is no engine named '{name}' at redis://")
    assert shardq.run("push", "1").code == 0
    assert shardq.run("stats", "--json").object["scheduled"] == 1, "the push has made it"


def test_what_can_lose_tasks_is_for_stats_to_say(shell: Shell, server_binary: Path, name: str) -> None:
    with Server(server_binary) as server:  # it keeps nothing on its disk
        given = ("--url", server.url, "--name", name)
        assert "disk" not in shell.run("push", "1", *given).err
        assert "keeps nothing on its disk" in shell.run("push", "1", *given, "--verbose").err
        assert "keeps nothing on its disk" in shell.run("stats", *given).err
        text, *_ = shell.run("stats", "--json", *given).object["warnings"]
        assert text.startswith(server.address)
