"""The bucket table: which shard each of the 16384 buckets belongs to, a pure function of the shard count.

Called by ``topology``, which hashes an id into a bucket. The table for one shard gives it everything; the
table for n shards is the one for n - 1 after shard n - 1 (numbers count from 0) has taken ⌊16384/n⌋ buckets,
one at a time, **always from the fullest shard, the lowest-numbered among equals, and of that shard its
highest-numbered bucket**. Therefore:

- every shard holds the mean, rounded down or up;
- growing from n to m moves exactly what the new shards end with, and only to them; shrinking is the reverse;
- the table depends on no hash and no library: another client needs this paragraph only.

The tests pin digests of the tables. Changing one strands all stored tasks.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

BUCKETS = 16384
"""16 for each shard when there are most: then too no shard has more than a sixteenth above the mean."""


@functools.lru_cache(maxsize=64)  # of some 130 KB each; an engine uses its present count and its priors
def table(count: int) -> Sequence[int]:
    """The shard of each bucket when there are ``count`` shards. Shared: not to be written to."""
    held = next(itertools.islice(growth(), count - 1, None))
    owners = [0] * BUCKETS
    for shard, buckets in enumerate(held):
        for bucket in buckets:
            owners[bucket] = shard
    return owners


@functools.lru_cache(maxsize=4)
def leaving(count: int, priors: tuple[int, ...]) -> Sequence[float]:
    """The share, for each shard, of the tasks that it may have by these numbers of shards, that belongs elsewhere now.

    >>> leaving(2, (1,))
    [0.5, 0.0]
    """
    tables = [table(each) for each in (count, *priors)]
    shards = max((count, *priors))
    held, own = [0] * shards, [0] * shards
    for owners in zip(*tables, strict=True):
        own[owners[0]] += 1
        for shard in set(owners):
            held[shard] += 1
    return [1 - own[shard] / held[shard] if held[shard] else 0.0 for shard in range(shards)]


def growth() -> Iterator[list[list[int]]]:
    """Yields the buckets of each shard, ascending, when there is one shard, two, and so on.

    The next step changes what was yielded.
    """
    held = [list(range(BUCKETS))]
    for shards in range(2, BUCKETS + 2):
        yield held
        held.append(_collect(held, BUCKETS // shards))


def _collect(held: list[list[int]], share: int) -> list[int]:
    """Take ``share`` buckets one at a time from the fullest, all at once.

    Taking from the fullest levels them: all end at ``level``, but for ``extra`` of them that stay one above
    it. As the lowest-numbered give first, those are the highest-numbered of the ones that were above it.
    """
    level, extra = divmod(BUCKETS - share, len(held))
    taken: list[int] = []
    for buckets in reversed(held):
        if len(buckets) <= level:
            continue
        keep = level
        if extra:
            keep += 1
            extra -= 1
        taken += buckets[keep:]
        del buckets[keep:]
    taken.sort()
    return taken
