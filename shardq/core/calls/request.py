"""A request as a value: what to send, where, and how to read the answer. No I/O.

The other modules of this package build each request of the engine as a ``Call`` (one Lua script on one slot), or as a
``Command``, and a driver carries it out. A driver needs to know no more of it than this module says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

from hiredis import pack_command

from shardq.core.layout.keys import ControlKeys, ShardKeys
from shardq.core.layout.lanes import have_keys
from shardq.core.layout.topology import Stamp
from shardq.core.layout.words import raw
from shardq.core.scripts import Script, script
from shardq.errors import ServerFault, ShardqError

T = TypeVar("T")
Word = str | bytes | int | float

Epoch = Stamp | int
"""The epoch of a topology as scripts are given it; a number is that of an engine without an id."""

NOW = ""
"""The instant of each call: scripts read their server's clock. ``Call.at`` gives another instant."""

_NUMBERS = frozenset((int, float))


def pack(*words: Word) -> bytes:
    """One command in the form of the protocol."""
    # Numbers become text here: hiredis (3.5) runs Python to make it, and crashes the process where the handler of a
    # signal, such as Ctrl-C, raises in that.
    texts = tuple([str(word) if type(word) in _NUMBERS else word for word in words])
    try:
        return pack_command(texts)  # type: ignore[no-any-return, arg-type]  # its stub wants a tuple of one word
    except UnicodeEncodeError:  # an id that another program has stored
        return pack_command(tuple([raw(text) if isinstance(text, str) else text for text in texts]))  # type: ignore[no-any-return, arg-type]


SILENT_S = 1.0
"""The seconds after which the request of a view gives a silent server up: a look that goes on by what the others have
answered has some of its time left.
"""

BRIEFLY_S = 0.5  # the seconds in which the requests of views are retried: the views as a whole answer within three


@dataclass(slots=True)
class Command(Generic[T]):
    """One plain command."""

    slot: int  # the hash slot of its keys, which chooses the node. -1: any node.
    words: Sequence[Word]
    decode: Callable[[Any], T]
    """Makes the result from the raw answer (bytes, int, list, None). May raise a ShardqError."""
    retry_for_s: float | None = field(default=None, kw_only=True)
    """The seconds in which it is retried after a fault, if less than the driver's timeout. An answer may take
    longer.
    """
    in_doubt: bool = field(default=False, kw_only=True)
    """True if an earlier send may have been executed and its answer was lost. The driver notes it here, so that a
    request in its place is the one that is right after a lost answer.
    """
    within_s: float | None = field(default=None, kw_only=True)
    """The seconds after which it is given up, although the command that it is a part of has time. With ``retry_for_s``
    only.
    """
    finish_on_interrupt: bool = field(default=False, kw_only=True)
    """True if an answer in flight, when Ctrl-C interrupts the thread, is awaited for a moment and decoded: it says what
    the caller was given. asyncio tasks are shielded instead.
    """

    def briefly(self) -> Self:
        """The request of a view, which shows what does not answer as unknown and waits for no failover."""
        self.retry_for_s, self.within_s = BRIEFLY_S, SILENT_S
        return self

    def packed(self) -> bytes:
        """The bytes as sent first."""
        return pack(*self.words)

    def packed_in_full(self) -> bytes:
        """The bytes as sent when the server does not know the script."""
        return self.packed()

    def after_loss(self) -> Command[T]:
        """The request to send when an earlier answer was lost. Plain commands: the same again."""
        self.in_doubt = True
        return self


@dataclass(slots=True)
class Call(Command[T]):
    """One script. ``words`` are its ARGV."""

    script: Script
    keys: Sequence[str]
    resend: Callable[[], Call[T]] | None = None
    """Makes the request that is right after a lost answer, where the same again would be wrong."""

    @classmethod
    def of(
        cls,
        name: str,
        keys: ShardKeys | ControlKeys,
        words: Sequence[Word],
        decode: Callable[[Any], T],
        *,
        topics: Iterable[str] | None = None,
        also: Sequence[str] = (),
        ids: Iterable[str] | None = None,
        resend: Callable[[], Call[T]] | None = None,
        retry_for_s: float | None = None,
    ) -> Call[T]:
        """The call of a script in ``lua/``, with the keys that its head names. ``topics``: those of the keys that are
        one for each topic. ``also``: further keys, which are not ours. ``ids``: all that it is about, where it says so:
        without a key among them it is called as in an engine without keys, for half of what it costs the server.
        """
        keyed = keys.keyed and (ids is None or have_keys(ids))
        chosen = script(name, keyed)
        names = chosen.named(keys)
        if topics is not None:
            names = [key for each in names for key in ((each,) if type(each) is str else map(each, topics))]
        if also:
            at = -6 if keyed else None  # those of lanes are the last
            names = [*names[:at], *also, *(names[at:] if at else ())]
        return cls(
            keys.slot,
            words,
            decode,
            retry_for_s=retry_for_s,
            script=chosen,
            keys=names,
            resend=resend,
        )

    def at(self, now_us: int | str) -> Call[T]:
        """The same call, also after a lost answer, at this instant instead of its server's."""
        place, resend = self.script.place_of_now, self.resend
        assert place is not None, f"{self.script.name} reads no clock"
        words = [*self.words[:place], str(now_us), *self.words[place + 1 :]]
        return replace(self, words=words, resend=None if resend is None else lambda: resend().at(now_us))

    def packed(self) -> bytes:
        return pack(b"EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.words)

    def packed_in_full(self) -> bytes:
        return pack(b"EVAL", self.script.text, len(self.keys), *self.keys, *self.words)

    def after_loss(self) -> Call[T]:
        call = self if self.resend is None else self.resend()
        call.in_doubt = True
        return call


def with_ends(call: Call[T], keys: ShardKeys) -> Call[T]:
    """The call with the slots of the ring of ends behind its keys."""
    call.keys = [*call.keys, *keys.ends]
    return call


class Stale(ShardqError):
    """The shard has seen a topology that is not older than the caller's. Internal: refresh, route again, repeat."""

    def __init__(self, stamp: Stamp) -> None:
        self.stamp = stamp
        self.epoch: int = stamp.epoch
        super().__init__(f"the topology has changed: the shard is at epoch {stamp.epoch}")


class Behind(ShardqError):
    """The shard has seen older topologies only. Internal: tell it the present one, repeat."""

    def __init__(self, stamp: Stamp) -> None:
        self.stamp = stamp
        super().__init__(f"the shard missed a change of the topology: it is at epoch {stamp.epoch}")


class Missing(ShardqError):
    """The shard has no meta. Internal: refresh, open the shard if it is still one, repeat."""

    def __init__(self) -> None:
        super().__init__("the shard was never opened, or its server lost it")


class Moving(ShardqError):
    """The task is moving to another shard. Internal: put it there, then ask there."""

    def __init__(self) -> None:
        super().__init__("the task is on its way to another shard")


def body(answer: list[Any]) -> list[Any]:
    """Returns what follows ``ok``. Raises Stale, Behind or Missing for the guard's other statuses."""
    status = answer[0]
    if status == b"ok":
        return answer[1:]
    if status == b"stale":
        raise Stale(Stamp.of(answer[1]))
    if status == b"behind":
        raise Behind(Stamp.of(answer[1]))
    if status == b"missing":
        raise Missing()
    raise ServerFault(f"a script answered {status!r}, which this version of shardq does not know")


def by_name(answer: list[Any]) -> dict[str, Any]:
    """Returns what follows ``ok`` as name → value: an answer of more than five values has their names."""
    words = answer[1:] if answer[0] == b"ok" else body(answer)  # a call less: each claim comes through here
    return dict(zip(map(bytes.decode, words[::2]), words[1::2], strict=True))


PAGE_BYTES = 1 << 20  # the bytes of records that a script reads at a time, which may have 1 MiB each

FIRST_PAGE = 64  # the first page of records, whose sizes are not known yet


def next_page(size: int, read: int, *, most: int) -> int:
    """The size of the next page of records, after one of this size had so many bytes."""
    return max(1, min(most, size * 4, size * PAGE_BYTES // max(1, read)))


def nothing(answer: list[Any]) -> None:
    """Reads the answer of scripts that say ``ok`` alone."""
    body(answer)
