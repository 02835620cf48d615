"""The rows of the outbox: tasks packed as the table stores them, and as the relay pushes them; and the trigger by which
PostgreSQL tells relays of new rows. No I/O, no SQLAlchemy: Django has them, too.

A row holds what ``push_unique.lua`` takes, so the relay needs neither the codec nor the classes of a payload. Instants
are absolute: a delay counts from the push into the outbox, by the clock of the process that pushes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypedDict

from shardq.core.calls.request import Word
from shardq.core.model.checks import MAX_PAYLOAD, now_ms
from shardq.core.model.printable import quoted
from shardq.core.model.record import Codec, codec_named, undecoded
from shardq.core.model.task import Task
from shardq.core.model.task_options import PushOptions
from shardq.core.producer.packing import Packer
from shardq.errors import BadInput, InvalidOption
from shardq.features.far.rows import LEAST_AHEAD_S, MARGIN_S, far_id
from shardq.relay.row import Command, Kind, cancel, pushes, reschedule

NAME = "shardq_outbox"  # the table, unless another is named

BATCH = 1000
"""The rows of a relay's step: with these the trips to database and server are cheap, and locks are held briefly."""

MAX_BATCH = 10_000

DEDUP_S = 600.0
"""How long resends know of the push of a row. A relay that died between a push and the removal of its rows is
replaced well before that.
"""

KEEP_S = 86_400.0
"""How long moved rows stay: whoever restores Redis from a snapshot of last night finds them."""

FAR_MS = round(1000 * (LEAST_AHEAD_S + MARGIN_S))
"""Tasks that are due later may wait in the far store of their engine, if it has one: their ids are made for that."""

LONGEST_ID = 466  # TOPIC/KEY/UNIQUE: 64, 200 and 200 bytes

LONGEST_NAME = 63  # PostgreSQL cuts longer names, and MySQL refuses those above 64


class Row(TypedDict):
    """One row, without the columns that the database and the relay fill."""

    id: str
    kind: Kind
    """The relay's operation on the id. The other columns, but the due time of a reschedule, are those of a push."""
    due: int
    """An instant in ms of the epoch, or 0: due at once."""
    record: bytes
    on_conflict: str
    dedup: int
    """The dedup window in ms that the caller gave, else 0."""
    nonce: int
    """The name of a cancel or a reschedule: whoever moves the row, it is carried out at most once. That of a push is in
    its record, and 0 is here.
    """
    created: int


class RowPacker:
    """Checks and encodes tasks for the outbox."""

    def __init__(self, codec: str | Codec = "json", *, max_payload: int = MAX_PAYLOAD) -> None:
        self._packer = Packer(codec_named(codec), max_payload=max_payload)

    def pack(self, task: Task) -> Row:
        """The row of a task. Raises its BadInput."""
        created = now_ms()
        [command] = pushes(self._packer.one(task), created)
        if task.expires is not None and (undecoded(command.record).expires_ms or 0) <= created:
            raise InvalidOption(
                f"expires={quoted(task.expires)} is in the past: the task would never be handled; give a later instant"
            )
        return self._row(command, created)

    def _row(self, command: Command, created: int) -> Row:
        id, record = command.id, command.record
        if command.made and command.due > created + FAR_MS:
            id = far_id(id)
            record = self._packer.rebound(record, command.id, id)
        return Row(
            id=id, kind=command.kind, due=command.due, record=record, on_conflict=command.on_conflict,
            dedup=command.dedup, nonce=command.nonce, created=created,
        )  # fmt: skip

    def pack_one(self, payload: Any, options: PushOptions) -> Row:
        """The row of a payload with the options of a push, or of a Task without any."""
        if isinstance(payload, Task) and not options:
            return self.pack(payload)
        try:
            return self.pack(Task(payload, **options))
        except TypeError as exc:
            raise BadInput(
                f"a push into the outbox: {exc}; it takes the options of Engine.push but durability"
            ) from exc

    def order(self, kind: Literal["cancel", "reschedule"], id: str, due: Word = 0) -> Row:
        """The row of a cancel, or of a reschedule to a due time."""
        created = now_ms()
        return self._row(cancel(id) if kind == "cancel" else reschedule(id, int(due), created), created)

    def pack_all(self, tasks: Iterable[Task]) -> list[Row]:
        return [self.pack(task) for task in tasks]


def derived_name(table: str, what: str) -> str:
    """The name of what belongs to a table. Where that is too long, a digest is in place of the table's end."""
    name = f"{table}_{what}"
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(table.encode()).hexdigest()[:8]
    return f"{table[: LONGEST_NAME - len(what) - 10]}_{digest}_{what}"


def make_owner(dialect: str, owner: str, schema: str | None = None) -> str:
    """The statement that makes the row of the engine, if there is none, and gives the outbox a name that no other has:
    by it servers know one that was restored.
    """
    verb, no, named, end = {
        "postgresql": ("INSERT", "false", "md5(random()::text || clock_timestamp()::text)", " ON CONFLICT DO NOTHING"),
        "sqlite": ("INSERT OR IGNORE", "0", "lower(hex(randomblob(16)))", ""),
    }.get(dialect, ("INSERT IGNORE", "false", "replace(uuid(), '-', '')", ""))
    table = _quoted(owner, schema)
    if verb == "INSERT IGNORE":
        table = table.replace('"', "`")
    return f"{verb} INTO {table} (one, name, embedded, outbox, beat) VALUES (1, '', {no}, {named}, 0){end}"


def has_trigger(dialect: str, table: str, schema: str | None = None) -> str | None:
    """The statement that finds a row if the trigger is there; None where the database can't tell of rows."""
    if dialect != "postgresql":
        return None
    return (
        f"SELECT 1 FROM pg_trigger WHERE tgrelid = '{_quoted(table, schema)}'::regclass "
        f"AND tgname = '{derived_name(table, 'notify')}'"
    )


def make_trigger(dialect: str, table: str, schema: str | None = None) -> Sequence[str]:
    """The statements that make the trigger, or none where the database can't tell of rows. The channel is the table.
    It is a statement's: no push takes a trip more, and rows that others insert are told, too.
    """
    if dialect != "postgresql":
        return ()
    name = derived_name(table, "notify")
    function, trigger = _quoted(name, schema), _quoted(name)
    return (
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN PERFORM pg_notify('{table}', ''); RETURN NULL; END $$",
        f"CREATE OR REPLACE TRIGGER {trigger} AFTER INSERT ON {_quoted(table, schema)} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {function}()",
    )


def drop_trigger(dialect: str, table: str, schema: str | None = None) -> Sequence[str]:
    """The statements that undo it."""
    if dialect != "postgresql":
        return ()
    name = derived_name(table, "notify")
    return (
        f"DROP TRIGGER IF EXISTS {_quoted(name)} ON {_quoted(table, schema)}",
        f"DROP FUNCTION IF EXISTS {_quoted(name, schema)}()",
    )


def _quoted(name: str, schema: str | None = None) -> str:
    return ".".join(f'"{part}"' for part in (schema, name) if part)
