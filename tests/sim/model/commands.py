"""The commands that shardq's scripts and plain requests use, each as a function of a keyspace and its words.

They check in the order in which servers do: words first, then the key's type, then what is stored. What they answer is
what Lua gets of it: False for nil, True for nothing but "done".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from tests.sim.model import numbers
from tests.sim.model.keyspace import Keyspace, ModelError, Refused
from tests.sim.model.values import Hash, List, Number, SortedSet, Stream, Text

T = TypeVar("T")

Reply = bytes | int | bool | tuple[Any, ...]

Shape = Literal["one", "list", "page", "status"]

SYNTAX = b"ERR syntax error"
NOT_AN_INTEGER = b"ERR value is not an integer or out of range"
NOT_A_FLOAT = b"ERR value is not a valid float"

_LONGEST_TEXT = 512 << 20


@dataclass(frozen=True)
class Command:
    run: Callable[..., Reply]
    shape: Shape
    arity: int
    """As servers count: with the name; negated where more may follow."""
    writes: bool
    grows: bool
    """True if a server without memory refuses it."""
    keys: Literal["none", "first", "all"]


COMMANDS: dict[bytes, Command] = {}


def _command(
    arity: int,
    shape: Shape = "one",
    *,
    writes: bool = False,
    grows: bool = False,
    keys: Literal["none", "first", "all"] = "first",
) -> Callable[[Callable[..., Reply]], Callable[..., Reply]]:
    def add(run: Callable[..., Reply]) -> Callable[..., Reply]:
        COMMANDS[run.__name__.upper().rstrip("_").encode()] = Command(run, shape, arity, writes or grows, grows, keys)
        return run

    return add


def _integer(word: bytes) -> int:
    number = numbers.integer(word)
    if number is None:
        raise Refused(NOT_AN_INTEGER)
    return number


def _slice(start: int, stop: int, length: int) -> tuple[int, int]:
    """A range of places, counted from the end where negative, as one of Python."""
    if start < 0:
        start = max(0, start + length)
    if stop < 0:
        stop += length
    return (start, min(stop, length - 1) + 1) if start <= stop and start < length else (0, 0)


# ---- any key


@_command(-2, keys="all")
def exists(space: Keyspace, *keys: bytes) -> int:
    return sum(key in space.keys for key in keys)


@_command(-2, writes=True, keys="all")
def unlink(space: Keyspace, *keys: bytes) -> int:
    return sum(space.keys.pop(key, None) is not None for key in keys)


@_command(-3, writes=True)
def pexpire(space: Keyspace, key: bytes, ms: bytes) -> int:
    """Says that it will: no key of ours depends on being gone, and no story is long enough."""
    return int(_integer(ms) > 0 and key in space.keys)


COMMANDS[b"DEL"] = COMMANDS[b"UNLINK"]


@_command(1, "list", keys="none")
def time(space: Keyspace) -> Reply:
    seconds, us = divmod(space.now_us(), 1_000_000)
    return b"%d" % seconds, b"%d" % us


@_command(-1, keys="none")
def info(space: Keyspace, *sections: bytes) -> bytes:
    return b"# Server\r\nrun_id:%s\r\n" % space.run_id


@_command(3, keys="none")
def spublish(space: Keyspace, channel: bytes, message: bytes) -> int:
    space.messages.append((channel, message))
    return space.heard(channel)


# ---- strings


@_command(3, "status", grows=True)
def set_(space: Keyspace, key: bytes, data: bytes) -> bool:
    space.keys.pop(key, None)
    space.made(key, Text).data = data
    return True


@_command(4)
def getrange(space: Keyspace, key: bytes, start: bytes, stop: bytes) -> bytes:
    first, last = _integer(start), _integer(stop)
    text = space.read(key, Text)
    if text is None:
        return b""
    begin, end = _slice(first, last, len(text))
    return text.data[begin:end]


@_command(4, grows=True)
def setrange(space: Keyspace, key: bytes, offset: bytes, part: bytes) -> int:
    at = _integer(offset)
    if at < 0:
        raise Refused(b"ERR offset is out of range")
    text = space.changing(key, Text)
    if not part:
        return len(text) if text is not None else 0
    if at + len(part) > _LONGEST_TEXT:
        raise Refused(b"ERR string exceeds maximum allowed size (proto-max-bulk-len)")
    text = space.made(key, Text)
    data = text.data.ljust(at, b"\0")
    text.data = data[:at] + part + data[at + len(part) :]
    return len(text)


# ---- hashes


def _fields(space: Keyspace, key: bytes) -> dict[bytes, bytes]:
    return space.read(key, Hash) or {}


@_command(3)
def hget(space: Keyspace, key: bytes, field: bytes) -> Reply:
    fields = space.read(key, Hash)
    return False if fields is None else fields.get(field, False)


@_command(-3, "list")
def hmget(space: Keyspace, key: bytes, *wanted: bytes) -> Reply:
    fields = space.read(key, Hash)
    if fields is None:
        return (False,) * len(wanted)
    get = fields.get
    return tuple([get(field, False) for field in wanted])


@_command(2, "list")
def hgetall(space: Keyspace, key: bytes) -> Reply:
    fields = _fields(space, key)
    return tuple([word for field in space.ordered(fields) for word in (field, fields[field])])


@_command(2, "list")
def hkeys(space: Keyspace, key: bytes) -> Reply:
    return tuple(space.ordered(_fields(space, key)))


@_command(2)
def hlen(space: Keyspace, key: bytes) -> int:
    return len(_fields(space, key))


@_command(3)
def hexists(space: Keyspace, key: bytes, field: bytes) -> int:
    return int(field in (_fields(space, key)))


@_command(3)
def hstrlen(space: Keyspace, key: bytes, field: bytes) -> int:
    return len(_fields(space, key).get(field, b""))


@_command(-4, grows=True)
def hset(space: Keyspace, key: bytes, *words: bytes) -> int:
    if len(words) % 2:
        raise Refused(b"ERR wrong number of arguments for 'hset' command")
    fields = space.made(key, Hash)
    before = len(fields)
    fields.update(zip(words[::2], words[1::2], strict=True))
    return len(fields) - before


@_command(4, grows=True)
def hsetnx(space: Keyspace, key: bytes, field: bytes, value: bytes) -> int:
    present = space.read(key, Hash)
    if present is not None and field in present:
        return 0
    space.made(key, Hash)[field] = value
    return 1


@_command(-3, writes=True)
def hdel(space: Keyspace, key: bytes, *going: bytes) -> int:
    present = space.read(key, Hash)
    # most removals of scripts remove nothing
    if present is None or present.keys().isdisjoint(going):
        return 0
    fields = space.changing(key, Hash)
    assert fields is not None
    removed = sum(fields.pop(field, None) is not None for field in going)
    space.drop_if_empty(key)
    return removed


@_command(4, grows=True)
def hincrby(space: Keyspace, key: bytes, field: bytes, increment: bytes) -> int:
    by = _integer(increment)
    present = _fields(space, key).get(field, b"0")
    number = numbers.integer(present)
    if number is None:
        raise Refused(b"ERR hash value is not an integer")
    if not -(1 << 63) <= number + by < 1 << 63:
        raise Refused(b"ERR increment or decrement would overflow")
    space.made(key, Hash)[field] = b"%d" % (number + by)
    return number + by


@_command(4, grows=True)
def hincrbyfloat(space: Keyspace, key: bytes, field: bytes, increment: bytes) -> bytes:
    if numbers.added(b"0", increment) is None:
        raise Refused(NOT_A_FLOAT)
    present = _fields(space, key).get(field, b"0")
    if numbers.added(present, b"0") is None:
        raise Refused(b"ERR hash value is not a float")
    total = numbers.added(present, increment)
    assert total is not None
    space.made(key, Hash)[field] = total
    return total


@_command(-3, "page")
def hscan(space: Keyspace, key: bytes, cursor: bytes, *options: bytes) -> Reply:
    at = _cursor(cursor)
    fields = _fields(space, key)
    if not fields:
        return (b"0",)
    count, prefix, bare = _scan_options(space, options)
    following, page = space.page([field for field in fields if field.startswith(prefix)], at, count)
    if bare:
        return b"%d" % following, *page
    return b"%d" % following, *[word for field in page for word in (field, fields[field])]


def _cursor(word: bytes) -> int:
    if not word.isdigit():
        raise Refused(b"ERR invalid cursor")
    return int(word)


def _scan_options(space: Keyspace, options: tuple[bytes, ...]) -> tuple[int, bytes, bool]:
    """How many to look at, how names begin, and if values are left out. Read only where there is something to scan."""
    count, prefix, bare = 10, b"", False
    words = iter(options)
    for option in words:
        if option == b"COUNT":
            count = _integer(next(words, b""))
            if count < 1:
                raise Refused(SYNTAX)
        elif option == b"MATCH":
            pattern = next(words, b"")
            prefix = pattern.removesuffix(b"*")
            if prefix == pattern or any(letter in prefix for letter in b"*?[\\"):
                raise ModelError(f"a pattern that the model does not know: {pattern!r}")
        elif option == b"NOVALUES" and space.hscan_without_values:
            bare = True
        else:
            raise Refused(SYNTAX)
    return count, prefix, bare


@_command(3, "list")
def hrandfield(space: Keyspace, key: bytes, count: bytes) -> Reply:
    return tuple(_drawn(space, list(_fields(space, key)), _integer(count)))


def _drawn(space: Keyspace, members: list[T], count: int) -> list[T]:
    if count < 0:
        raise ModelError("drawing with repetitions is not in the model")
    return members if count >= len(members) else space.random.sample(members, count)


# ---- lists


@_command(-3, grows=True)
def rpush(space: Keyspace, key: bytes, *items: bytes) -> int:
    present = space.made(key, List)
    present.extend(items)
    return len(present)


@_command(-3, grows=True)
def lpush(space: Keyspace, key: bytes, *items: bytes) -> int:
    present = space.made(key, List)
    present[:0] = reversed(items)
    return len(present)


@_command(2)
def llen(space: Keyspace, key: bytes) -> int:
    return len(space.read(key, List) or ())


@_command(4, "list")
def lrange(space: Keyspace, key: bytes, start: bytes, stop: bytes) -> Reply:
    first, last = _integer(start), _integer(stop)
    items = space.read(key, List)
    if items is None:
        return ()
    begin, end = _slice(first, last, len(items))
    return tuple(items[begin:end])


@_command(4, "status", writes=True)
def ltrim(space: Keyspace, key: bytes, start: bytes, stop: bytes) -> bool:
    first, last = _integer(start), _integer(stop)
    items = space.changing(key, List)
    if items is not None:
        begin, end = _slice(first, last, len(items))
        del items[end:]
        del items[:begin]
        space.drop_if_empty(key)
    return True


@_command(-3, "list")
def lpos(space: Keyspace, key: bytes, item: bytes, *options: bytes) -> Reply:
    if len(options) != 2 or options[0] != b"COUNT":
        raise ModelError("LPOS is in the model with a COUNT only")
    count = _integer(options[1])
    if count < 0:
        raise Refused(b"ERR COUNT can't be negative")
    places = [at for at, each in enumerate(space.read(key, List) or ()) if each == item]
    return tuple(places[: count or None])


# ---- sorted sets


@_command(-4, grows=True)
def zadd(space: Keyspace, key: bytes, *words: bytes) -> int:
    flags, at = set(), 0
    while words[at : at + 1] and words[at].upper() in (b"NX", b"XX", b"GT", b"LT"):
        flags.add(words[at].upper())
        at += 1
    members = words[at + 1 :: 2]
    if not members or (len(words) - at) % 2:
        raise Refused(SYNTAX)
    if len(flags) > 1:
        raise ModelError(f"ZADD is not in the model with {flags}")
    scores = []
    for word in words[at::2]:
        score = numbers.score(word)
        if score is None:
            raise Refused(NOT_A_FLOAT)
        scores.append(score)
    if b"XX" in flags and space.read(key, SortedSet) is None:
        return 0
    present = space.made(key, SortedSet)
    before = len(present)
    known, put = present.scores, present.put
    for member, score in zip(members, scores, strict=True):
        if flags and _kept(flags, known.get(member), score):
            continue
        put(member, score)
    return len(present) - before


def _kept(flags: set[bytes], present: float | None, score: float) -> bool:
    """True if ZADD leaves a member as it is."""
    if present is None:
        return b"XX" in flags
    return b"NX" in flags or (b"GT" in flags and score <= present) or (b"LT" in flags and score >= present)


@_command(-3, writes=True)
def zrem(space: Keyspace, key: bytes, *members: bytes) -> int:
    present = space.read(key, SortedSet)
    if present is None or present.scores.keys().isdisjoint(members):
        return 0
    going = space.changing(key, SortedSet)
    assert going is not None
    removed = sum(map(going.remove, members))
    space.drop_if_empty(key)
    return removed


@_command(2)
def zcard(space: Keyspace, key: bytes) -> int:
    return len(space.read(key, SortedSet) or ())


@_command(3)
def zscore(space: Keyspace, key: bytes, member: bytes) -> Reply:
    present = space.read(key, SortedSet)
    score = None if present is None else present.scores.get(member)
    return False if score is None else space.printed(score)


@_command(3)
def zrank(space: Keyspace, key: bytes, member: bytes) -> Reply:
    present = space.read(key, SortedSet)
    if present is None or member not in present.scores:
        return False
    return bisect_left(present.order, (present.scores[member], member))


@_command(-3, "list")
def zmscore(space: Keyspace, key: bytes, *members: bytes) -> Reply:
    present = space.read(key, SortedSet)
    scores = {} if present is None else present.scores
    return tuple([space.printed(scores[member]) if member in scores else False for member in members])


@_command(-4, "list")
def zrange(space: Keyspace, key: bytes, start: bytes, stop: bytes, *options: bytes) -> Reply:
    if set(options) - {b"REV", b"WITHSCORES"}:
        raise ModelError(f"ZRANGE is not in the model with {options}")
    first, last = _integer(start), _integer(stop)
    present = space.read(key, SortedSet)
    if present is None:
        return ()
    begin, end = _slice(first, last, len(present))
    if b"REV" in options:
        found = present.order[len(present) - end : len(present) - begin][::-1] if end else []
    else:
        found = present.order[begin:end]
    return _told(space, found, b"WITHSCORES" in options)


def _told(space: Keyspace, found: list[tuple[float, bytes]], scores: bool) -> Reply:
    if not scores:
        return tuple([member for _, member in found])
    return tuple([word for score, member in found for word in (member, space.printed(score))])


def _bound(word: bytes) -> tuple[float, bool]:
    """The end of a range by score, and if it is not in it itself."""
    outside = word[:1] == b"("
    bare = word[1:] if outside else word
    number = float(bare) if numbers.FLOAT.fullmatch(bare) else None if bare else 0.0
    if number is None:
        raise Refused(b"ERR min or max is not a float")
    return number, outside


def _between(present: SortedSet | None, least: bytes, most: bytes) -> tuple[int, int]:
    """The ranks of the members with scores from one bound to the other."""
    (low, after), (high, before) = _bound(least), _bound(most)
    if present is None:
        return 0, 0
    start, stop = _rank(present, low, after), _rank(present, high, not before)
    return start, max(start, stop)


def _rank(present: SortedSet, score: float, past: bool) -> int:
    """The number of members with a lower score; with ``past`` also those with this one."""
    if past:
        return bisect_left(present.order, (score, _AFTER_ALL))
    return bisect_left(present.order, (score, b""))


class _AfterAll:
    """More than any member."""

    def __lt__(self, other: object) -> bool:
        return False

    def __gt__(self, other: object) -> bool:
        return True


_AFTER_ALL = _AfterAll()


@_command(4)
def zcount(space: Keyspace, key: bytes, least: bytes, most: bytes) -> int:
    _between(None, least, most)
    start, stop = _between(space.read(key, SortedSet), least, most)
    return stop - start


@_command(-4, "list")
def zrangebyscore(space: Keyspace, key: bytes, least: bytes, most: bytes, *options: bytes) -> Reply:
    offset, count = 0, -1
    if options:
        if len(options) != 3 or options[0] != b"LIMIT":
            raise ModelError(f"ZRANGEBYSCORE is not in the model with {options}")
        offset, count = _integer(options[1]), _integer(options[2])
    _between(None, least, most)
    present = space.read(key, SortedSet)
    start, stop = _between(present, least, most)
    if present is None or offset < 0:
        return ()
    found = present.order[start:stop][offset:]
    return _told(space, found if count < 0 else found[:count], scores=False)


def _lexical(word: bytes) -> tuple[bytes, bool]:
    """The end of a range by bytes, and if it is in it itself."""
    if word in (b"-", b"+"):
        return (b"" if word == b"-" else b"\xff" * 600), True
    if word[:1] not in (b"[", b"("):
        raise ModelError(f"a lexical range is not in the model with {word!r}")
    return word[1:], word[:1] == b"["


def _lexical_slice(present: SortedSet | None, least: bytes, most: bytes) -> tuple[int, int]:
    """The ranks of the members from one bound to the other: all have the score 0."""
    (low, at_low), (high, at_high) = _lexical(least), _lexical(most)
    if present is None:
        return 0, 0
    start = bisect_left(present.order, (0.0, low if at_low else low + b"\0"))
    stop = bisect_left(present.order, (0.0, high + b"\0" if at_high else high))
    return start, max(start, stop)


@_command(4)
def zlexcount(space: Keyspace, key: bytes, least: bytes, most: bytes) -> int:
    start, stop = _lexical_slice(space.read(key, SortedSet), least, most)
    return stop - start


@_command(-4, "list")
def zrangebylex(space: Keyspace, key: bytes, least: bytes, most: bytes, *options: bytes) -> Reply:
    if len(options) != 3 or options[0] != b"LIMIT" or _integer(options[1]) < 0:
        raise ModelError(f"ZRANGEBYLEX is not in the model with {options}")
    present = space.read(key, SortedSet)
    start, stop = _lexical_slice(present, least, most)
    found = present.order[start:stop] if present is not None else []
    skipped = _integer(options[1])
    return _told(space, found[skipped : skipped + _integer(options[2])], scores=False)


@_command(4, writes=True)
def zremrangebyscore(space: Keyspace, key: bytes, least: bytes, most: bytes) -> int:
    _between(None, least, most)
    start, stop = _between(space.read(key, SortedSet), least, most)
    return _ranks_removed(space, key, start, stop)


@_command(4, writes=True)
def zremrangebyrank(space: Keyspace, key: bytes, start: bytes, stop: bytes) -> int:
    first, last = _integer(start), _integer(stop)
    present = space.read(key, SortedSet)
    return _ranks_removed(space, key, *_slice(first, last, len(present or ())))


def _ranks_removed(space: Keyspace, key: bytes, start: int, stop: int) -> int:
    if start == stop:
        return 0
    present = space.changing(key, SortedSet)
    assert present is not None
    removed = present.remove_ranks(start, stop)
    space.drop_if_empty(key)
    return removed


@_command(-2, "list", writes=True)
def zpopmin(space: Keyspace, key: bytes) -> Reply:
    present = space.changing(key, SortedSet)
    if present is None:
        return ()
    score, member = present.order[0]
    present.remove_ranks(0, 1)
    space.drop_if_empty(key)
    return member, space.printed(score)


@_command(-3, "list")
def zrandmember(space: Keyspace, key: bytes, count: bytes, *options: bytes) -> Reply:
    if set(options) - {b"WITHSCORES"}:
        raise ModelError(f"ZRANDMEMBER is not in the model with {options}")
    most = _integer(count)
    present = space.read(key, SortedSet)
    return () if present is None else _told(space, _drawn(space, [*present.order], most), b"WITHSCORES" in options)


@_command(-3, "page")
def zscan(space: Keyspace, key: bytes, cursor: bytes, *options: bytes) -> Reply:
    at = _cursor(cursor)
    present = space.read(key, SortedSet)
    if present is None:
        return (b"0",)
    count, prefix, _ = _scan_options(space, options)
    members = [member for _, member in present.order if member.startswith(prefix)]
    following, page = space.page(members, at, count)
    return b"%d" % following, *[word for member in page for word in (member, space.printed(present.scores[member]))]


# ---- streams


@_command(-5, grows=True)
def xadd(space: Keyspace, key: bytes, *words: bytes) -> bytes:
    most = None
    if words[0] == b"MAXLEN":
        most = _integer(words[2])
        if words[1] != b"~":
            raise ModelError("XADD is in the model with about a length only")
        if most < 0:
            raise Refused(b"ERR The MAXLEN argument must be >= 0.")
        words = words[3:]
    if len(words) < 3 or len(words) % 2 == 0:
        raise Refused(b"ERR wrong number of arguments for 'xadd' command")
    stream = space.made(key, Stream)
    last_ms, last = stream.last
    if stream.last == Stream.LAST:
        raise Refused(b"ERR The stream has exhausted the last possible ID, unable to add more items")
    now_ms = space.now_us() // 1000
    number = (now_ms, 0) if now_ms > last_ms else (last_ms, last + 1) if last < Stream.LAST[1] else (last_ms + 1, 0)
    if words[0] != b"*":
        number = _number(words[0])
        if number <= stream.last:
            raise Refused(b"ERR The ID specified in XADD is equal or smaller than the target stream top item")
    stream.add(number, words[1:])
    if most is not None:
        stream.trim(most)
    return b"%d-%d" % number


@_command(2)
def xlen(space: Keyspace, key: bytes) -> int:
    stream = space.read(key, Stream)
    return 0 if stream is None else len(stream)


@_command(-3, writes=True)
def xdel(space: Keyspace, key: bytes, *ids: bytes) -> int:
    stream = space.changing(key, Stream)
    if stream is None:
        return 0
    return sum(stream.remove(_number(id)) for id in ids)


def _number(id: bytes) -> Number:
    ms, _, sequence = id.partition(b"-")
    return int(ms), int(sequence)
