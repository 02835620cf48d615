"""push, and push_unique for idempotent pushes. Used by the producers only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from shardq.calls.answers import body
from shardq.calls.request import Call, Word
from shardq.layout.keys import ShardKeys
from shardq.model.ids import topics_of
from shardq.scripts import script

Answer = str
"""The outcome of one task: pushed, replaced, seen, refused:seen, kept:STATE, refused:STATE, moving or elsewhere."""

Resent = Literal["0", "1"]

Earlier = Literal["0", "1", "2"]
"""0: the shard where the id belongs. 1: a shard that may have the id from an earlier number of shards. 2: the same,
after what was moving out of it was put where it goes.
"""


def push(keys: ShardKeys, epoch: int, tasks: list[Word], *, now_us: str = "") -> Call[list[str]]:
    """Stores tasks given as id, due, record, id, due, record, … Returns the ids that were already taken."""
    topics = topics_of(tasks[::3])  # type: ignore[arg-type]  # the first word of each task is its id
    # By hand, as every push goes through here.
    chosen = script("push")
    return Call(
        keys.slot,
        [epoch, now_us, keys.bell, len(topics), *topics, *tasks],
        _collided,
        script=chosen,
        keys=chosen.named(keys),
        resend=lambda: _push_again(keys, epoch, tasks, now_us),
    )


def unique(tasks: Sequence[Word]) -> list[Word]:
    """Makes words of push_unique from words of push."""
    words: list[Word] = []
    for at in range(0, len(tasks), 3):
        words += (*tasks[at : at + 3], "keep", 0)
    return words


def push_unique(
    keys: ShardKeys,
    epoch: int,
    tasks: Sequence[Word],
    *,
    resent: Resent = "0",
    earlier: Earlier = "0",
    now_us: str = "",
) -> Call[list[Answer]]:
    """Stores tasks given as id, due, record, conflict rule, dedup window in ms, … Returns one answer for each.

    To a dedup window ``-MS`` may be added, as in ``0-600000``: for so long resends know of this push, and nobody else.
    ``elsewhere`` is the answer of a shard that may have the id from ``earlier`` and has not.
    """
    return Call.of(
        "push_unique",
        keys,
        [epoch, now_us, keys.bell, resent, earlier, *tasks],
        _answers,
        resend=lambda: push_unique(keys, epoch, tasks, resent="1", earlier=earlier, now_us=now_us),
    )


def _push_again(keys: ShardKeys, epoch: int, tasks: list[Word], now_us: str) -> Call[list[str]]:
    # After a lost answer the ids may be ours already: whatever is stored under them is what we sent.
    return Call.of(
        "push_unique",
        keys,
        [epoch, now_us, keys.bell, "1", "0", *unique(tasks)],
        lambda answer: _answers(answer) and [],
    )


def _collided(answer: list[Any]) -> list[str]:
    if answer[0] == b"collided":
        return [id.decode() for id in answer[1:]]
    body(answer)
    return []


def _answers(answer: list[Any]) -> list[Answer]:
    return [word.decode() for word in body(answer)]
