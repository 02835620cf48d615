"""resize and shards do what they say, and show it."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

import pytest

from shardq import Engine, Task
from shardq.core.fleet.member import NO_DISPATCHER
from shardq.core.layout.keys import shard_keys
from tests.cli.conftest import SHARDS
from tests.cli.shell import LONGEST_S, ON_BOTH, Done, Shell
from tests.support.waiting import wait_until

TASKS = 600


@pytest.fixture
def full(engine: Engine) -> Engine:
    """Of tasks that are due in an hour."""
    engine.push_many([Task(n, delay=3600) for n in range(TASKS)])
    return engine


def served(shardq: Shell, *words: str) -> Done:
    """``shards`` when it hears of the dispatcher: one that stood still for three seconds is none for a moment."""

    def seen() -> Done | None:
        done = shardq.run("shards", *words)
        return None if "no dispatchers" in done.out or '"dispatchers":[]' in done.out else done

    done = wait_until(seen, "the dispatcher is seen")
    assert done is not None
    return done


def homes(engine: Engine) -> list[int]:
    return [shard.scheduled or 0 for shard in engine.stats().shards]


def test_dry_run_moves_nothing(shardq: Shell, full: Engine) -> None:
    before = homes(full)
    told = shardq.run("resize", "8", "--dry-run", "--rate", "100", "--json").object
    assert (told["present"], told["shards"]) == (SHARDS, 8)
    assert TASKS / 4 < told["tasks"] < 3 * TASKS / 4
    assert told["seconds"] == told["tasks"] / 100
    for way in ("leaving", "coming"):
        assert sum(node[way] for node in told["nodes"]) == told["tasks"]
        assert sum(node[f"{way}_bytes"] for node in told["nodes"]) == told["bytes"] > 0
    assert 0 <= told["between_nodes"]["tasks"] <= told["tasks"]
    done = shardq.run("resize", "8", "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert done.lines[0].split() == ["node", "leaving", "bytes", "coming", "bytes"]
    assert f"from {SHARDS} to 8 shards: about {told['tasks']} tasks would move" in done.out
    assert "nothing was moved" in done.out
    assert homes(full) == before
    assert full.resize(dry_run=True).done()


def test_without_a_dispatcher_it_says_that_nobody_moves(shardq: Shell, full: Engine) -> None:
    done = shardq.run("resize", "8")
    assert (done.code, done.err) == (0, NO_DISPATCHER + "\n")
    assert done.out == "8 shards are in force; `shardq shards` shows how far the moving of tasks is\n"
    again = shardq.run("resize", "8", "--json")
    assert again.object == {
        "shards": 8,
        "in_force": True,
        "done": False,
        "swept": 0,
        "of": 8,
        "moved": 0,
        "held_up": "",
        "dispatchers": 0,
    }
    shown = shardq.run("shards")
    assert shown.lines[-1] == f"tasks move from {SHARDS} to 8 shards: 0 of 8 shards swept, 0 tasks on the way"
    told = shardq.run("shards", "--json").object
    assert (told["count"], told["priors"], told["announced"]) == (8, [SHARDS], None)
    assert {shard["resharding"] for shard in told["shards"]} == {"to be swept"}


def test_ready_tasks_of_a_paused_topic_hold_it_up(shardq: Shell, engine: Engine) -> None:
    engine.start()
    engine.pause("mail")
    for n in range(20):
        engine.push(n, topic="mail")
    wait_until(lambda: engine.stats().ready == 20, "all are ready")
    engine.stop()
    change = engine.resize(5)
    said = "may wait for ready tasks of paused topics (20 of 'mail')"
    assert said in change.progress().held_up
    assert [said in warning for warning in engine.health().warnings].count(True) == 1
    assert said in shardq.run("shards").out
    engine.resume("mail")
    assert change.progress().held_up == ""


@pytest.mark.slow
def test_a_dispatcher_that_was_killed_is_no_dispatcher(shardq: Shell, full: Engine) -> None:
    process = shardq.start("run", "--quiet")
    wait_until(lambda: len(shardq.run("shards", "--json").object["dispatchers"]) == 1, "it is a member")
    process.kill()
    wait_until(lambda: shardq.run("shards", "--json").object["dispatchers"] == [], "it is no member")
    assert shardq.run("resize", "8").err == NO_DISPATCHER + "\n"


@pytest.mark.slow
@ON_BOTH
def test_there_and_back_waiting(shardq: Shell, full: Engine) -> None:
    full.start()
    grown = shardq.run("resize", "8", "--wait")
    assert grown.code == 0
    # those that move stood still for seconds, if anything
    assert set(grown.err.splitlines()) <= {NO_DISPATCHER}
    moved = TASKS - sum(homes(full)[:SHARDS])
    assert grown.lines[-1] == f"8 shards are in force, and every task is where it belongs: {moved} moved"
    assert full.resize(dry_run=True).done()
    assert min(homes(full)) > 0
    back = shardq.run("resize", "3", "--wait", "--json")
    assert back.code == 0
    assert set(back.err.splitlines()) <= {NO_DISPATCHER}
    assert {"shards": 3, "in_force": True, "done": True, "swept": 3, "of": 3}.items() <= back.object.items()
    assert back.object["dispatchers"] <= 1
    assert back.object["moved"] > TASKS / 2, "those of shards that are gone count too"
    assert sum(homes(full)) == TASKS
    assert shardq.run("resize", "3").out.startswith(
        "3 shards are in force, and every task is where it belongs: 0 moved"
    )


def test_a_table_on_a_terminal(shardq: Shell, full: Engine) -> None:
    full.start()
    done = shardq.on_terminal("resize", "8", "--wait", columns=100, rows=30)
    assert done.code == 0
    assert "shards swept" in done.out
    assert re.search(r"^ shard +scheduled +ready +leased +resharding *$", done.out, re.MULTILINE)
    assert "8 shards are in force, and every task is where it belongs" in done.out


def test_ctrl_c_leaves_the_change_running(shardq: Shell, full: Engine) -> None:
    process = shardq.start("resize", "8", "--wait")
    assert process.stdout is not None
    assert "tasks moved, 0 of 8 shards swept" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 130
    assert "the change to 8 shards goes on without this command" in err
    assert "Traceback" not in err
    full.start()
    wait_until(lambda: full.resize(dry_run=True).done(), "somebody moves them")


def test_it_waits_for_what_runs_where_it_is(shardq: Shell, full: Engine) -> None:
    full.start()
    full.push_many([Task(n, topic="now") for n in range(50)])
    wait_until(lambda: full.stats().ready == 50, "they are ready")
    process = shardq.start("resize", "8", "--wait")
    assert process.stdout is not None
    assert "; 50 ready or leased, not moved" in process.stdout.readline()
    full.purge("now")
    out, _ = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0
    assert "every task is where it belongs" in out


def test_what_is_not_possible(shardq: Shell, engine: Engine) -> None:
    for words, message in (
        (["resize", "8", "--dry-run", "--wait"], "nothing to --wait for"),
        (["resize", "0"], "not in the range 1<=x<=1024"),
        (["resize", "8", "--rate", "0"], "--rate"),
    ):
        done = shardq.run(*words)
        assert (done.code, done.out) == (2, ""), words
        assert message in done.err
    assert engine.resize(dry_run=True).progress().shards == SHARDS


@ON_BOTH
def test_shards_as_a_table(shardq: Shell, full: Engine) -> None:
    full.start()
    done = served(shardq)
    assert (done.code, done.err) == (0, "")
    head, _, *rows = [line for line in done.lines if line.strip()]
    assert head.split()[:8] == ["shard", "tag", "slot", "scheduled", "ready", "leased", "dead", "share"]
    assert head.split()[8:] == ["node", "dispatcher"]
    for shard, row in enumerate(rows[:SHARDS]):
        keys = shard_keys(full.name, shard)
        number, tag, slot, scheduled, *_ = row.split()
        assert (int(number), f"shardq:{{{tag}}}:", int(slot)) == (shard, keys.prefix, keys.slot)
        assert int(scheduled) == homes(full)[shard]
    assert any(line.startswith(" fullest / mean") for line in rows)
    assert done.lines[-1] == f"{full.name}: {SHARDS} shards, 1 dispatcher"


@ON_BOTH
def test_shards_as_json(shardq: Shell, full: Engine) -> None:
    full.start()
    told = served(shardq, "--json").object
    (process,) = told["dispatchers"]
    assert (told["name"], told["count"], told["priors"], told["announced"]) == (full.name, SHARDS, [], None)
    assert {shard["dispatcher"] for shard in told["shards"]} == {process}
    assert [shard["scheduled"] for shard in told["shards"]] == homes(full)
    assert sum(shard["share"] for shard in told["shards"]) == pytest.approx(1)
    nodes: list[dict[str, Any]] = told["nodes"]
    assert sum(node["shards"] for node in nodes) == SHARDS
    assert sum(node["tasks"] for node in nodes) == TASKS
    counts = [node["tasks"] for node in nodes]
    assert told["fullest_to_mean"]["tasks"] == pytest.approx(max(counts) / (TASKS / len(counts)))
    assert {shard["node"] for shard in told["shards"]} <= {node["node"] for node in nodes}


def test_shards_of_an_empty_engine_and_without_pollers(shardq: Shell, engine: Engine) -> None:
    told = json.loads(shardq.run("shards", "--json").out)
    assert told["dispatchers"] == []
    assert {(shard["share"], shard["dispatcher"]) for shard in told["shards"]} == {(None, None)}
    assert told["fullest_to_mean"]["tasks"] is None
    done = shardq.run("shards")
    assert "nobody" in done.out
    assert done.lines[-1] == f"{engine.name}: {SHARDS} shards, no dispatchers"
