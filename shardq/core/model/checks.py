"""Every limit on arguments, in one place. Pure: nothing is written, nothing is asked of a server.

Each check raises its own error of ``errors``, whose message says what was wrong, what is allowed, and what to do.

**Due times** leave here as one integer, the *due word* that scripts take: zero or less is a delay in
milliseconds, negated, counted by the server from the moment it takes the task; above zero is an instant in
epoch milliseconds. Fractions of a millisecond are rounded up, so that a task is not early. But 2.3 s is not
exactly 2300 ms in binary: half a microsecond of grace is subtracted first, so that what was meant as a whole
number of ms stays one. Only an expiry that is counted from another moment than the due time is compared by this
machine's clock.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from math import ceil, floor, inf, isnan
from typing import Any, Literal, TypeGuard, get_args

import msgspec

from shardq.core.layout.lanes import key_of, unique_of
from shardq.core.layout.slots import MAX_SHARDS
from shardq.core.model.ids import topic_of
from shardq.core.model.printable import quoted
from shardq.errors import (
    BadInput,
    DedupWithoutId,
    DelayAndAt,
    InvalidDelay,
    InvalidId,
    InvalidKey,
    InvalidName,
    InvalidOption,
    InvalidShardCount,
    InvalidTopic,
    NaiveDatetime,
    PayloadTooLarge,
)

OnConflict = Literal["keep", "replace", "reject"]

MAX_PAYLOAD = 1 << 20  # the default limit of an encoded payload: a batch of scripts' arguments ends at 1 MiB too

MAX_HEADERS = 8 << 10
"""The bytes of encoded headers: they are read with every claim, and their length must fit the record's two bytes."""

OURS = "shardq-"
"""The beginning of the names of headers that are ours."""

MAX_ID = 200  # bytes of a caller-given id: it is stored up to three times for each task

MAX_TAGS = 16  # tags of a task. The head of a record has room for many times as many, beside all headers.

MAX_ATTEMPTS = 1_000_000

MAX_REASON = 2000  # characters of a reason: the end of a traceback, where the cause is

MAX_AT_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z, the last instant a datetime can show

MAX_DELAY_S = 7_900 * 365 * 86_400
"""7,900 years of 365 days. Delays are not compared with this machine's clock, which may be wrong: with this
bound none given before the year 2099 ends after the year 9999."""

MAX_WAIT_S = 1e9
"""Nothing in this process waits for longer than 31 years: the system's own waits take no larger numbers."""

MAX_WINDOW_S = 366 * 86_400  # a year

_GRACE_MS = 0.0005
_EPOCH_SECONDS = 1e9
_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)
_MS = dt.timedelta(milliseconds=1)
_FIRST_MS = -((_EPOCH - dt.datetime.min.replace(tzinfo=dt.UTC)) // _MS)
_NUMBERS = {float, int}
_NO_INSTANT = {None}
_CONFLICTS = get_args(OnConflict)

clocks: list[Callable[[], int]] = [lambda: int(time.time() * 1000)]
"""Clocks in ms of the epoch, of which the last counts: that of this process, unless a test moves time."""

_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# C0 and C1 controls, DEL, the line and paragraph separators, halves of surrogate pairs, and the slash.
_NOT_IN_ID = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff/]")


def due_spec(delay: float | dt.timedelta | None, at: float | dt.datetime | None) -> int:
    """The due word of a task. With neither it is due now: 0."""
    if at is not None:
        if delay is not None:
            raise DelayAndAt(
                f"both delay={quoted(delay)} and at={quoted(at)} were given; a task has one due time: "
                "give only one of them"
            )
        return instant_ms(at)
    if delay is None:
        return 0
    # The ordinary case, once for each task of a bulk push: one chained comparison, which NaN fails.
    if (type(delay) is float or type(delay) is int) and 0 <= delay <= MAX_DELAY_S:
        return -ceil(delay * 1000 - _GRACE_MS)
    return -_unusual_delay(delay)


def due_specs(delays: Sequence[Any], ats: Sequence[Any]) -> list[int]:
    """The due words of many tasks. An error says that one of them is wrong, not which."""
    if (
        set(map(type, delays)) <= _NUMBERS
        and set(ats) == _NO_INSTANT
        and min(delays) >= 0
        and max(delays) <= MAX_DELAY_S
        and not isnan(sum(delays))
    ):
        # the ordinary case, as below: -ceil(x) is floor(-x)
        return list(map(floor, [_GRACE_MS - delay * 1000 for delay in delays]))
    return list(map(due_spec, delays, ats))


def _unusual_delay(delay: object) -> int:
    if isinstance(delay, dt.timedelta):
        ms = -(delay // -_MS)
        if delay >= dt.timedelta(0) and ms <= MAX_DELAY_S * 1000:
            return ms
    elif _is_number(delay):
        if 0 <= delay <= MAX_DELAY_S:
            return ceil(delay * 1000 - _GRACE_MS)
    else:
        raise InvalidDelay(f"a delay can't be {quoted(delay)}; give seconds as a number, or a timedelta")
    raise InvalidDelay(
        f"a delay can't be {quoted(delay)}; it must be from 0 to {MAX_DELAY_S} seconds (7,900 years): "
        "use 0, or none, for a task that is due now"
    )


def instant_ms(at: object, what: str = "at") -> int:
    """Epoch ms of an instant; ``what`` names the option in the message."""
    if isinstance(at, dt.datetime):
        if at.utcoffset() is None:
            raise NaiveDatetime(
                f"{what}={quoted(at)} has no time zone, so it names no instant; give an aware datetime, "
                "such as datetime.now(UTC) + timedelta(hours=1), or epoch seconds"
            )
        ms = -((_EPOCH - at) // _MS)
        if ms <= MAX_AT_MS:
            return max(ms, 1)
    elif _is_number(at):
        if -inf < at <= MAX_AT_MS / 1000:
            return max(ceil(max(at, 0) * 1000 - _GRACE_MS), 1)
    else:
        raise InvalidDelay(f"{what} can't be {quoted(at)}; give an aware datetime, or epoch seconds as a number")
    raise InvalidDelay(
        f"{what} can't be {quoted(at)}; it must be an instant before the end of the year 9999: "
        "an aware datetime, or seconds (not milliseconds) since the epoch"
    )


def shown_instant(ms: int) -> dt.datetime:
    """The instant of so many epoch ms; one that no datetime can show as the first or the last that it can."""
    # No division: a float would miss the millisecond in years far away.
    return _EPOCH + max(_FIRST_MS, min(ms, MAX_AT_MS)) * _MS


def duration_ms(seconds: float | dt.timedelta, what: str) -> int:
    """A length of time above zero, in ms, rounded up; ``what`` names the option in the message."""
    ms = 0
    if isinstance(seconds, dt.timedelta):
        ms = -(seconds // -_MS)
    elif _is_number(seconds) and 0 < seconds <= MAX_DELAY_S:
        ms = max(ceil(seconds * 1000 - _GRACE_MS), 1)
    if 0 < ms <= MAX_DELAY_S * 1000:
        return ms
    raise InvalidOption(
        f"{what} can't be {quoted(seconds)}; give more than 0 and at most {MAX_DELAY_S} seconds, "
        "as a number or a timedelta"
    )


def window_ms(window: float | dt.timedelta | None) -> int:
    """The length of the window in which a task may become due, in ms; 0 without one."""
    if window is None:
        return 0
    ms = duration_ms(window, "window")
    if ms > MAX_WINDOW_S * 1000:
        raise InvalidOption(f"window can't be {quoted(window)}; give at most {MAX_WINDOW_S} seconds (366 days)")
    return ms


def later(due: int, ms: int) -> int:
    """The due word of an instant that is so many ms after that of another due word."""
    return min(due + ms, MAX_AT_MS) if due > 0 else due - ms


def now_ms() -> int:
    return clocks[-1]()


def is_seconds(value: object, *, most: float = MAX_WAIT_S) -> TypeGuard[float]:
    """True for a length of time, or none at all: a number of seconds that clocks can be counted on by."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most


def check_seconds(seconds: float, what: str, *, most: float = MAX_WAIT_S) -> None:
    """A length of time, or none at all; ``what`` names the option in the message."""
    if not is_seconds(seconds, most=most):
        raise InvalidOption(f"{what} can't be {quoted(seconds)}; give seconds as a number, from 0 to {most:g}")


def expiry_spec(expires: float | dt.timedelta | dt.datetime | None, due: int, *, window_ms: int = 0) -> int | None:
    """The expiry of a task, as the record's head has it: below 0 milliseconds from the push, else an instant.

    A number from 1e9 is epoch seconds: no task waits 31 years to expire. ``due`` is the due word. The task
    must be good in its whole window, wherever its id puts it there.
    """
    if expires is None:
        return None
    if isinstance(expires, dt.datetime) or (_is_number(expires) and expires >= _EPOCH_SECONDS):
        spec = instant_ms(expires, "expires")
    else:
        spec = -duration_ms(expires, "expires")
    latest = later(due, window_ms - 1) if window_ms else due
    when = "the end of the task's window" if window_ms else "the task's due time"
    if (spec > 0) != (latest > 0):
        # Counted from different moments: the one that is a length of time counts from now.
        when += " by the clock of this machine"
        passed = spec + latest <= now_ms() if spec > 0 else latest + spec >= now_ms()
    else:
        passed = spec <= latest if spec > 0 else spec >= latest < 0
    if passed:
        raise InvalidOption(f"expires={quoted(expires)} is not after {when}; it would never be handled")
    return spec


def check_dedup(dedup: float | dt.timedelta | None, id: str | None) -> int | None:
    """Returns the dedup window of an idempotent push in ms, or None without one."""
    if dedup is None:
        return None
    if id is None:
        raise DedupWithoutId(
            f"dedup={quoted(dedup)} was given without id=; the window is kept for an id of your own: "
            "give one, the same for every push of the same task"
        )
    return duration_ms(dedup, "dedup")


def check_throttle(
    throttle: float | dt.timedelta, id: str | None, dedup: float | dt.timedelta | None, on_conflict: str
) -> int:
    """Returns the dedup window in ms that a throttle is."""
    if id is None:
        raise InvalidOption(
            f"throttle={quoted(throttle)} was given without id=; it counts the pushes of one id: give one, the same "
            "for every push that is to be throttled"
        )
    if dedup is not None:
        raise InvalidOption(
            f"both throttle={quoted(throttle)} and dedup={quoted(dedup)} were given; a throttle is a dedup window, and "
            "a task has one: give only one of them"
        )
    if on_conflict != "keep":
        raise InvalidOption(
            f'throttle={quoted(throttle)} and on_conflict="{on_conflict}" exclude each other; a throttled push leaves '
            'the task that has the id as it is: leave on_conflict= out, or give on_conflict="replace" with delay= and '
            "no throttle= to debounce"
        )
    return duration_ms(throttle, "throttle")


def check_id(unique: str) -> None:
    """A caller-given id, the part after the topic."""
    if type(unique) is str and unique.isascii() and unique.isprintable() and 0 < len(unique) <= MAX_ID:
        if "/" not in unique:
            return
    elif not isinstance(unique, str):
        raise InvalidId(f"an id can't be {quoted(unique)}; give a str")
    if not unique:
        raise InvalidId("an id can't be empty; leave id= out for a new one")
    _check_characters(unique, "id", InvalidId, "replace them, and give the topic as topic=")


def check_key(key: str) -> None:
    """A key: one to 200 bytes, like an id."""
    if not isinstance(key, str):
        raise InvalidKey(f"a key can't be {quoted(key)}; give a str")
    if not key:
        raise InvalidKey("a key can't be empty; leave key= out for a task without one")
    _check_characters(key, "key", InvalidKey, "of a URL give the host, or a digest")


def check_whole_id(id: str) -> None:
    """An id as push returned it: TOPIC/UNIQUE or UNIQUE, with a key TOPIC/KEY/UNIQUE or /KEY/UNIQUE."""
    if not isinstance(id, str):
        raise InvalidId(f"an id can't be {type(id).__name__}; give the str that push returned")
    if (key := key_of(id)) is not None:
        check_topic(topic_of(id))
        check_key(key)
        check_id(unique_of(id))
        return
    topic, slash, unique = id.partition("/")
    if slash:
        check_topic(topic)
        if not topic:
            raise InvalidId(
                f"the id {quoted(id)} begins with '/'; an id is TOPIC/UNIQUE, or just UNIQUE in the default topic"
            )
        check_id(unique)
    else:
        check_id(id)


def _check_characters(text: str, what: str, error: type[BadInput], advice: str) -> None:
    if bad := _NOT_IN_ID.search(text):
        article = "an" if what == "id" else "a"
        raise error(
            f"the {what} {quoted(text)} has {bad.group()!r} at position {bad.start()}; {article} {what} has no control "
            f"characters, line separators or '/': {advice}"
        )
    if (size := len(text.encode())) > MAX_ID:
        raise error(f"the {what} {quoted(text)} has {size} bytes in UTF-8; {MAX_ID} are allowed: use a digest of it")


Topics = str | Iterable[str] | Mapping[str, int]  # one topic, several in their order of priority, or topic → its weight


def checked_topics(topics: Topics) -> tuple[tuple[str, ...], Mapping[str, int] | None]:
    """Returns the topics, in their order of priority, and their weights if they share by weight."""
    if not isinstance(topics, Iterable) or isinstance(topics, bytes | set | frozenset):
        raise InvalidOption(
            f"topics={quoted(topics)} is not possible; give a name, [name, …] in their order of priority, or "
            "{name: weight, …}"
        )
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names:
        raise InvalidOption('topics= names none; give one at least ("" is the default topic), or leave it out')
    for topic in names:
        check_topic(topic)
    if len(set(names)) < len(names):
        raise InvalidOption(f"topics={quoted(names)} name one twice; the order is the priority: name each once")
    if not isinstance(topics, Mapping):
        return names, None
    for topic, weight in topics.items():
        if not isinstance(weight, int) or isinstance(weight, bool) or not 1 <= weight <= 1000:
            raise InvalidOption(
                f"the weight {quoted(weight)} of {quoted(topic)} is not possible; give an int from 1 to 1000"
            )
    return names, dict(topics)


def check_tag(tag: str) -> None:
    """A tag: what may be an id may be a tag."""
    if not isinstance(tag, str):
        raise InvalidOption(f"a tag can't be {quoted(tag)}; give a str")
    if not tag:
        raise InvalidOption("a tag can't be empty; give at least one character")
    _check_characters(tag, "tag", InvalidOption, "replace them")


def checked_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Returns the tags of a task, each once."""
    # a str is a sequence of str as well
    if isinstance(tags, str | bytes) or not isinstance(tags, Sequence | Set):
        raise InvalidOption(f"tags can't be {quoted(tags)}; give a list of str, such as tags=['user-42']")
    for tag in tags:
        check_tag(tag)
    once = tuple(dict.fromkeys(tags))
    if len(once) > MAX_TAGS:
        raise InvalidOption(f"a task can't have {len(once)} tags; {MAX_TAGS} are allowed: put more into the payload")
    return once


def check_topic(topic: str) -> None:
    """A topic: empty for the default one."""
    if topic == "":
        return
    _check_word(topic, "a topic", InvalidTopic, "; leave it out, or give '', for the default topic")


def check_name(name: str, *, of: str = "engine") -> None:
    """The name of an engine, or of what else ``of`` says."""
    _check_word(name, f"the name of an {of}" if of[:1] in "aeiou" else f"the name of a {of}", InvalidName, "")


def _check_word(word: object, what: str, error: type[BadInput], advice: str) -> None:
    if not isinstance(word, str) or _WORD.fullmatch(word) is None:
        raise error(f"{what} can't be {quoted(word)}; use 1 to 64 of the characters A-Z a-z 0-9 _ . -{advice}")


def check_shards(count: int) -> None:
    """A number of shards."""
    if not _is_int(count) or not 1 <= count <= MAX_SHARDS:
        raise InvalidShardCount(
            f"there can't be {quoted(count)} shards; use 1 to {MAX_SHARDS}: two to four for each master are usual"
        )


def check_payload_size(encoded: bytes, limit: int) -> None:
    """The size of an encoded payload."""
    if len(encoded) > limit:
        raise PayloadTooLarge(
            f"the encoded payload has {len(encoded)} bytes; {limit} are allowed: keep large content "
            "elsewhere and push a reference to it, or raise the limit"
        )


def check_headers(headers: Mapping[str, str]) -> None:
    """Headers: text to text, and not much of it."""
    if not isinstance(headers, Mapping):
        raise InvalidOption(f"headers can't be {quoted(headers)}; give a mapping of str to str")
    for pair in headers.items():
        if not all(isinstance(text, str) for text in pair):
            raise InvalidOption(
                f"headers can't have {quoted(pair)}; names and values must be str: convert them to text"
            )
        if is_ours(pair[0]):
            raise InvalidOption(
                f"headers can't have {quoted(pair[0])}: names that begin with {OURS} are shardq's own; for a webhook "
                "give url="
            )
    check_headers_size(headers)


def is_ours(name: str) -> bool:
    """True for the name of a header that no caller may give, and that leaves the engine with no task."""
    return name[: len(OURS)].lower() == OURS


def check_headers_size(headers: Mapping[str, str]) -> None:
    """All headers of a task, with those of ours."""
    try:
        size = len(msgspec.msgpack.encode(dict(headers), enc_hook=str))
    except UnicodeEncodeError as exc:
        raise InvalidOption(f"headers can't be encoded: {exc}; use text that UTF-8 can hold") from exc
    if size > MAX_HEADERS:
        raise InvalidOption(
            f"the headers have {size} bytes when encoded; {MAX_HEADERS} are allowed: put more into the payload"
        )


def check_max_attempts(attempts: int) -> None:
    """The number of attempts that a task may have."""
    if not _is_int(attempts) or not 1 <= attempts <= MAX_ATTEMPTS:
        raise InvalidOption(
            f"max_attempts can't be {quoted(attempts)}; give an int from 1 to {MAX_ATTEMPTS}, "
            "or leave it out for the consumer's own"
        )


def reason_text(reason: str) -> str:
    """The end of a reason, as text that can be stored: a message made of foreign bytes may hold halves of pairs."""
    if not isinstance(reason, str):
        raise InvalidOption(f"a reason can't be {type(reason).__name__}; give a str")
    return reason[-MAX_REASON:].encode(errors="replace").decode()


def check_on_conflict(choice: str, id: str | None) -> None:
    """The rule for an id that is taken. It says nothing for ids made here: they never are."""
    if choice not in _CONFLICTS:
        raise InvalidOption(f"on_conflict can't be {quoted(choice)}; use one of {', '.join(map(repr, _CONFLICTS))}")
    if id is None and choice != "keep":
        raise InvalidOption(
            f'on_conflict="{choice}" was given without id=; a new id of ours meets no other task: give an id of your '
            "own, the same for every push of the same task"
        )


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
