"""A throttle is a dedup window with the rule keep: of the pushes of one id, those that are taken are so far apart."""

from __future__ import annotations

import random

import pytest

from shardq import Outcome
from shardq.core.calls import by_id, consume, dispatch
from shardq.core.calls.consume import SettleAck
from shardq.core.calls.request import Word
from shardq.core.layout.keys import ShardKeys
from tests.lua.shard import EPOCH, Shard, at, raw, record

THROTTLE_MS = 50


@pytest.mark.parametrize("seed", range(10))
def test_accepted_pushes_are_so_far_apart(shard: Shard, keys: ShardKeys, seed: int) -> None:
    """By a clock of the test's own: pushes at any time, of tasks that stay for less than the throttle or longer, and
    are cancelled or done in between."""
    dice = random.Random(seed)
    now, accepted, stored = 0, list[int](), False
    answers = set[str]()
    for step in range(400):
        now += dice.randrange(20)
        match dice.randrange(4):
            case 0 | 1:
                delay_ms = dice.choice([0, 5, 3 * THROTTLE_MS])
                words: list[Word] = ["a", -delay_ms, raw(record("x", nonce=step)), "keep", THROTTLE_MS]
                [answer] = shard.run(by_id.push_unique(keys, EPOCH, words).at(at(now)))
                answers.add(answer)
                if answer == "pushed":
                    assert not stored
                    assert not accepted or now - accepted[-1] >= THROTTLE_MS
                    accepted.append(now)
                    stored = True
                elif answer == "seen":
                    assert not stored
                    assert now - accepted[-1] < THROTTLE_MS, "the window is over, and nothing is pending"
                else:
                    assert answer.startswith("kept:")
                    assert stored
            case 2 if stored:
                assert shard.run(by_id.cancel(keys, EPOCH, "a").at(at(now))) == Outcome.CANCELLED
                stored = False
            case 3:
                moved = dispatch.dispatch(keys, EPOCH, [""], limit=10, max_attempts=9, paused=()).at(at(now))
                shard.run(moved)
                given = consume.claim(keys, EPOCH, {"": 1}, max=1, lease_ms=9000, token=f"t{step}", waiter="").at(
                    at(now)
                )
                if shard.run(given).ids:
                    shard.run(consume.settle(keys, EPOCH, [SettleAck("a", f"t{step}")]).at(at(now)))
                    stored = False
    assert len(accepted) > 20
    assert answers >= {"pushed", "seen", "kept:scheduled"}
