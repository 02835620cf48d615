"""What is logged: lines for people, JSON for machines, the loggers and fields of the page, and no secret."""

from __future__ import annotations

import ast
import json
import logging
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest

import shardq
from cluster.server import Server
from shardq import Engine, Unavailable
from shardq.cli.output import JsonFormatter
from shardq.engine import servers
from tests.cli.shell import LONGEST_S, Shell
from tests.support.pages import PACKAGE, page
from tests.support.states import state_of
from tests.support.waiting import wait_until

PASSWORD = "pass1234word"
PAYLOAD = "card5678number"


class Lines(logging.Handler):
    """Keeps what the log would be with --log json."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(JsonFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def of(self, logger: str, words: str) -> list[dict[str, object]]:
        found = [json.loads(line) for line in self.lines]
        return [each for each in found if each["logger"] == logger and words in each["message"]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, log = Lines(), logging.getLogger("shardq")
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    yield handler
    log.removeHandler(handler)
    log.setLevel(before)


class Mail(msgspec.Struct):
    card: int


def test_neither_passwords_nor_payloads_are_logged(own_server: Server, name: str, lines: Lines) -> None:
    own_server.ask("CONFIG", "SET", "requirepass", PASSWORD)
    url = own_server.url.replace("://", f"://:{PASSWORD}@")
    with Engine(url, name=name, shards=1, timeout=5.0, connect_timeout=1.0) as engine:
        engine.start()
        worker = engine.worker(concurrency=2, max_attempts=1)

        @worker.on("fails")
        def fails(delivery: shardq.Delivery) -> None:
            raise KeyError("the handler's own text")

        @worker.on("typed", type=Mail)
        def typed(delivery: shardq.Delivery) -> None: ...

        @worker.on("ends")
        def ends(delivery: shardq.Delivery) -> None:
            worker.stop()

        failed = engine.push({"card": PAYLOAD}, topic="fails")
        broken = engine.push({"card": PAYLOAD}, topic="typed")
        unknown = engine.push({"task": "nobody", "args": [PAYLOAD]}, topic="typed")
        ended = engine.push(PAYLOAD, topic="ends", delay=1.0)
        worker.run()
        wait_until(lambda: state_of(engine, ended) == "gone", "the last is acknowledged")
        assert {state_of(engine, id) for id in (failed, broken, unknown)} == {"dead"}
        own_server.kill()
        wait_until(lambda: lines.of("shardq.outages", "fails"), "the outage is logged")
        with pytest.raises(Unavailable) as caught:
            engine.push(PAYLOAD)
    (said,) = lines.of("shardq.worker", f"task {failed} failed")
    assert {"task_id": failed, "topic": "fails", "attempt": 1, "error": "KeyError"}.items() <= said.items()
    assert said["level"] == "error"
    assert str(said["exception"]).startswith("Traceback")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(said["ts"]))
    dead = [
        id
        for said in lines.of("shardq.worker", "will not be tried again")
        for id in cast("list[str]", said["task_ids"])
    ]
    assert set(dead) == {failed, broken, unknown}
    failures = lines.of("shardq.worker", "failed in attempt")
    assert {said["task_id"] for said in failures if said["error"] == "PayloadNotDecodable"} == {broken, unknown}
    assert lines.of("shardq.outages", "fails")[0]["node"] == own_server.address
    for text in (*lines.lines, str(caught.value), repr(engine)):
        assert PASSWORD not in text
        assert PAYLOAD not in text


APP = """
import logging, os, shardq

engine = shardq.Engine(name=os.environ["SHARDQ_NAME"])

@engine.task(name="note", max_attempts=1)
def note():
    logging.getLogger("shop").warning("noted", extra={"order": 42})
    raise ValueError("no")
"""


def test_work_prints_json(shardq: Shell, engine: Engine, tmp_path: Path) -> None:
    """Its own lines, and those of the program."""
    (tmp_path / "shop.py").write_text(APP)
    shardq.cwd = tmp_path
    engine.start()
    id = engine.push({"task": "note", "args": [], "kwargs": {}}, max_attempts=1)
    process = shardq.start("work", "shop:engine", "--log", "json")
    assert process.stdout is not None
    assert process.stderr is not None
    assert "serving" in process.stdout.readline()
    wait_until(lambda: state_of(engine, id) == "dead", "it failed")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LONGEST_S)
    said = {each["message"]: each for each in map(json.loads, err.splitlines())}
    assert said["noted"]["order"] == 42
    assert said["noted"]["logger"] == "shop"
    assert said[f"task {id} failed in attempt 1"]["error"] == "ValueError"


def test_run_prints_times(shardq: Shell, engine: Engine) -> None:
    process = shardq.start("run", "--quiet", "--verbose")
    assert process.stderr is not None
    first = process.stderr.readline()
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z shardq(\.\w+)* info: ", first), first
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0


def _nodes() -> Iterator[ast.AST]:
    """The code of the library."""
    for file in PACKAGE.rglob("*.py"):
        if "cli" not in file.relative_to(PACKAGE).parts:
            yield from ast.walk(ast.parse(file.read_text()))


def _keys(node: ast.AST) -> set[str]:
    """The keys of all dicts that are written out in a piece of code."""
    dicts = [inner for inner in ast.walk(node) if isinstance(inner, ast.Dict)]
    return {str(key.value) for each in dicts for key in each.keys if isinstance(key, ast.Constant)}


def _table(head: str) -> set[str]:
    """The first column of the page's table with this head."""
    rows = page("cli").split(f"| {head} |")[1].split("\n\n")[0].splitlines()[2:]
    return {found for row in rows for found in re.findall(r"`([\w.]+)`", row.split("|")[1])}


@pytest.mark.slow
def test_the_page_names_every_logger() -> None:
    calls = [node for node in _nodes() if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    named = [node.args[0] for node in calls if getattr(node.func, "attr", "") == "getLogger"]
    found = {str(each.value) for each in named if isinstance(each, ast.Constant)}
    assert _table("logger") == found | {servers.SERVERS, servers.LIMITS}


@pytest.mark.slow
def test_the_page_names_every_field() -> None:
    """Fields are written out at ``extra=``, or before in ``fields``, or by a function ``_fields``."""
    found: set[str] = set()
    for function in (node for node in _nodes() if isinstance(node, ast.FunctionDef)):
        extra = [node.value for node in ast.walk(function) if isinstance(node, ast.keyword) and node.arg == "extra"]
        found = found.union(*map(_keys, extra))
        if function.name == "_fields":
            found |= _keys(function)
        elif extra:
            found = found.union(*(_keys(node) for node in ast.walk(function) if _assigns_fields(node)))
    assert _table("field") == found


def _assigns_fields(node: ast.AST) -> bool:
    if not isinstance(node, (ast.Assign, ast.AnnAssign)):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(isinstance(inner, ast.Name) and inner.id == "fields" for each in targets for inner in ast.walk(each))
