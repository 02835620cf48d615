"""forward to a URL, and what `shardq stats` and `shardq topics` show of it, without its password."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from cluster.server import Server
from shardq import BadInput, Engine
from shardq.cli.app import app
from shardq.cli.options import Given
from shardq.engine import tables
from shardq.engine.access import EngineAccess
from tests.cli.shell import Shell
from tests.support.waiting import wait_until


@pytest.mark.promise
def test_forward_to_a_url(engine: Engine, own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardq.cli.session.set_up_logging", lambda **_: None)  # it is of the whole process

    def run(*words: str) -> str:
        """What a command prints; the error that it meets is raised."""
        given = ["--url", EngineAccess(engine).options.url or "", "--name", engine.name]
        done = CliRunner().invoke(app, [*words, *given], obj=Given(), standalone_mode=False)
        if isinstance(done.exception, BadInput):
            raise done.exception
        return done.stdout

    own_server.ask("CONFIG", "SET", "requirepass", "hushhush")
    where = own_server.url.removeprefix("redis://")
    shown = f"redis://:***@{where}?***#mail"
    given = ("forward", "mail", "--to", f"redis://:hushhush@{where}?timeout=0.5#mail")
    assert run(*given) == f"topic 'mail' now goes to {shown}\n"
    assert json.loads(run(*given, "--json")) == {"topic": "mail", "to": shown, "side": "right", "maxlen": None}
    assert run(*given, "--left") == f"topic 'mail' now goes to {shown} by LPUSH\n"
    engine.start()
    engine.push(1, topic="mail")
    line = f"mail to {shown}: 1 sent, 0 failed, 0 retried, 0 buried, circuit closed"
    told = wait_until(lambda: line in (told := run("stats")).splitlines() and told, "stats of another process tell it")
    assert f"to {shown} by LPUSH" in str(told)
    seen = wait_until(lambda: (s := json.loads(run("stats", "--json")))["sinks"] and s, "likewise as JSON")
    assert [(sink["to"], sink["sent"], sink["circuit"]) for sink in seen["sinks"]] == [(shown, 1, "closed")]
    assert seen["topics"]["mail"]["route"] == {"to": shown, "side": "left", "maxlen": None}
    own_server.kill()
    engine.push(1, topic="mail")
    problem = f"topic 'mail' can't be forwarded to {shown}, and its tasks wait: "
    down = wait_until(lambda: problem in (told := run("stats")) and told, "stats of another process tell it")
    wait_until(lambda: problem in run("health"), "so does health")
    wait_until(lambda: re.search(r"mail 1 \((open|half-open)\)", run("fleet")), "and the list of processes")
    with Engine(EngineAccess(engine).options.url, name=engine.name) as other:
        topics = tables.topics(other.health())
    ((cell, red),) = [(topics.columns[-1].cell(row), topics.red(row)) for row in topics.rows if row[0] == "mail"]
    assert re.fullmatch(rf"to {re.escape(shown)} by LPUSH, circuit (open|half-open)", cell)
    assert red
    assert run("forward", "mail", "--off") == "topic 'mail' is no longer forwarded\n"
    try:
        run("forward", "mail", "--to", "redis://:hushhush@h")
    except BadInput as exc:
        wrong = str(exc)
    assert "ends with the key: redis://…#LIST or #stream:NAME" in wrong
    assert "hushhush" not in f"{told}{seen}{down}{cell}{wrong}"


def test_the_options_of_a_route_are_shown_as_they_were_given(shardq: Shell, engine: Engine) -> None:
    route = "http://127.0.0.1:1/hook#max_attempts=25&backoff=0.1,0.2"
    assert shardq.run("forward", "mail", "--to", route).out == f"topic 'mail' now goes to {route}\n"
    engine.start()
    engine.push(1, topic="mail")
    wait_until(lambda: f"can't be forwarded to {route}" in shardq.run("health").out, "health shows it", timeout=30)
    told = shardq.run("stats")
    assert f"mail to {route}: " in told.out
    assert "--max-attempts" not in told.out + told.err
