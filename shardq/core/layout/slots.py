"""Where shards and tasks are: hash slots and tags, and the bucket table. All of it is pure: every process, of any
version and language, finds the same.

**Where shards go.** A cluster gives its masters equal runs of neighbouring slots. Shard K is put at the K-th point of
the van der Corput sequence (0, 1/2, 1/4, 3/4, 1/8, …) stretched over the slots, because every prefix of that sequence
is spread evenly: whatever the number of shards, and whatever it grows to, no master has more than three shards above
the mean (any count to 256 on any 1 to 32 masters).

**How a tag gets there.** The tag is ``NAME:K.SALT``; SALT is *the smallest of the four-digit base-36 strings that puts
the tag exactly on its slot*. It need not be searched for, because CRC16 is linear over XOR: ``crc(head + salt) =
crc(head + zeros) ^ crc(salt)``, and likewise for the two halves of the salt. So the wanted slot and a first half give
the second half by one look-up; ten first halves are tried on average, 57 at most.

**Where tasks go.** An id is hashed into one of 16384 buckets (``topology``), and a table, a pure function of the number
of shards, gives the bucket's shard. The table for one shard gives it everything; the table for n shards is the one for
n - 1 after shard n - 1 (numbers count from 0) has taken ⌊16384/n⌋ buckets, one at a time, **always from the fullest
shard, the lowest-numbered among equals, and of that shard its highest-numbered bucket**. Therefore:

- every shard holds the mean, rounded down or up;
- growing from n to m moves exactly what the new shards end with, and only to them; shrinking is the reverse;
- the table depends on no hash and no library: another client needs this paragraph only.

The tests pin digests of the tables. Changing one strands all stored tasks.
"""

from __future__ import annotations

import binascii
import functools
import itertools
from collections.abc import Iterator, Sequence

SLOTS = 16384  # the number of slots of a Redis Cluster, by its protocol

MAX_SHARDS = 1024  # more would mean fewer than 16 buckets and 16 slots for each

_BITS = 14  # SLOTS == 1 << _BITS
_MASK = SLOTS - 1

# Half a cell, where a cell is what a shard has to itself when there are MAX_SHARDS: a tag lies in the middle
# of its cell, so masters whose runs of slots are a few slots longer or shorter than equal get the same
# shards.
_INTO_CELL = SLOTS // MAX_SHARDS // 2

_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"
_HALF = 2  # digits in each half of a salt


def slot_of(key: str) -> int:
    """The slot of a key. By the rule of Redis only what is between its first braces counts, if anything is."""
    raw = key.encode()
    start = raw.find(b"{")
    if start >= 0:
        end = raw.find(b"}", start + 1)
        if end > start + 1:
            raw = raw[start + 1 : end]
    return binascii.crc_hqx(raw, 0) & _MASK


def target_slot(shard: int) -> int:
    """The slot for shard K: just after the K-th point of the van der Corput sequence over the slots."""
    return int(f"{shard:0{_BITS}b}"[::-1], 2) + _INTO_CELL


@functools.lru_cache(maxsize=4 * MAX_SHARDS)
def tag(name: str, shard: int) -> str:
    """The text between the braces of every key of a shard: ``NAME:K.SALT``."""
    head = f"{name}:{shard}."
    starts, ends = _halves()
    without_salt = binascii.crc_hqx(bytes(2 * _HALF), binascii.crc_hqx(head.encode(), 0))
    wanted = (without_salt ^ target_slot(shard)) & _MASK
    for half, share in starts:
        if (other := ends.get(wanted ^ share)) is not None:
            return f"{head}{half}{other}"
    raise AssertionError("every slot can be reached: the tests go through them all")


@functools.cache
def _halves() -> tuple[list[tuple[str, int]], dict[int, str]]:
    """First halves of a salt with what each adds to the slot, and the smallest second half for what is left."""
    starts: list[tuple[str, int]] = []
    ends: dict[int, str] = {}
    for digits in itertools.product(_DIGITS, repeat=_HALF):
        half = bytes(digits)
        starts.append((half.decode(), binascii.crc_hqx(half + bytes(_HALF), 0) & _MASK))
        ends.setdefault(binascii.crc_hqx(half, 0) & _MASK, half.decode())
    return starts, ends


BUCKETS = 16384  # 16 for each shard when there are most: then too no shard has more than a sixteenth above the mean


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
