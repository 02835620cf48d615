"""The trigger by which PostgreSQL tells relays of new rows: a statement's, so no push takes a trip more, and rows that
others insert are told, too. Statements of SQL, for SQLAlchemy and Django alike.
"""

from __future__ import annotations

from collections.abc import Sequence


def make_trigger(dialect: str, table: str, schema: str | None = None) -> Sequence[str]:
    """The statements that make the trigger, or none where the database can't tell of rows. The channel is the table."""
    if dialect != "postgresql":
        return ()
    function, trigger = _quoted(f"{table}_notify", schema), _quoted(f"{table}_notify")
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
    name = f"{table}_notify"
    return (
        f"DROP TRIGGER IF EXISTS {_quoted(name)} ON {_quoted(table, schema)}",
        f"DROP FUNCTION IF EXISTS {_quoted(name, schema)}()",
    )


def _quoted(name: str, schema: str | None = None) -> str:
    return ".".join(f'"{part}"' for part in (schema, name) if part)
