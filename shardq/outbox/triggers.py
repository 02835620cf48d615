"""The trigger by which PostgreSQL tells relays of new rows: a statement's, so no push takes a trip more, and rows that
others insert are told, too. Statements of SQL, for SQLAlchemy and Django alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

LONGEST_NAME = 63
"""PostgreSQL cuts longer names, and MySQL refuses those above 64."""


def derived_name(table: str, what: str) -> str:
    """The name of what belongs to a table. Where that is too long, a digest is in place of the table's end."""
    name = f"{table}_{what}"
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(table.encode()).hexdigest()[:8]
    return f"{table[: LONGEST_NAME - len(what) - 10]}_{digest}_{what}"


def has_trigger(dialect: str, table: str, schema: str | None = None) -> str | None:
    """The statement that finds a row if the trigger is there; None where the database can't tell of rows."""
    if dialect != "postgresql":
        return None
    return (
        f"SELECT 1 FROM pg_trigger WHERE tgrelid = '{_quoted(table, schema)}'::regclass "
        f"AND tgname = '{derived_name(table, 'notify')}'"
    )


def make_trigger(dialect: str, table: str, schema: str | None = None) -> Sequence[str]:
    """The statements that make the trigger, or none where the database can't tell of rows. The channel is the table."""
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
