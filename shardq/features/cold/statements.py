"""The statements of the table, for both databases. ``{now}`` is the database's clock in ms, ``FAR`` says that a row
belongs to the table alone: its due time is past that clock by more than ``:far``. No statement that changes a row
leaves that out, but for those that remove what Redis has.
"""

from __future__ import annotations

COLD = "shardq_cold"
NAMED = "shardq_cold_named"
OWNER = "shardq_cold_engine"
STRIPES = "shardq_cold_stripe"
"""Each id of the caller's own has a stripe, whose version counts the rows that were added under its ids."""
WINDOWS = "shardq_cold_window"
"""The table that remembers cancelled rows."""

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

ADD_OWN = f"""
INSERT INTO {NAMED} (id, bucket, seq, due, topic, tags, record, until, known, nonce, rule)
SELECT :name, :bucket, :seq, :due, :topic, :tags, :record, :until, :known,
  CAST(:nonce AS bigint), :rule{{source}}
ON CONFLICT DO NOTHING"""
"""Also what is near: it is moved at once, by who adds it, or by a loader."""

REPLACE_OWN = f"""
UPDATE {NAMED} SET bucket = :bucket, seq = :seq, due = :due, tags = :tags, record = :record,
  until = CASE WHEN :until > until THEN :until ELSE until END, known = :known, nonce = CAST(:nonce AS bigint),
  rule = :rule
WHERE id = :name AND {FAR}"""

REMEMBER = f"""
INSERT INTO {WINDOWS} (id, until, known, nonce) {{source}}
ON CONFLICT (id) DO UPDATE SET until = excluded.until, known = excluded.known, nonce = excluded.nonce"""
FORGET_WINDOWS = f"DELETE FROM {WINDOWS} WHERE until < {{now}} AND known < {{now}}"

LOOK_STRIPES = f"SELECT stripe, version FROM {STRIPES} WHERE stripe {{among}}"
LOOK_WINDOWS = f"SELECT id, until, known, nonce FROM {WINDOWS} WHERE id {{among}}"
BUMP_STRIPE = f"UPDATE {STRIPES} SET version = version + 1 WHERE stripe = :stripe AND version = :version"
MAKE_STRIPES = f"""
WITH RECURSIVE numbers (number) AS (SELECT 0 UNION ALL SELECT number + 1 FROM numbers WHERE number < :last)
INSERT INTO {STRIPES} (stripe, version) SELECT number, 0 FROM numbers WHERE true ON CONFLICT DO NOTHING"""

AT = "bucket = :bucket AND seq = :seq AND topic = :topic"

CANCEL = f"DELETE FROM {COLD} WHERE {AT} AND {FAR}"
CANCEL_NAMED = f"DELETE FROM {NAMED} WHERE id = :name AND {FAR} RETURNING id, until, known, nonce"

COLUMNS = "bucket, seq, due, topic, tags, record"

OF_COLD, OF_NAMED = f"{COLUMNS}, '', 0, 0, 'keep'", f"{COLUMNS}, id, until, known, rule"

FIND = f"SELECT {OF_COLD}, {FAR} FROM {COLD} WHERE {AT}"
FIND_NAMED = f"SELECT {OF_NAMED}, {FAR} FROM {NAMED} WHERE id = :name"
FIND_OWN = f"SELECT {OF_NAMED}, {FAR} FROM {NAMED} WHERE id {{among}}"

MOVE_NAMED = f"UPDATE {NAMED} SET due = :to, bucket = :to_bucket WHERE id = :name AND {FAR}"
MOVE_ALL_NAMED = f"UPDATE {NAMED} SET due = :to, bucket = :to_bucket WHERE id {{among}} AND {FAR} RETURNING id"

TAKE_OUT = f"DELETE FROM {COLD} WHERE {AT} AND {FAR} RETURNING topic, tags, record"
PUT_BACK = f"INSERT INTO {NAMED} (id, bucket, seq, due, topic, tags, record)"

FORGET_NAMED = f"DELETE FROM {NAMED} WHERE id = :name AND due = :due AND seq = :seq"
"""Each push of an id has a sequence of its own."""

COUNT = "SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT :most) AS counted"
OLDEST = "SELECT min(bucket) FROM {table}"

OWN_COLUMNS = {COLD: "'' AS name, 0 AS until, 0 AS known, 'keep' AS rule", NAMED: "id AS name, until, known, rule"}
"""Table → what a row has beside its columns."""


def near(table: str) -> str:
    """A page of the rows to load, of at most ``:bytes``, behind a place: the caller's share, and what is overdue."""
    return f"""
SELECT {COLUMNS}, name, until, known, rule FROM (
  SELECT page.*, sum(length(record)) OVER (ORDER BY bucket, seq) - length(record) AS before FROM (
    SELECT {COLUMNS}, {OWN_COLUMNS[table]} FROM {table}
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
SELECT {OF_COLD}, {FAR} FROM {COLD}
WHERE bucket BETWEEN :bucket AND :last AND (bucket, seq) > (:bucket, :seq)
  AND (bucket, seq) <= (:end_bucket, :end_seq){filters}
ORDER BY bucket, seq LIMIT :most"""


END_OF_LOOK_NAMED = f"SELECT id FROM {NAMED} WHERE id > :after ORDER BY id LIMIT 1 OFFSET :look"


def listed_named(filters: str) -> str:
    """By their names, which never change: one that is rescheduled meanwhile is not missed."""
    return f"""
SELECT {OF_NAMED}, {FAR} FROM {NAMED}
WHERE id > :after AND (CAST(:end AS text) IS NULL OR id <= CAST(:end AS text)){filters}
ORDER BY id LIMIT :most"""


FIRST_BEFORE = "SELECT bucket FROM {table} WHERE bucket <= :last AND due < :before ORDER BY bucket, seq LIMIT 1"
DROP = "DELETE FROM {table} WHERE bucket = :bucket AND due < :before"


def spans(table: str) -> str:
    """The rows of so many ms each, from an instant on."""
    return f"""
SELECT (due - :begin) / :step AS span, count(*) FROM {table}
WHERE bucket BETWEEN :bucket AND :last AND due >= :begin AND due < :end GROUP BY span"""
