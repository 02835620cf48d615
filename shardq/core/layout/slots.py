"""Hash slots: which of the 16384 slots of a Redis Cluster a key is in, and tags that lie where we want.

Called by ``keys``, which turns tags into key names. All of it is pure: the tag of a shard depends on nothing
but the engine's name and the shard's number, so every process of any version and language finds the keys.

**Where shards go.** A cluster gives its masters equal runs of neighbouring slots. Shard K is put at the K-th
point of the van der Corput sequence (0, 1/2, 1/4, 3/4, 1/8, …) stretched over the slots, because every
prefix of that sequence is spread evenly: whatever the number of shards, and whatever it grows to, no master
has more than three shards above the mean (any count to 256 on any 1 to 32 masters).

**How a tag gets there.** The tag is ``NAME:K.SALT``; SALT is *the smallest of the four-digit base-36 strings
that puts the tag exactly on its slot*. It need not be searched for, because CRC16 is linear over XOR:
``crc(head + salt) = crc(head + zeros) ^ crc(salt)``, and likewise for the two halves of the salt. So the
wanted slot and a first half give the second half by one look-up; ten first halves are tried on average, 57
at most.
"""

from __future__ import annotations

import binascii
import functools
import itertools

SLOTS = 16384
"""The number of slots of a Redis Cluster, by its protocol."""

MAX_SHARDS = 1024
"""More would mean fewer than 16 buckets and 16 slots for each."""

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
