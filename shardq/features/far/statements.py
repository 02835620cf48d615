"""The statements of the table, for both databases. ``{now}`` is the database's clock in ms, ``FAR`` says that a row
belongs to the table alone: its due time is past that clock by more than ``:far``. No statement that changes a row
leaves that out, but for those that remove what Redis has. After ``:latest``, what a relay does comes too late: another
one may have done it, and carried out later rows of the id after that.

A row that is ``gone`` has no task any more, and remembers one of the outbox: a push of it that is repeated, by a relay
that had stood still, finds it.
"""

from __future__ import annotations

TABLE = "shardq_far"
OWNER = "shardq_far_engine"

IN_TIME = "{now} <= :latest"
FAR = f"due > {{now}} + :far AND NOT gone AND {IN_TIME}"

READ_OWNER = f"SELECT engine, identity, ahead FROM {OWNER}"
CLAIM_OWNER = f"""
INSERT INTO {OWNER} (number, engine, identity, ahead) VALUES (1, :engine, :identity, :ahead) ON CONFLICT DO NOTHING"""
"""The key is the same for all: of several that begin at once, one makes the identity."""

CLOCK = "SELECT {now}"

COLUMNS = "id, due, tags, record, until, known, nonce, rule"

INSERT = f"""
INSERT INTO {TABLE} (id, due, tags, record)
SELECT :id, :due, :tags, :record WHERE :due > {{now}} + :far
ON CONFLICT DO NOTHING"""

ADD = f"""
INSERT INTO {TABLE} (id, due, tags, record, until, known, nonce, rule)
SELECT :id, :due, :tags, :record, :until, :known, :nonce, :rule WHERE {IN_TIME}
ON CONFLICT (id) DO UPDATE SET due = excluded.due, tags = excluded.tags, record = excluded.record,
  until = excluded.until, known = excluded.known, nonce = excluded.nonce, rule = excluded.rule, gone = FALSE
WHERE {TABLE}.gone AND {TABLE}.nonce = :was"""
"""A push of the outbox, also of what is near: that is moved at once, by who adds it, or by a loader. It takes the place
of a row that is gone, if that is the one which was read.
"""

REPLACE = f"""
UPDATE {TABLE} SET due = :due, tags = :tags, record = :record, until = :until, known = :known, nonce = :nonce,
  rule = :rule
WHERE id = :id AND {FAR} AND coalesce(nonce, -1) = :was"""

FIND = f"SELECT {COLUMNS}, due > {{now}} + :far, gone FROM {TABLE} WHERE id {{among}}"

FORGOTTEN = f"DELETE FROM {TABLE} WHERE gone AND until < {{now}} AND known < {{now}}"

CANCEL = f"DELETE FROM {TABLE} WHERE id {{among}} AND {FAR} AND nonce IS NULL"
LEAVE = f"UPDATE {TABLE} SET gone = TRUE, record = :nothing, tags = NULL WHERE id {{among}} AND {FAR}"
"""Cancels rows of the outbox, which are remembered."""

MOVE = f"UPDATE {TABLE} SET due = :to WHERE id {{among}} AND {FAR}"

FORGET_KNOWN = f"""
UPDATE {TABLE} SET gone = TRUE, record = :nothing, tags = NULL
WHERE id = :id AND due = :due AND nonce = :nonce AND NOT gone"""

COUNT = f"SELECT count(*) FROM (SELECT 1 FROM {TABLE} WHERE NOT gone LIMIT :most) AS counted"
FIRST = f"SELECT min(due) FROM {TABLE} WHERE NOT gone"

NEAR = f"""
SELECT {COLUMNS} FROM (
  SELECT page.*, sum(length(record)) OVER (ORDER BY due, id) - length(record) AS before FROM (
    SELECT {COLUMNS} FROM {TABLE}
    WHERE NOT gone AND (due, id) > (:due, :id) AND due <= :last AND due <= {{now}} + :within
      AND ((hashtext(id) & 2147483647) % :members = :member OR due <= {{now}} + :overdue)
    ORDER BY due, id LIMIT :most
  ) AS page
) AS sized WHERE before < :bytes ORDER BY due, id"""
"""A page of the rows to load, of at most ``:bytes``, behind another: the caller's share, and what is overdue."""

END_OF_LOOK = f"""
SELECT id FROM {TABLE} WHERE id > :after AND id < :end ORDER BY id LIMIT 1 OFFSET :look"""
"""The id up to which a list is looked through: so many rows behind another one."""


def listed(filters: str) -> str:
    """By their ids, which never change: one that is rescheduled meanwhile is not missed."""
    return f"""
SELECT {COLUMNS}, due > {{now}} + :far FROM {TABLE}
WHERE NOT gone AND id > :after AND id <= :end{filters}
ORDER BY id LIMIT :most"""


DROP = f"""
DELETE FROM {TABLE} WHERE id IN (
  SELECT id FROM {TABLE} WHERE NOT gone AND due < :before ORDER BY due LIMIT :most
)"""

SPANS = f"""
SELECT (due - :begin) / :step AS span, count(*) FROM {TABLE}
WHERE NOT gone AND due >= :begin AND due < :end GROUP BY span"""
"""The rows of so many ms each, from an instant on."""
