"""schedules, set_schedule and history: what the whole engine has on the control slot, besides its topology."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from shardq.core.calls.request import Call
from shardq.core.layout.keys import ControlKeys
from shardq.features.history import requests as stored
from shardq.features.schedules import requests as schedules
from shardq.features.schedules.requests import Change
from tests.lua.shard import NOW, Shard, State


@dataclass(frozen=True)
class Case:
    """One call on the control keys: its answer, the keys that are others afterwards, and what is told as news."""

    call: Callable[[ControlKeys], Call[Any]]
    answer: list[Any]
    before: State
    after: State
    news: tuple[str, ...] = ()


TWO = {"a": "{1}", "a/declared": "{cron}", "b": "{2}", "b/declared": "{at}"}


def changing(*changes: tuple[str, ...], tell: bool = True) -> Callable[[ControlKeys], Call[Any]]:
    some = [Change(name, *(each.encode() for each in rest)) for name, *rest in changes]
    return lambda keys: schedules.set_schedule(keys, 0, some, tell=tell)


SET = {
    "declared": Case(
        changing(("c", "", "{3}", "{new}"), ("d", "", "{4}", "{newer}")),
        ["ok", 1, 1],
        {"schedules": TWO},
        {"schedules": TWO | {"c": "{3}", "c/declared": "{new}", "d": "{4}", "d/declared": "{newer}"}},
        ("schedules/c", "schedules/d"),
    ),
    "its state alone": Case(
        changing(("b", "{2}", "{3}"), tell=False),
        ["ok", 1],
        {"schedules": TWO},
        {"schedules": TWO | {"b": "{3}"}},
    ),
    "removed": Case(
        changing(("a", "{1}", "")),
        ["ok", 1],
        {"schedules": TWO},
        {"schedules": {"b": "{2}", "b/declared": "{at}"}},
        ("schedules/a",),
    ),
    "the state of one is another one": Case(
        changing(("a", "{0}", "{9}", "{x}"), ("b", "{2}", "{9}", "{x}"), ("a", "", "")),
        ["ok", 0, 1, 0],
        {"schedules": TWO},
        {"schedules": TWO | {"b": "{9}", "b/declared": "{x}"}},
        ("schedules/b",),
    ),
    "there is one already": Case(changing(("a", "", "{9}", "{x}")), ["ok", 0], {"schedules": TWO}, {}),
    "there is none": Case(changing(("c", "{1}", "{9}", "{x}")), ["ok", 0], {"schedules": TWO}, {}),
    "none": Case(changing(), ["ok"], {"schedules": TWO}, {}),
}

READ = {
    "all that there are": Case(
        lambda keys: schedules.schedules(keys, 0, ["b", "none", "a"]).at(NOW),
        ["ok", NOW, 3, ["b", "{2}", "{at}", "a", "{1}", "{cron}"]],
        {"schedules": TWO},
        {},
    ),
    "one of the two fields is missing": Case(
        lambda keys: schedules.schedules(keys, 0, ["a", "b"]).at(NOW),
        ["ok", NOW, 2, ["a", "", "{cron}", "b", "{2}", ""]],
        {"schedules": {"a/declared": "{cron}", "b": "{2}"}},
        {},
    ),
    "up to 1 MiB": Case(
        lambda keys: schedules.schedules(keys, 0, ["a", "b", "c"]).at(NOW),
        ["ok", NOW, 2, ["a", "x" * 700_000, "", "b", "", "y" * 348_576]],
        {"schedules": {"a": "x" * 700_000, "b/declared": "y" * 348_576, "c": "z"}},
        {},
    ),
    "one byte less than 1 MiB": Case(
        lambda keys: schedules.schedules(keys, 0, ["a", "b", "c"]).at(NOW),
        ["ok", NOW, 3, ["a", "x" * 700_000, "", "b", "", "y" * 348_575, "c", "z", ""]],
        {"schedules": {"a": "x" * 700_000, "b/declared": "y" * 348_575, "c": "z"}},
        {},
    ),
    "none": Case(lambda keys: schedules.schedules(keys, 0, []).at(NOW), ["ok", NOW, 0, []], {"schedules": TWO}, {}),
}

CASES = {f"set: {name}": case for name, case in SET.items()} | {f"read: {name}": case for name, case in READ.items()}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_call(centre: Shard, control: ControlKeys, case: Case) -> None:
    centre.seed(case.before)
    with centre.listener(control.news) as ear:
        assert centre.ask(case.call(control)) == case.answer
        assert ear.heard() == [(control.news, message) for message in case.news]
    assert centre.state() == case.before | case.after


def history(
    centre: Shard, control: ControlKeys, seen: bytes, *parts: tuple[int, bytes], length: int = 20
) -> bytes | None:
    """Writes parts. Returns the whole, or None if it was refused."""
    written = centre.run(stored.write(control, 0, seen, parts, length=length))
    return centre.run(stored.read(control, 0, 100)) if written else None


def test_parts_of_the_history_are_written_by_who_read_it_last(centre: Shard, control: ControlKeys) -> None:
    # the first one makes all of it
    assert history(centre, control, b"", (0, b"head"), (8, b"row")) == b"head\0\0\0\0row" + b"\0" * 9
    # another one begins, too late
    assert history(centre, control, b"", (0, b"HEAD"), length=30) is None
    # the next
    assert history(centre, control, b"head", (0, b"more"), (12, b"row2"), (18, b"xy")) == b"more\0\0\0\0row\0row2\0\0xy"
    assert history(centre, control, b"head", (0, b"late")) is None
    assert centre.ask(stored.write(control, 0, b"head", [], length=20)) == ["ok", 0]
    assert centre.ask(stored.write(control, 0, b"more", [], length=20)) == ["ok", 1]
    assert history(centre, control, b"mor", (0, b"late")) is None
    assert centre.run(stored.read(control, 0, 100)) == b"more\0\0\0\0row\0row2\0\0xy"
    # no part
    for length in (5, 20):
        assert history(centre, control, b"more", length=length) == b"more\0\0\0\0row\0row2\0\0xy"
