"""claim, settle and extend, for consumers and forwarding; permit, release and renew, the fleet-wide limits of a topic.

The limits are in the control slot: a token bucket for a rate, a set of permits for a concurrency. The name of a permit
is the token of its lease: a process that can settle or extend a delivery can give its permit back, or renew it. What
makes this exact is told in ``lua/README.md``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Literal, Protocol

import msgspec

from shardq.core.calls.request import NOW, Call, Command, Epoch, Word, body, by_name, nothing, with_ends
from shardq.core.layout.keys import ControlKeys, ShardKeys
from shardq.core.layout.topology import DEFAULT_ATTEMPTS, Limit
from shardq.core.layout.words import FOREIGN, id_of, is_foreign
from shardq.core.model.ids import topic_of

MAX_CLAIM = 1000  # ids in one script call
MAX_HANDING = 8  # topics in one settle: it can wake a process for each

SettleStatus = Literal["lost", "replaced", "dead"]  # the answer of a settle about an item that was not simply done


@dataclass(frozen=True, slots=True)
class Claim:
    """The claimed tasks as the script gives them: an object for each would cost consumers more than decoding."""

    ids: list[str]
    records: list[bytes]  # the record of each, still encoded
    tokens: Mapping[int, str]
    """Position in these lists → the token of its own, of tasks with a permit. The others have that of the claim."""
    pasts: Mapping[int, tuple[int, int]]  # likewise → failures and lapses, of tasks that have either
    left: list[int]  # the number left in the ready list of each topic asked for
    crowds: list[int]  # the number of processes that wait for each topic; 0 unless the caller registers
    dropped: int  # entries that are worth nothing: stale ones, and those of expired tasks
    foreign: frozenset[int] = frozenset()  # positions of ids that are no text: another program has stored them
    fence: int = 0  # of the first; each of the others has the next number. 0 where the engine has no keys


def claim(
    keys: ShardKeys,
    epoch: Epoch,
    shares: Mapping[str, int],
    *,
    max: int,
    lease_ms: int,
    token: str,
    max_attempts: Mapping[str, int] | None = None,
    permits: Mapping[str, int] | None = None,
    waiter: str = "",
    retry_for_s: float | None = None,
) -> Call[Claim]:
    """Claims at most ``max`` in all and ``shares`` of each topic, in their order; 0 only asks for the number there.

    ``max_attempts`` of a topic holds for tasks that bring no limit of their own, also when their lease runs out; for
    other topics the dispatcher's number does. ``permits``: topic whose tasks need a permit → the number of the first
    one for this claim. ``waiter`` is the process to register in each list found empty. A lost
    answer costs a lease: the tasks come back at its deadline.
    """
    words: list[Word] = [epoch, NOW, keys.bell, max, lease_ms, token, keys.wake(""), waiter]
    limits, permits = max_attempts or {}, permits or {}
    for topic, share in shares.items():
        words += (topic, share, limits.get(topic, ""), permits.get(topic, ""))
    return Call.of("claim", keys, words, partial(_claim, token, permits), topics=shares, retry_for_s=retry_for_s)


def _claim(token: str, permits: Mapping[str, int], answer: list[Any]) -> Claim:
    told = by_name(answer)
    text, records, past = told["ids"], told["records"], iter(told["pasts"])
    ids = text.decode(errors=FOREIGN).split("\n") if records else []
    return Claim(
        ids,
        records,
        dict(_tokens(token, permits, ids)) if permits else {},
        {position - 1: (failures, lapses) for position, failures, lapses in zip(past, past, past, strict=True)},
        told["left"],
        told["crowds"],
        told["dropped"],
        frozenset() if text.isascii() else frozenset(position for position, id in enumerate(ids) if is_foreign(id)),
        # no script gives more than MAX_CLAIM, nor takes less than a microsecond
        told.get("leased_us", 0) * MAX_CLAIM,
    )


def _tokens(token: str, permits: Mapping[str, int], ids: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Position → token, of the tasks with a permit: they are numbered as they were given."""
    following = {topic: count(first) for topic, first in permits.items()}
    for position, id in enumerate(ids):
        if (numbers := following.get(topic_of(id))) is not None:
            yield position, permit_name(token, next(numbers))


def length(keys: ShardKeys, topic: str, *, retry_for_s: float) -> Command[int]:
    """The length of a ready list."""
    return Command(keys.slot, ("LLEN", keys.ready(topic)), int, retry_for_s=retry_for_s)


def ready_lists(keys: ShardKeys, topics: Sequence[str], *, retry_for_s: float | None = None) -> Command[int]:
    """The number of ready lists, of these topics, that are not empty."""
    words = ("EXISTS", *map(keys.ready, topics))
    return Command(keys.slot, words, int, retry_for_s=retry_for_s)


def head(keys: ShardKeys, topic: str, *, retry_for_s: float) -> Command[str | None]:
    """The id at the head of a ready list; None for an empty one."""
    words = ("LRANGE", keys.ready(topic), 0, 0)
    return Command(keys.slot, words, lambda ids: id_of(ids[0]) if ids else None, retry_for_s=retry_for_s)


def wake(keys: ShardKeys, epoch: Epoch, topic: str) -> Call[bool]:
    """Wakes another process. Returns True when only names of processes that are gone were drawn, and more are there:
    call again. Sent twice it wakes one more, which finds nothing: harmless.
    """
    words = [epoch, NOW, keys.wake(""), topic]
    return Call.of("wake", keys, words, lambda answer: body(answer)[0] == 1, topics=(topic,))


def unregister(keys: ShardKeys | ControlKeys, topic: str, process: str) -> Command[int]:
    """Takes the name of a process that ends away from those that wait for the topic, or for its permits."""
    return Command(keys.slot, ("ZREM", keys.waiting(topic), process), int)


class Leased(Protocol):
    """Names a lease, to ack or extend it. A delivery does."""

    @property
    def id(self) -> str: ...

    @property
    def token(self) -> str: ...


class SettleAck(msgspec.Struct, frozen=True, gc=False):
    """A lease of which no more is known than its names."""

    id: str
    token: str
    end: str = ""
    """What is said of its end, where one is kept."""


class SettleRetry(msgspec.Struct, frozen=True, gc=False):
    id: str
    token: str
    delay_ms: int
    reason: str
    max_attempts: int | None  # the handler's limit for a task that brings none of its own; None: the engine's


class SettleBury(msgspec.Struct, frozen=True, gc=False):
    id: str
    token: str
    reason: str
    hold_ms: int = 0
    """The time for which its key gives nothing."""


class SettleGiveBack(msgspec.Struct, frozen=True, gc=False):
    """Gives the task back unbegun."""

    id: str
    token: str


class SettleSnooze(msgspec.Struct, frozen=True, gc=False):
    """Gives the task back for later. Like a task that is given back unbegun, it loses no attempt."""

    id: str
    token: str
    delay_ms: int


class SettleHold(SettleSnooze, frozen=True, gc=False):
    """The same, and what else has the key of the task waits, too."""


OtherSettlement = SettleRetry | SettleBury | SettleGiveBack | SettleSnooze


def settle(
    keys: ShardKeys,
    epoch: Epoch,
    acks: Sequence[Leased],
    others: Sequence[OtherSettlement] = (),
    *,
    max_attempts: int = DEFAULT_ATTEMPTS,
    handing: Sequence[str] = (),
    note_waits: Callable[[KeyWaits], object] = lambda _: None,
    ends_rule: str = "",
    ends: Mapping[str, str] | None = None,
) -> Call[Mapping[str, SettleStatus]]:
    """Returns statuses by id. Ids without a status were done as asked. ``max_attempts``: the engine's. ``handing``: the
    topics, at most ``MAX_HANDING``, whose keys hand the place that becomes free to their next task: none that is
    paused, or has a route. ``note_waits``: told how long these had waited. ``ends``: of acks of which an end is kept,
    by this rule, what the consumer says of it.
    """
    # Those of one claim have one token.
    by_token: dict[str, list[str]] = defaultdict(list)
    for ack in acks:
        by_token[ack.token].append(ack.id)
    ids = [id for group in by_token.values() for id in group]
    acked = f"{len(ids)}:{ends_rule}" if ends else len(ids)
    words: list[Word] = [epoch, NOW, keys.bell, acked, len(by_token), *ids]
    for token, group in by_token.items():
        words += (token, len(group))
    if ends:
        words += [ends.get(id, "") for id in ids]
    for other in others:
        match other:
            case SettleRetry():
                allowed = max_attempts if other.max_attempts is None else other.max_attempts
                words += ("retry", other.id, other.token, other.delay_ms, other.reason, allowed)
            case SettleBury():
                words += ("bury", other.id, other.token, other.hold_ms, other.reason, 0)
            case SettleGiveBack():
                words += ("back", other.id, other.token, 0, "", 0)
            case SettleHold():
                words += ("hold", other.id, other.token, other.delay_ms, "", 0)
            case SettleSnooze():
                words += ("back", other.id, other.token, other.delay_ms, "", 0)
    if handing:
        words += (keys.wake(""), *handing)
    ids += [other.id for other in others]

    def again() -> Call[Mapping[str, SettleStatus]]:
        # The send whose answer was lost may have done it: "not held under this token" then means done.
        call = settle(
            *(keys, epoch, acks, others),
            max_attempts=max_attempts,
            handing=handing,
            note_waits=note_waits,
            ends_rule=ends_rule,
            ends=ends,
        )
        decode = call.decode
        call.decode = lambda answer: {id: v for id, v in decode(answer).items() if v != "lost"}
        call.resend = None
        return call

    def settled(answer: list[Any]) -> dict[str, SettleStatus]:
        if answer == [b"ok"]:
            return {}
        if len(answer) > 1 and isinstance(answer[-1], list):
            *answer, waits = answer
            note_waits(key_waits_of(waits))
        return _verdicts(ids, answer)

    call = Call.of("settle", keys, words, settled, topics=handing, ids=ids, resend=again)
    return with_ends(call, keys) if ends else call


KeyWaits = Sequence[tuple[str, int, int]]
"""Topic, bin of a histogram, and how many tasks with a key had waited so long after their due time."""


def key_waits_of(flat: Sequence[Any]) -> KeyWaits:
    """Those that a script answers."""
    return tuple(zip(map(bytes.decode, flat[0::3]), flat[1::3], flat[2::3], strict=True))


def extend(keys: ShardKeys, epoch: Epoch, held: Sequence[Leased], *, lease_ms: int) -> Call[Mapping[str, SettleStatus]]:
    """Sets new deadlines, counted from now. Repeating it is harmless."""
    words: list[Word] = [epoch, NOW, keys.bell, lease_ms]
    for item in held:
        words += (item.id, item.token)
    ids = [item.id for item in held]
    return Call.of("extend", keys, words, lambda answer: _verdicts(ids, answer))


def _verdicts(ids: Sequence[str], answer: list[Any]) -> dict[str, SettleStatus]:
    said = iter(body(answer))
    return {ids[position - 1]: word.decode() for position, word in zip(said, said, strict=True)}


MAX_PERMITS = 1000

MARGIN_MS = 2000
"""A permit lapses so much later than its lease: it is granted before the lease is, and renewed before that is extended.
"""

MARK = "#"
"""Only the token of a lease with a permit has it."""


def permit_name(token: str, number: int) -> str:
    """The name of a permit, and the token of its lease. ``token``: that of the claim."""
    return f"{token}{MARK}{number}"


@dataclass(frozen=True, slots=True)
class Permit:
    granted: int
    again_ms: int  # the time after which to ask again, when none was granted


def permit(
    keys: ControlKeys,
    epoch: Epoch,
    topic: str,
    limit: Limit,
    want: int,
    *,
    lease_ms: int,
    token: str,
    waiter: str = "",
    others_wait: bool = False,
) -> Call[Permit]:
    """``waiter`` is the process to wake when a permit goes back, if none is granted now; with ``others_wait`` also if
    some are. A lost answer costs the permits until they lapse.
    """
    return Call.of(
        "permit",
        keys,
        [
            *(epoch, NOW, topic, min(want, MAX_PERMITS)),
            *("" if limit.rate is None else limit.rate, "" if limit.concurrency is None else limit.concurrency),
            *(lease_ms + MARGIN_MS, token, keys.wake(""), waiter, int(others_wait)),
        ],
        lambda answer: Permit(*body(answer)),
        topics=(topic,),
    )


def release(
    keys: ControlKeys, epoch: Epoch, topic: str, names: Sequence[str], *, unused: int, wakes: int = 0
) -> Call[None]:
    """Each permit that was still there wakes a process that waits for one; ``wakes``: so many more."""
    return Call.of("release", keys, [epoch, topic, unused, keys.wake(""), wakes, *names], nothing, topics=(topic,))


def renew(
    keys: ControlKeys,
    epoch: Epoch,
    topic: str,
    concurrency: int | None,
    names: Sequence[str],
    *,
    lease_ms: int,
) -> Call[set[str]]:
    """Returns those that had lapsed, and whose places are taken."""
    return Call.of(
        "renew",
        keys,
        [epoch, NOW, lease_ms + MARGIN_MS, "" if concurrency is None else concurrency, *names],
        lambda answer: {names[position - 1] for position in body(answer)},
        topics=(topic,),
    )
