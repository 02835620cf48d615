"""The statements of the table, for both databases. ``{now}`` is the database's clock in ms, ``FAR`` says that a row
belongs to the table alone: its due time is past that clock by more than ``:far``. No statement that changes a row
leaves that out, but for those that remove what Redis has.
"""

from __future__ import annotations

COLD = "shardq_cold"
NAMED = "shardq_cold_named"
OWNER = "shardq_cold_engine"

FAR = "due > {now} + :far"

READ_OWNER = f"SELECT engine, identity FROM {OWNER}"
CLAIM_OWNER = f"""
INSERT INTO {OWNER} (number, engine, identity) VALUES (1, :engine, :identity) ON CONFLICT DO NOTHING"""
"""The key is the same for all: of several that begin at once, one makes the identity."""

CLOCK = "SELECT {now}"

INSERT = f"""
INSERT INTO {COLD} (bucket, seq, due, topic, tags, record)
SELECT :bucket, :seq, :due, :topic, :tags, :record WHERE :due > {{now}} + :far
ON CONFLICT DO NOTHING"""

INSERT_NAMED = f"""
INSERT INTO {NAMED} (id, bucket, seq, due, topic, tags, record)
SELECT :name, :bucket, :seq, :due, :topic, :tags, :record WHERE :due > {{now}} + :far
ON CONFLICT DO NOTHING"""

AT = "bucket = :bucket AND seq = :seq AND topic = :topic"

CANCEL = f"DELETE FROM {COLD} WHERE {AT} AND {FAR}"
CANCEL_NAMED = f"DELETE FROM {NAMED} WHERE id = :name AND {FAR}"

COLUMNS = "bucket, seq, due, topic, tags, record"

FIND = f"SELECT {COLUMNS}, '', {FAR} FROM {COLD} WHERE {AT}"
FIND_NAMED = f"SELECT {COLUMNS}, id, {FAR} FROM {NAMED} WHERE id = :name"

MOVE_NAMED = f"UPDATE {NAMED} SET due = :to, bucket = :to_bucket WHERE id = :name AND {FAR}"

TAKE_OUT = f"DELETE FROM {COLD} WHERE {AT} AND {FAR} RETURNING topic, tags, record"
PUT_BACK = f"INSERT INTO {NAMED} (id, bucket, seq, due, topic, tags, record)"

FORGET_NAMED = f"DELETE FROM {NAMED} WHERE id = :name AND due = :due"

COUNT = "SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT :most) AS counted"
OLDEST = "SELECT min(bucket) FROM {table}"

NAME = {COLD: "''", NAMED: "id"}
"""Table → the column that names a row whose place is not its id's."""


def near(table: str) -> str:
    """A page of the rows to load, of at most ``:bytes``, behind a place: the caller's share, and what is overdue."""
    return f"""
SELECT {COLUMNS}, name FROM (
  SELECT {COLUMNS}, name, sum(length(record)) OVER (ORDER BY bucket, seq) - length(record) AS before FROM (
    SELECT {COLUMNS}, {NAME[table]} AS name FROM {table}
    WHERE bucket BETWEEN :bucket AND :last AND (bucket, seq) > (:bucket, :seq) AND due <= {{now}} + :within
      AND (seq % :members = :member OR due <= {{now}} + :overdue)
    ORDER BY bucket, seq LIMIT :most
  ) AS page
) AS sized WHERE before < :bytes ORDER BY bucket, seq"""


END_OF_LOOK = f"""
SELECT bucket, seq FROM {COLD} WHERE bucket BETWEEN :bucket AND :last AND (bucket, seq) > (:bucket, :seq)
ORDER BY bucket, seq LIMIT 1 OFFSET :look"""
"""The place up to which a list is looked through: so many rows behind another place."""


def listed(filters: str) -> str:
    """The rows between two places that match."""
    return f"""
SELECT {COLUMNS}, '', {FAR} FROM {COLD}
WHERE bucket BETWEEN :bucket AND :last AND (bucket, seq) > (:bucket, :seq)
  AND (bucket, seq) <= (:end_bucket, :end_seq){filters}
ORDER BY bucket, seq LIMIT :most"""


END_OF_LOOK_NAMED = f"SELECT id FROM {NAMED} WHERE id > :after ORDER BY id LIMIT 1 OFFSET :look"


def listed_named(filters: str) -> str:
    """By their names, which never change: one that is rescheduled meanwhile is not missed."""
    return f"""
SELECT {COLUMNS}, id, {FAR} FROM {NAMED}
WHERE id > :after AND (CAST(:end AS text) IS NULL OR id <= CAST(:end AS text)){filters}
ORDER BY id LIMIT :most"""


def drop(table: str) -> str:
    """Removes the rows of the first bucket that has some that are due before an instant."""
    return f"""
DELETE FROM {table} WHERE due < :before AND bucket = (
  SELECT bucket FROM {table} WHERE bucket <= :last AND due < :before ORDER BY bucket, seq LIMIT 1)"""


def spans(table: str) -> str:
    """The rows of so many ms each, from an instant on."""
    return f"""
SELECT (due - :begin) / :step AS span, count(*) FROM {table}
WHERE bucket BETWEEN :bucket AND :last AND due >= :begin AND due < :end GROUP BY span"""
