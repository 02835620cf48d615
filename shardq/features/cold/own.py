"""Rows under ids of the caller's own: what is known of such an id in the table, and what a push of it does there.

Such an id may be pushed by several at once, and may be in Redis. So a push looks in the table, then in Redis, and then
adds its row, near or far, unless a row was added under the id meanwhile: each id has a stripe, whose version was read
first, and is raised by each row that is added. No lock is held while Redis is asked. What is near is moved then, as any
row: a push never stores such a task in Redis by itself, where it could cross another push that found neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import mmh3

from shardq.core.calls.request import Word
from shardq.core.model.checks import OnConflict
from shardq.core.model.ids import topic_of
from shardq.core.model.record import dated, has_head, nonce_of, undecoded
from shardq.features.cold import statements as sql
from shardq.features.cold.ids import LAST_BUCKET, bucket_of
from shardq.features.cold.rows import Row, tags_text
from shardq.features.cold.store import STRIPE_COUNT, Session, Store, row_of

TOGETHER = 100
"""Ids that are looked for, and added, together."""


class Remembered(NamedTuple):
    """A row that was cancelled, as it is remembered."""

    until: int
    known: int
    nonce: int | None


@dataclass(frozen=True, slots=True)
class Known:
    """An id, as the table knows it."""

    version: int
    """The version of its stripe, before all else was read."""
    row: Row | None
    far: bool
    remembered: Remembered | None

    def said_to(self, push: Push, *, in_doubt: bool, now_ms: float) -> str | None:
        """The answer to a push, as of ``push_unique``; None where Redis has to be asked, or a far row is to be
        replaced.
        """
        if self.row is not None:
            if in_doubt and nonce_of(self.row.record) == push.nonce:
                return "pushed"
            if not self.far or push.rule == "replace":
                return None
            return "kept:scheduled" if push.rule == "keep" else "refused:scheduled"
        was = self.remembered
        if was is not None and in_doubt and was.nonce == push.nonce and was.known > now_ms:
            return "pushed"
        return None

    def seen_by(self, push: Push, *, now_ms: float) -> str | None:
        """The answer where Redis has no task of the id; None where it may be added."""
        if self.far or self.remembered is None or self.remembered.until <= now_ms or push.rule == "replace":
            return None
        return "seen" if push.rule == "keep" else "refused:seen"


class Push:
    """A push of one id."""

    def __init__(self, words: Sequence[Any], now_ms: int, seq: int) -> None:
        """``words``: those of ``push_unique``. Their times count from now."""
        id, word, record, rule, dedup = words
        self.words: list[Word] = list(words)
        self.id: str = id
        self.rule: OnConflict = rule
        window, memory, *_ = *str(dedup).split("-"), ""
        self.nonce: int | None = nonce_of(record)
        due, tags = word if word > 0 else now_ms - word, None
        if has_head(record):
            record, tags = dated(record, now_ms), tags_text(undecoded(record).content.tags)
        self.row: Row = Row(
            bucket=min(bucket_of(due), LAST_BUCKET),
            seq=seq,
            due=due,
            topic=topic_of(id),
            tags=tags,
            record=record,
            name=id,
            until=now_ms + int(window) if int(window) else 0,
            known=now_ms + int(memory) if memory else 0,
            rule="replace" if rule == "replace" else "keep",
        )

    def after(self, known: Known) -> Row:
        """Returns its row, to take the place of the known one. A window stays open."""
        until = max((each.until for each in (known.row, known.remembered) if each is not None), default=0)
        return self.row._replace(until=max(until, self.row.until))


def stripe_of(id: str) -> int:
    return mmh3.hash(id.encode(), signed=False) % STRIPE_COUNT


def known_of(store: Store, ids: Sequence[str], deadline: float) -> dict[str, Known]:
    """Reads the facts that the table has of ids."""

    def work(session: Session, _: bool) -> dict[str, Known]:
        stripes = sorted({stripe_of(id) for id in ids})
        # The versions first: a row that is added after that raises one, and any earlier one is seen.
        versions = dict(store.run_among(session, sql.LOOK_STRIPES, stripes))
        far_ms = {"far": store.horizon.far_ms}
        rows = {row[6]: row for row in store.run_among(session, sql.FIND_OWN, ids, far_ms)}
        windows = {id: Remembered(*rest) for id, *rest in store.run_among(session, sql.LOOK_WINDOWS, ids)}
        return {
            id: Known(
                versions[stripe_of(id)],
                row_of(rows[id]) if id in rows else None,
                id in rows and bool(rows[id][-1]),
                windows.get(id),
            )
            for id in ids
        }

    return store.attempt(work, deadline)


def add(
    store: Store, pushes: Mapping[str, Push], known: Mapping[str, Known], deadline: float
) -> dict[str, bool | None]:
    """Adds the rows of ids that are free, and replaces far ones. Returns for each id whether that was done; None where
    it may have been, as an answer was lost. Those of False are to be looked for again.
    """
    at_once = sorted(
        (push for id, push in pushes.items() if known[id].row is None), key=lambda push: stripe_of(push.id)
    )
    replacing = [push for id, push in pushes.items() if known[id].row is not None]

    def values(push: Push) -> dict[str, Any]:
        return push.after(known[push.id])._asdict() | {"nonce": push.nonce}

    def work(session: Session, again: bool) -> dict[str, bool | None]:
        done: dict[str, bool | None] = {}
        raised: dict[int, int] = {}
        # in the order of stripes, so that two that add several never wait for each other
        with session.transaction() if len(at_once) > 1 else nullcontext():
            for push in at_once:
                stripe = stripe_of(push.id)
                version = known[push.id].version + raised.get(stripe, 0)
                added = store.add_own(session, values(push) | {"stripe": stripe, "version": version})
                raised[stripe] = raised.get(stripe, 0) + added
                done[push.id] = bool(added)
        for push in replacing:  # each by itself: others lock rows in other orders
            done[push.id] = bool(
                session.change(store.text(sql.REPLACE_OWN), values(push) | {"far": store.horizon.far_ms})
            )
        return {id: yes or (None if again else False) for id, yes in done.items()}

    return store.attempt(work, deadline)
