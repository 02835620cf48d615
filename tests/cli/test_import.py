"""import carries out many lines, and reports those that are wrong."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from cluster.server import Server
from shardq import Engine
from tests.cli.ledger import lines, stored
from tests.cli.shell import Shell

BAD = [
    ("nope", "it is not JSON"),
    ('{"payload": 1', "it is not JSON"),
    ("[1]", "it is not a task: Expected `object`"),
    ('{"delay": 3}', "it is not a task: Object missing required field `payload`"),
    ('{"payload": 1, "dealy": 3}', "it is not a task: Object contains unknown field `dealy`"),
    ('{"payload": 1, "delay": -3}', "a delay can't be -3"),
    ('{"payload": 1, "delay": "5 parsecs"}', "'5 parsecs' is not a length of time"),
    ('{"payload": 1, "at": "2030-01-01T00:00:00"}', "has no time zone"),
    ('{"payload": 1, "delay": 1, "at": 2e9}', 'both "delay": 1.0 and "at": 2000000000.0 were given'),
    ('{"payload": 1, "topic": "a b"}', "a topic can't be 'a b'"),
    ('{"payload": 1, "dedup": 5}', '"dedup": 5.0 was given without "id"'),
    ('{"payload": 1, "on_conflict": "maybe"}', "Invalid enum value 'maybe'"),
    ('{"payload": 1, "headers": {"k": 1}}', "Expected `str`, got `int`"),
    ('{"payload": 1, "throttle": 5}', '"throttle": 5.0 was given without "id"'),
    ('{"payload": 1, "tags": ["a/b"]}', "the tag 'a/b' has '/'"),
    ('{"payload": 1, "expires": "someday"}', "'someday' is not a length of time"),
    ('{"payload": 1, "max_attempts": 0}', "max_attempts can't be 0"),
    (json.dumps({"payload": "x" * (1 << 20)}), "are allowed"),
    (json.dumps({"payload": "x" * (2 << 20)}), "are allowed"),
]


BAD_OF_EXPORTS = [
    ('{"payload": 1, "id": "/b"}', "the id '/b' begins with '/'"),
    ('{"payload": 1, "id": "a/b", "topic": "c"}', "the id 'a/b' has another topic than 'c'"),
    ('{"payload": 1, "id": "a", "state": "asleep"}', "Invalid enum value 'asleep'"),
    ('{"id": "a", "state": "ready"}', "it has no payload"),
    ('{"id": "a", "state": "ready", "payload": 1, "color": 1}', "unknown field `color`"),
    ('{"shardq": 1, "settings": {"dead_count": -1}}', '"dead_count": -1 is not possible'),
    ('{"shardq": 99}', "it is of an export in the form 99"),
    ('{"topic": "mail", "settings": {"rate": -1}}', '"rate": -1 is not possible'),
]


@pytest.mark.parametrize("bad", [BAD, BAD_OF_EXPORTS], ids=["to push", "of exports"])
def test_bad_lines_are_told_by_number_and_the_good_ones_pushed(
    shardq: Shell, engine: Engine, tmp_path: Path, bad: list[tuple[str, str]]
) -> None:
    file = tmp_path / "tasks.jsonl"
    good = '{"payload": "good", "delay": "1h"}'
    file.write_text("".join(f"{text}\n\n{good}\n" for text, _ in bad))
    done = shardq.run("import", str(file))
    assert (done.code, done.out) == (1, "")
    told = done.err.splitlines()
    assert told.pop() == f"{len(bad)} pushed, {len(bad)} bad lines"
    for position, ((_, reason), line) in enumerate(zip(bad, told, strict=True)):
        assert line.startswith(f"line {3 * position + 1}: ")
        assert reason in line
    assert engine.stats().scheduled == len(bad)


def test_a_schedule_that_can_not_be_read_is_told(shardq: Shell, engine: Engine) -> None:
    done = shardq.run("import", "-", stdin='{"schedule": "nightly", "declaration": {}, "progress": {}}\n')
    assert done.code == 1
    first, last = done.err.splitlines()
    assert first.startswith("line 1: the schedule 'nightly' can't be read: ")
    assert last == "0 pushed, 1 bad line"


def test_only_the_first_bad_lines_are_told(shardq: Shell, engine: Engine) -> None:
    done = shardq.run("import", "-", stdin="bad\n" * 50)
    assert done.code == 1
    told = done.err.splitlines()
    assert told[19:] == [told[19], "... and 30 more bad lines", "0 pushed, 50 bad lines"]
    assert told[19].startswith("line 20: ")


def test_strict_stops_before_the_window_of_the_first_bad_line(shardq: Shell, engine: Engine, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    good = lines({"payload": n, "delay": 3600} for n in range(5000))
    file.write_text(good + "bad\n" + good)
    done = shardq.run("import", str(file), "--strict")
    assert done.code == 1
    assert done.err.splitlines()[0].startswith("line 5001: ")
    assert done.err.splitlines()[1:] == [
        "4,000 pushed, 1 bad line",
        "ended early, 5,001 lines read; the same command goes on behind line 4,000",
    ]
    assert engine.stats().scheduled == 4000
    file.write_text(good + good)
    again = shardq.run("import", str(file), "--strict")
    going_on = f"goes on behind line 4,000, where an import ended before its end ({file}.progress)"
    assert (again.code, again.err.splitlines()) == (0, [going_on, "10,000 pushed"])
    assert engine.stats().scheduled == 10_000
    assert [*tmp_path.iterdir()] == [file]


def test_many_over_several_windows(shardq: Shell, engine: Engine) -> None:
    count = 9001
    source = lines({"payload": {"n": n}, "delay": 3600, "id": f"task-{n}"} for n in range(count))
    done = shardq.run("import", "-", "--ids", stdin=source)
    assert (done.code, done.err) == (0, "9,001 pushed\n")
    assert done.lines == [f"task-{n}" for n in range(count)]
    assert engine.stats().scheduled == count
    again = shardq.run("import", "-", stdin=source)
    assert (again.code, again.err) == (0, "0 pushed, 9,001 kept\n")


def test_options_are_what_lines_leave_out(shardq: Shell, engine: Engine) -> None:
    url = "https://customer.example/in"
    other = {"payload": 2, "id": "b", "key": "k", "topic": "own", "at": 4e9, "headers": {}, "url": url}
    source = lines([{"payload": 1, "id": "a"}, other])
    done = shardq.run("import", "-", "--topic", "t", "--delay", "1h", "--header", "k=v", stdin=source)
    assert done.code == 0
    first, second = engine.get("t/a"), engine.get("own/k/b")
    assert first is not None
    assert second is not None
    assert (first.headers, second.headers) == ({"k": "v"}, {})
    assert (first.url, second.url) == (None, url)
    assert second.due is not None
    assert second.due.timestamp() == 4e9


def test_taken_ids_are_told_by_line(shardq: Shell, engine: Engine) -> None:
    engine.push(1, id="taken", delay=3600)
    source = lines(
        [
            {"payload": 1, "id": "free", "delay": 3600},
            {"payload": 1, "id": "taken", "on_conflict": "reject"},
            {"payload": 1, "id": "taken"},
            {"payload": 1, "id": "twice", "delay": 3600, "on_conflict": "reject"},
            {"payload": 1, "id": "twice", "on_conflict": "reject"},
        ]
    )
    done = shardq.run("import", "-", "--json", stdin=source)
    assert done.code == 1
    *each, total = done.objects
    assert [(line["line"], line.get("outcome", "bad")) for line in sorted(each, key=lambda line: line["line"])] == [
        (1, "pushed"),
        (2, "bad"),
        (3, "kept"),
        (4, "pushed"),
        (5, "bad"),
    ]
    assert {name: count for name, count in total.items() if count} == {
        "pushed": 2,
        "kept": 1,
        "bad": 2,
        "read": 5,
        "settled": 5,
        "whole": True,
    }
    assert "already scheduled" in each[-1]["error"]


def test_what_was_pushed_is_told_when_the_server_refuses_the_rest(
    shell: Shell, own_server: Server, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(lines({"payload": f"{n} {'x' * 1000}", "delay": 3600} for n in range(20_000)))
    used = int(own_server.client(decode=True).info("memory")["used_memory"])
    own_server.ask("CONFIG", "SET", "maxmemory", used + (8 << 20))
    words = ("import", str(file), "--url", own_server.url, "--name", name)
    done = shell.run(*words)
    assert done.code == 1
    *_, error = done.err.splitlines()
    assert error.startswith("error: ")
    assert "memory" in error
    own_server.ask("CONFIG", "SET", "maxmemory", 0)
    with Engine(own_server.url, name=name) as engine:
        assert engine.stats().scheduled > 0
        # the same command carries out the rest: each line once
        assert shell.run(*words).code == 0
        assert stored(engine) == Counter(json.loads(text)["payload"] for text in file.read_text().splitlines())


def test_a_dash_is_stdin(shardq: Shell) -> None:
    assert shardq.run("import", "-", stdin=lines([{"payload": 1}])).err.splitlines()[-1] == "1 pushed"
    (id,) = shardq.run("push", "-", "--text").lines
    assert shardq.run("get", id, "--json").object["payload"] == "-"


def test_on_a_terminal_it_shows_how_far_it_is(shardq: Shell, engine: Engine, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(lines({"payload": n, "delay": 3600} for n in range(20_000)))
    done = shardq.on_terminal("import", str(file), columns=80, rows=24)
    assert done.code == 0
    assert "importing" in done.out
    assert "kB" in done.out
    assert done.out.rstrip().endswith("20,000 pushed")


@pytest.mark.parametrize(
    "words",
    [
        ["push"],
        ["push", "1", "--ids"],
        ["push", "1", "--text", "--raw"],
        ["push", "1", "--delay", "5", "--at", "2030-01-01T00:00:00Z"],
        ["import"],
        ["import", "-", "--id", "x"],
        ["import", "-", "--delay", "5", "--at", "2030-01-01T00:00:00Z"],
    ],
)
def test_options_that_do_not_go_together(shardq: Shell, words: list[str]) -> None:
    done = shardq.run(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"Usage: shardq {words[0]}")
