"""The row: a command as it waits in a table or a file. Packed words, whose times are instants. No I/O.

**The law.** A row is (id, nonce, command). Redis carries out each (id, nonce) at most once within its memory, and none
after its latest instant. A row leaves its store only when replicas and disk have what it did. Rows move one way.

A push holds what ``push_unique.lua`` takes, so whoever moves it needs neither the codec nor the classes of a payload.
Delays and relative expiries become instants by the clock of the process that stores the row: they count from the call
of ``push``, not from the move.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, get_args

import msgspec

from shardq.core.calls.request import Word
from shardq.core.model.checks import MAX_AT_MS, OnConflict, check_on_conflict, check_whole_id
from shardq.core.model.ids import new_nonce
from shardq.core.model.printable import quoted
from shardq.core.model.record import dated
from shardq.core.producer.packing import FRESH, UNIQUE, Entries
from shardq.errors import BadInput

Kind = Literal["push", "cancel", "reschedule"]

MEMORY_MS = 600_000
"""How long Redis remembers a command after its last send. A process that died between a send and the removal of its row
is followed well before that.
"""

_KINDS = get_args(Kind)

OVERHEAD = 64  # bytes that a command takes in the file beside its id and its record


class Command(msgspec.Struct, frozen=True, gc=False):
    """One command, as its store keeps it."""

    kind: Kind
    id: str
    due: int = 0  # an instant in ms of the epoch, or 0: at once
    record: bytes = b""
    on_conflict: OnConflict = "keep"
    dedup: int = 0  # the dedup window in ms
    made: bool = False  # true if the id was made for this push, so that no other command can come before it
    nonce: int = 0  # of a cancel or a reschedule; that of a push is in its record
    memory: str = f"-{MEMORY_MS}"
    """-MS, to which -AT may be added, as push_unique.lua and cancel.lua take them: it is carried out at most once,
    known for MS after its last send, and refused after AT.
    """

    @property
    def size(self) -> int:
        try:
            return OVERHEAD + len(self.id) + len(self.record)
        except TypeError:  # of another program
            return OVERHEAD

    @property
    def once(self) -> str:
        """The word of a cancel or a reschedule that says so."""
        return f"{self.nonce}{self.memory}"

    @property
    def fault(self) -> BadInput | None:
        """The reason why it can't be carried out, where another program or another version has stored it; None for one
        that can, as far as a server does not refuse it.
        """
        try:
            if self.kind not in _KINDS:
                raise BadInput(f"a command of the kind {quoted(self.kind)} is not known")
            check_whole_id(self.id)
            if type(self.due) is not int or not 0 <= self.due <= MAX_AT_MS:
                raise BadInput(f"its due time is {quoted(self.due)}")
            if self.kind != "push":
                if type(self.nonce) is not int or not 0 <= self.nonce < 1 << 32:
                    raise BadInput(f"its nonce is {quoted(self.nonce)}")
                return None
            if not isinstance(self.record, bytes) or not self.record:
                raise BadInput(f"its record is {quoted(self.record)}")
            check_on_conflict(self.on_conflict, self.id)
        except BadInput as exc:
            return exc
        return None


class Numbered(msgspec.Struct, frozen=True, gc=False):
    """A command under its number in its store."""

    seq: int
    command: Command
    created: object = 0  # an instant in ms of the epoch, or 0 where it is not read
    attempts: object = 0  # how often it was refused


def now_ms() -> int:
    """This machine's clock, rounded up like every due time: no delay that counts from it is too short."""
    return math.ceil(time.time() * 1000)


def pushes(entries: Entries, began_ms: int) -> list[Command]:
    """The commands of packed tasks whose push began at this instant."""
    rows: list[Any] = [(*row, "keep", 0, True) for row in _rows(entries.fresh, FRESH)]
    rows += [(*row, False) for row in _rows(entries.unique, UNIQUE)]
    return [
        Command("push", id, _instant(due, began_ms), dated(record, began_ms), rule, dedup, made)
        for id, due, record, rule, dedup, made in rows
    ]


def cancel(id: str) -> Command:
    return Command("cancel", id, nonce=new_nonce())


def reschedule(id: str, due: int, began_ms: int) -> Command:
    return Command("reschedule", id, _instant(due, began_ms), nonce=new_nonce())


def entries_of(commands: Iterable[Command]) -> Entries:
    """Pushes as entries to push."""
    entries = Entries()
    for each in commands:
        entries.ids.append(each.id)
        entries.unique += (each.id, each.due, each.record, each.on_conflict, f"{each.dedup}{each.memory}")
    return entries


def layers(page: Iterable[Numbered]) -> list[list[Numbered]]:
    """Groups commands so that each group has an id at most once, and those of one id come in their order.

    Commands on different ids have no order, so a group is carried out together.
    """
    seen: defaultdict[str, int] = defaultdict(int)
    groups: list[list[Numbered]] = []
    for spooled in page:
        place = seen[spooled.command.id]
        seen[spooled.command.id] += 1
        if place == len(groups):
            groups.append([])
        groups[place].append(spooled)
    return groups


def _rows(words: Sequence[Word], width: int) -> Iterator[tuple[Word, ...]]:
    return zip(*(words[at::width] for at in range(width)), strict=True)


def _instant(due: int, began_ms: int) -> int:
    # 0 stays: due at once, whatever the clocks of the two machines say.
    return due if due >= 0 else began_ms - due
