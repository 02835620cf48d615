"""adopt: what is said to one shard about tasks as they were in another engine."""

from __future__ import annotations

from collections.abc import Sequence

from shardq.core.calls.by_id import Answer, Earlier, answers
from shardq.core.calls.request import NOW, Call, Epoch, Word
from shardq.core.layout.keys import ShardKeys

ADOPTED = 6
"""The words of a task: id, due word, record, ``due``, ``first``, ``retry`` or ``dead``, lease entry, reason."""


def adopt(
    keys: ShardKeys, epoch: Epoch, tasks: Sequence[Word], *, once: str, earlier: Earlier = "0"
) -> Call[list[Answer]]:
    """Stores tasks given by their words, one after the other, each once. Returns one answer for each: adopted, known,
    kept:STATE, seen, moving or elsewhere.

    ``once``: NONCE-MS, the nonce of an import, and for how long after the last send its resends know what was done.
    ``earlier``: as of ``push_unique``. The same again is right after a lost answer.
    """
    return Call.of("adopt", keys, [epoch, NOW, keys.bell, once, earlier, *tasks], answers)


def id_in(words: Sequence[Word]) -> str:
    """The id in the words of a task."""
    id = words[0]
    assert isinstance(id, str), "an id is a str"
    return id
