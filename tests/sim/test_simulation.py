"""Simulated runs: no violation, the same story for the same seed, and planted faults are found."""

from __future__ import annotations

import pytest

from shardq.core.scripts import Script, script
from tests.sim.simulation.runs import run

RUNS = 12

PLANTED = {
    "tasks are dispatched early": (
        "dispatch",
        "string.format('%.0f', now_ms), 'LIMIT'",
        "string.format('%.0f', now_ms + 300), 'LIMIT'",
    ),
    "a lease that ran out stays in leased": (
        "dispatch",
        "        redis.call('ZREM', KEYS[4], id)\n        -- on",
        "        -- on",
    ),
    "a claim leaves ids in the ready list": ("claim", "if taken_of[list] > 0 then", "if taken_of[list] > 1 then"),
    "any token settles": ("settle", "present == token then return true", "present ~= '' then return true"),
    "an ack keeps its record": ("settle", "redis.call('HDEL', KEYS[2], unpack(ids, 1, good))", ""),
    "a push of a ready id counts no ghost": ("push_unique", "if state == 'ready' then", "if false then"),
    "a task is taken and stays": ("take", "redis.call('HDEL', KEYS[2], unpack(taken))", ""),
    "a put needs no mark": ("put", "if open[n] and redis.call('HEXISTS', KEYS[2], id) == 0 then", "do"),
    "an old topology is as good as any": ("push_unique", "return {'stale', meta[1]}", ""),
    "an earlier due time rings no bell": ("push", "rouse(first)", ""),
}
"""What is wrong → the script, a text in it, and the text in its place."""


def test_nothing_is_violated() -> None:
    for seed in range(RUNS):
        told = run(seed)
        assert not told.violation, str(told)


def test_the_same_seed_is_the_same_story() -> None:
    one, other = run(3), run(3)
    assert one.story == other.story
    assert len(one.story) > 100
    assert run(4).story != one.story


@pytest.mark.parametrize(("name", "ours", "theirs"), PLANTED.values(), ids=PLANTED)
def test_a_planted_fault_is_found(name: str, ours: str, theirs: str) -> None:
    text = script(name).text
    assert ours in text
    planted = {name: Script.of(name, text.replace(ours, theirs))}
    assert any(run(seed, planted).violation for seed in range(40))
