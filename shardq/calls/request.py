"""A request as a value: what to send, where, and how to read the answer. No I/O.

Every operation of the engine is built as a ``Call`` (one Lua script on one slot) by the other modules of this
package, and carried out by a driver. A driver needs to know no more of it than this module says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from hiredis import pack_command

from shardq.scripts import Script

T = TypeVar("T")
Word = str | bytes | int | float


_NUMBERS = frozenset((int, float))


def _pack(*words: Word) -> bytes:
    # Numbers become text here: hiredis (3.5) runs Python to make it, and crashes the process where the handler of a
    # signal, such as Ctrl-C, raises in that.
    texts = tuple([str(word) if type(word) in _NUMBERS else word for word in words])
    return pack_command(texts)  # type: ignore[no-any-return, arg-type]  # its stub wants a tuple of one word


@dataclass(slots=True)
class Command(Generic[T]):
    """One plain command."""

    slot: int
    """The hash slot of its keys: chooses the node. Any node will do: -1."""
    words: Sequence[Word]
    decode: Callable[[Any], T]
    """Makes the result of the raw answer (bytes, int, list, None). May raise a ShardqError."""
    patience_s: float | None = field(default=None, kw_only=True)
    """How long to try again after a fault, where that is less than the driver's timeout; an answer may take longer."""
    in_doubt: bool = field(default=False, kw_only=True)
    """An earlier send may have been executed, its answer lost. Noted by the driver in the request it was given, so that
    whoever sends it again elsewhere, as another request, sends what is right after a lost answer."""
    hear_out: bool = field(default=False, kw_only=True)
    """An answer that is under way when a thread is interrupted (Ctrl-C) is waited for, for a moment, and decoded: it
    says what the caller was given. Tasks of asyncio are shielded instead."""

    def packed(self) -> bytes:
        """As sent first."""
        return _pack(*self.words)

    def packed_in_full(self) -> bytes:
        """As sent when the server does not know the script."""
        return self.packed()

    def after_loss(self) -> Command[T]:
        """What to send when an earlier answer was lost. Plain commands: the same again."""
        self.in_doubt = True
        return self


@dataclass(slots=True)
class Call(Command[T]):
    """One script. ``words`` are its ARGV."""

    script: Script
    keys: Sequence[str]
    resend: Callable[[], Call[T]] | None = None
    """Makes the request that is right after a lost answer, where the same again would be wrong."""

    def packed(self) -> bytes:
        return _pack(b"EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.words)

    def packed_in_full(self) -> bytes:
        return _pack(b"EVAL", self.script.text, len(self.keys), *self.keys, *self.words)

    def after_loss(self) -> Call[T]:
        call = self if self.resend is None else self.resend()
        call.in_doubt = True
        return call
