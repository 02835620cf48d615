"""The statements of the table, for both databases. ``{now}`` is the database's clock in ms, ``FAR`` says that a row
belongs to the table alone: its due time is past that clock by more than ``:far``. No statement that changes a row
leaves that out, but for those that remove what Redis has. After ``:latest``, what a relay does comes too late: another
one may have done it, and carried out later rows of the id after that.

A row that is ``gone`` has no task any more. One of the outbox is remembered: a push of it that is repeated, by a relay
that had stood still, finds it. One that still has its record was *sent* to Redis by a command, and is not *confirmed*:
a power cut may take its task from Redis, so a loader sends it once more, and removes it when replicas and disk have it.
"""

from __future__ import annotations

TABLE = "shardq_far"
OWNER = "shardq_far_engine"

IN_TIME = "{now} <= :latest"
FAR = f"due > {{now}} + :far AND NOT gone AND {IN_TIME}"

READ_OWNER = f"SELECT engine, identity, ahead, former, changed, beat, halted FROM {OWNER}"
CLAIM_OWNER = f"""
INSERT INTO {OWNER} (number, engine, identity, ahead, former, changed, beat, halted)
VALUES (1, :engine, :identity, :ahead, :ahead, 0, {{now}}, '') ON CONFLICT DO NOTHING"""
"""The key is the same for all: of several that begin at once, one makes the identity."""

CHANGE_AHEAD = f"""
UPDATE {OWNER} SET former = ahead, ahead = :ahead, changed = {{now}} WHERE ahead = :was AND changed = :changed"""

GIVE_OUT = f"UPDATE {OWNER} SET beat = CASE WHEN beat < {{now}} THEN {{now}} ELSE beat + 1 END RETURNING beat"
HALT = f"UPDATE {OWNER} SET halted = :why WHERE beat = :beat AND halted <> :why"
ACCEPT = f"UPDATE {OWNER} SET beat = CASE WHEN beat < :beat THEN :beat ELSE beat END, halted = ''"

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

FORGOTTEN = f"DELETE FROM {TABLE} WHERE gone AND coalesce(until, 0) < {{now}} AND known < {{now}}"

CANCEL = f"DELETE FROM {TABLE} WHERE id {{among}} AND {FAR} AND nonce IS NULL"
LEAVE = f"UPDATE {TABLE} SET gone = TRUE, record = :nothing, tags = NULL WHERE id {{among}} AND {FAR}"
"""Cancels rows of the outbox, which are remembered."""

MOVE = f"UPDATE {TABLE} SET due = :to WHERE id {{among}} AND {FAR}"

IS_SENT = "gone AND length(record) > 0"

SENT = f"""
UPDATE {TABLE} SET gone = TRUE, known = CASE WHEN known > {{now}} + :memory THEN known ELSE {{now}} + :memory END
WHERE id {{among}} AND coalesce(nonce, -1) = :nonce AND NOT gone"""
"""Notes rows that Redis has, and knows for so long."""

FORGET_KNOWN = f"""
UPDATE {TABLE} SET gone = TRUE, record = :nothing, tags = NULL
WHERE id = :id AND due = :due AND nonce = :nonce AND (NOT gone OR {IS_SENT})"""

COUNT = f"SELECT count(*) FROM (SELECT 1 FROM {TABLE} WHERE NOT gone LIMIT :most) AS counted"
FIRST = f"SELECT min(due) FROM {TABLE} WHERE NOT gone"


def _to_send(which: str) -> str:
    """A page of rows, of at most ``:bytes``, behind another."""
    return f"""
SELECT {COLUMNS} FROM (
  SELECT page.*, sum(length(record)) OVER (ORDER BY due, id) - length(record) AS before FROM (
    SELECT {COLUMNS} FROM {TABLE} WHERE {which} AND (due, id) > (:due, :id) ORDER BY due, id LIMIT :most
  ) AS page
) AS sized WHERE before < :bytes ORDER BY due, id"""


_SHARE = "(hashtext(id) & 2147483647) % :members = :member"

NEAR = _to_send(f"NOT gone AND due <= :last AND due <= {{now}} + :within AND ({_SHARE} OR due <= {{now}} + :overdue)")
"""The rows to load: the caller's share, and what is overdue."""

UNCONFIRMED = _to_send(f"{IS_SENT} AND known > {{now}} AND ({_SHARE} OR known <= {{now}} + :hurry)")
"""The rows that commands have sent: the caller's share, and what Redis will soon have forgotten."""

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
