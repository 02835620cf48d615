"""The JSON forms: their schema is held by ``forms.json``, and what commands print with --json has it.

``python -m tests.cli.test_forms`` writes the schema anew: what scripts read has changed then.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardq import Engine
from shardq.engine import forms
from shardq.features.listing.line import TaskForm, task
from tests.cli.shell import Shell
from tests.support.states import STATES, put
from tests.support.waiting import wait_until

SCHEMA = Path(__file__).with_name("forms.json")


def _without_texts(schema: Any) -> Any:
    """The schema without the docstrings of its structs."""
    if isinstance(schema, dict):
        return {key: _without_texts(each) for key, each in schema.items() if key != "description"}
    return [*map(_without_texts, schema)] if isinstance(schema, list) else schema


def schema() -> str:
    """A JSON schema of all forms, a field on a line."""
    _, found = msgspec.json.schema_components(forms.FORMS, ref_template="#/$defs/{name}")
    made = []
    for name, form in sorted(_without_texts(found).items()):
        fields = ",\n".join(f"  {json.dumps({each: of})[1:-1]}" for each, of in form.pop("properties", {}).items())
        properties = f', "properties": {{\n{fields}}}' if fields else ""
        made.append(f'"{name}": {json.dumps(form)[:-1]}{properties}}}')
    return '{"$defs": {\n' + ",\n".join(made) + "}}\n"


def assert_is(form: Any, line: dict[str, Any], *missing: str) -> None:
    """The line has the fields of the form, all but these, and values of their types."""
    msgspec.convert(line, form, strict=True)
    assert {*line} == {*form.__struct_fields__} - {*missing}


OTHERS_OF_A_SCHEDULE = ("payload_base64", "payload_repr")


def test_the_schema_is_held() -> None:
    assert schema() == SCHEMA.read_text(), "python -m tests.cli.test_forms writes it anew, if that is meant"


@pytest.fixture
def full(engine: Engine) -> Engine:
    """An engine with a task in each state, topics with settings, a schedule and a worker's report."""
    engine.start()
    for state in STATES:
        put(engine, state, topic=state)
    engine.push("x", delay=60, topic="mail", id="own", headers={"a": "b"}, tags=["red"], max_attempts=3, expires=90)
    engine.limit("mail", rate=5, concurrency=7)
    engine.pause("calls")
    engine.forward("letters", to="https://shop.example/hooks")
    engine.every("often", interval=3600, payload={"n": 1}, topic="reports")
    wait_until(lambda: engine.stats().dispatched > 0, "a task is dispatched")
    return engine


def test_a_listed_line_is_what_get_prints_and_is_read_as_it_is(shardq: Shell, full: Engine) -> None:
    done = shardq.run("list", "--all", "--json")
    assert len(done.objects) == len(STATES) + 1
    for text, line in zip(done.lines, done.objects, strict=True):
        assert_is(TaskForm, line, "payload_base64")
        info = full.get(line["id"], decode=False)
        assert info is not None
        assert text.encode() == msgspec.json.encode(task(info))
        assert shardq.run("get", line["id"], "--json").object == line


def test_payloads_that_are_no_json(shardq: Shell, engine: Engine, url: str) -> None:
    with Engine(url, name=engine.name, codec="raw") as raw:
        for payload, field, shown in ((b"text", "payload", "text"), (b"\xff", "payload_base64", "/w==")):
            line = shardq.run("get", raw.push(payload, delay=60), "--json").object
            assert_is(TaskForm, line, *({"payload", "payload_base64"} - {field}))
            assert line[field] == shown
    for line in shardq.run("list", "--no-payload", "--json").objects:
        assert_is(TaskForm, line, "payload", "payload_base64")


def test_pushes(shardq: Shell, engine: Engine) -> None:
    pushed = shardq.run("push", "1", "--id", "a", "--delay", "1h", "--json").object
    assert_is(forms.ReceiptForm, pushed, "line")
    assert pushed == {"id": "a", "outcome": "pushed", "state": None}
    line, account = shardq.run("import", "-", "--json", stdin='{"payload": 1, "id": "a"}\n').objects
    assert_is(forms.ReceiptForm, line)
    assert (line["line"], line["outcome"], line["state"], account["kept"]) == (1, "kept", "scheduled", 1)
    assert_is(forms.GoneForm, shardq.run("get", "b", "--json").object)


def test_topics_stats_health_fleet_and_schedules(shardq: Shell, full: Engine) -> None:
    for line in (lines := shardq.run("topics", "--json").objects):
        assert_is(forms.TopicLine, line)
    assert {line["topic"] for line in lines} >= {"mail", "calls", "letters"}
    for words in (["stats"], ["stats", "--totals"]):
        seen = shardq.run(*words, "--json").object
        assert_is(forms.StatsForm, seen)
        for topic in seen["topics"].values():
            assert_is(forms.TopicForm, topic)
        for shard in seen["shards"]:
            assert_is(forms.ShardForm, shard)
        assert bool(seen["shards"]) == (words == ["stats"])
    verdict = shardq.run("health", "--json").object
    assert_is(forms.VerdictForm, verdict)
    assert verdict == {name: seen[name] for name in verdict}
    for line in (members := shardq.run("fleet", "--json").objects):
        assert_is(forms.MemberForm, line)
        for name in forms.HISTOGRAMS:
            for lateness in line[name].values():
                assert_is(forms.LatenessForm, lateness)
    assert members
    (schedule,) = shardq.run("every", "--json").objects
    assert_is(forms.ScheduleForm, schedule, *OTHERS_OF_A_SCHEDULE)


def test_what_can_t_be_told_has_the_same_form(shardq: Shell) -> None:
    verdict = shardq.run("health", "--url", "redis://127.0.0.1:1", "--timeout", "1s", "--json").object
    assert_is(forms.VerdictForm, verdict)
    assert (verdict["ok"], verdict["severity"]) == (None, None)


if __name__ == "__main__":
    SCHEMA.write_text(schema())
