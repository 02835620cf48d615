"""Texts of others on a terminal: no reason, error, payload, header, host or topic moves the cursor, sets a colour or a
title, or turns the order of what is beside it, in any command and in the log.
"""

from __future__ import annotations

import json
import logging
import re
import time
from pathlib import Path

import pytest

from cluster.server import Server
from shardq import Engine
from shardq.cli.output import JsonFormatter
from shardq.core.fleet import report
from shardq.core.layout.keys import control_keys, shard_keys
from tests.cli.shell import Shell
from tests.cli.test_top import Top
from tests.support.pages import PACKAGE
from tests.support.states import FAR_S, put

CSI, OSC, C1 = "\x1b[31337m", "\x1b]0;title\x07", "\x9b7m\x90q\x9c"
EVIL = f"{CSI}{OSC}{C1}\x7f\r\u202e"

WRITTEN = "\\x1b[31337m"
"""How it is shown: what the terminal obeyed would be missing from what a test sees of it."""

_OBEYED = re.compile(r"[\x00-\x06\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters, but for the ends of lines and tabs, and what turns the order."""

FUNNELS = {"output.py", "table.py"}
"""The modules of the command that print."""


@pytest.fixture
def hostile(engine: Engine, single: Server) -> Engine:
    """An engine with such texts wherever a stranger can put one."""
    control, shard = control_keys(engine.name), shard_keys(engine.name, 0)
    engine.start()
    put(engine, "scheduled", payload=EVIL, id="evil\u202e", headers={EVIL: EVIL}, topic="mail")
    put(engine, "ready", payload={EVIL: [EVIL]})
    (delivery,) = engine.consumer().claim(1, wait=30)
    engine.consumer().bury(delivery, f"Traceback\n{EVIL}")
    engine.stop()
    told = report.Report(
        host=EVIL,
        pid=1,
        since=time.time() - 60,
        alive_s=FAR_S,
        topics=(EVIL,),
        concurrency=1,
        error=f"Traceback\n{EVIL}",
        tasks=(EVIL,),
        unknown=(report.UnknownCall(task=EVIL, topic=EVIL, count=9, seconds=9.0),),
        longest=(report.RunningTask(id=EVIL, topic=EVIL, seconds=900.0),),
        stuck=1,
        problems=(EVIL,),
    )
    single.ask("ZADD", control.workers, int((time.time() + FAR_S) * 1000), "worker")
    single.ask("HSET", control.reports, "worker", report.encode(told))
    single.ask("HSET", shard.topics, EVIL, 1)
    return engine


def is_harmless(text: str) -> bool:
    return not _OBEYED.search(text)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("list", 0),
        ("list --state dead", 0),
        ("list --next", 0),
        ("get mail/evil\u202e", 0),
        ("fleet", 0),
        ("stats", 1),
        ("topics", 0),
        ("health", 1),
        ("doctor", 1),
    ],
)
def test_commands(shardq: Shell, hostile: Engine, words: str, code: int) -> None:
    done = shardq.on_terminal(*words.split(), columns=1000, rows=60)
    assert done.code == code, done.out
    assert WRITTEN in done.out
    assert is_harmless(done.out), done.out
    for object in shardq.run(*words.split(), "--json").lines:
        assert is_harmless(object), object
        json.loads(object)


def test_an_error(shardq: Shell, hostile: Engine) -> None:
    done = shardq.on_terminal("push", "1", "--id", EVIL, columns=200, rows=24)
    assert done.code == 2
    assert is_harmless(done.out)
    done = shardq.on_terminal(f"pu{EVIL}", columns=200, rows=24)
    assert done.code == 2
    assert is_harmless(done.out)


@pytest.mark.slow
def test_top(shardq: Shell, hostile: Engine) -> None:
    with Top(shardq, "--view", "fleet", columns=300, rows=40) as top:
        top.shows(f"{WRITTEN}\\x1b]0;")
        top.press("5")
        top.shows("one of them")
        seen = "\n".join(top.shows(WRITTEN))
        assert is_harmless(seen), seen


def test_the_log(shardq: Shell, tmp_path: Path) -> None:
    record = logging.makeLogRecord({"msg": "failed: %s", "args": (EVIL,), "topic": EVIL})
    text = JsonFormatter().format(record)
    assert is_harmless(text)
    assert json.loads(text)["topic"] == EVIL
    (tmp_path / "app.py").write_text(
        "import logging, shardq, sys\n"
        "engine = shardq.Engine('redis://127.0.0.1:1')\n"
        f"logging.getLogger('shardq').warning('failed: %s', {EVIL!r})\n"
        "sys.exit()\n"
    )
    shardq.cwd = tmp_path
    said = shardq.run("work", "app:worker").err
    assert WRITTEN in said
    assert is_harmless(said)


def test_nothing_else_prints() -> None:
    """Or else the next command would have to think of it."""
    prints = re.compile(r"click\.s?echo\(|\bprint\(|std(?:out|err)\.write\(|console\.print\(")
    for path in sorted((PACKAGE / "cli").rglob("*.py")):
        own = {"__init__.py": 1, "app.py": 1}.get(path.name, 0)  # no click, and the version
        if path.name not in FUNNELS:
            lines = [line for line in path.read_text().splitlines() if prints.search(line) and "def print(" not in line]
            lines = [line for line in lines if not re.search(r"Table\(|table\.print|\)\.print|spread\.print", line)]
            assert len(lines) <= own, (path, lines)
