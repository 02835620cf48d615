"""The share of an engine's ids on the fullest master of a cluster. Called by ``planning``, and by the benches."""

from __future__ import annotations

from collections import Counter

from shardq.core.layout.buckets import table
from shardq.core.layout.slots import SLOTS, target_slot


def imbalance(masters: int, shards: int) -> float:
    """Returns the ids of the fullest master ÷ the mean of all masters.

    >>> round(imbalance(3, 48), 2), round(imbalance(64, 48), 2)
    (1.0, 1.33)
    """
    ids: Counter[int] = Counter()
    for shard, buckets in Counter(table(shards)).items():
        ids[_owner(target_slot(shard), masters)] += buckets
    return max(ids.values()) * masters / ids.total()


def _owner(slot: int, masters: int) -> int:
    """Returns the owner in equal runs of slots, where run ``n`` begins at ⌊n × SLOTS ÷ masters⌋."""
    return ((slot + 1) * masters - 1) // SLOTS
