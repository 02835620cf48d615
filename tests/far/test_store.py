"""The table by itself, in both databases."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

import pytest

from shardq.core.model.ids import Ids
from shardq.errors import InvalidUrl, Unavailable
from shardq.features.far.far import open_store
from shardq.features.far.postgres import PostgresStore
from shardq.features.far.rows import Horizon, Row, far_id
from shardq.features.far.statements import OWNER, TABLE
from shardq.features.far.store import LOOK, Filtered, Session, Store
from tests.far.conftest import later

HOUR_MS = 3_600_000
FAR_MS = 2 * HOUR_MS
NONE_MS = 1 << 50
"""An instant until when a row may be added."""

ids = Ids()
nonces = itertools.count(1)


def row(store: Store, after_ms: int = FAR_MS, topic: str = "mail", **columns: Any) -> Row:
    usual = Row(far_id(ids.one(topic=topic)), int(store.now_ms) + after_ms, None, b"\x11{}")
    return usual._replace(**columns)


def known(store: Store, after_ms: int = FAR_MS, **columns: Any) -> Row:
    """A row of the outbox."""
    return row(store, after_ms, known=int(store.now_ms) + HOUR_MS, nonce=next(nonces), **columns)


def add(store: Store, *rows: Row) -> None:
    assert store.insert(rows, later()) == ["stored"] * len(rows)


def there(store: Store, row: Row) -> bool:
    found = [each for each in store.find([row.id], later()) if not each.is_gone]
    assert not found or found[0].row.record == row.record
    return bool(found)


@pytest.mark.parametrize("count", [1, 2, 300])
def test_far_rows_are_added(store: Store, count: int) -> None:
    rows = [row(store) for _ in range(count)]
    add(store, *rows)
    for each in rows:
        assert store.find([each.id], later()) == [(each, True, False)]
    assert store.counted(later()).rows == count


def test_near_rows_are_not(store: Store) -> None:
    rows = [row(store), row(store, 60_000), row(store)]
    assert store.insert(rows, later()) == ["stored", "near", "stored"]
    assert store.insert([row(store, 60_000)], later()) == ["near"]
    assert store.counted(later()).rows == 2


@pytest.mark.parametrize("beside", [0, 1])
def test_an_id_that_is_taken(store: Store, beside: int) -> None:
    """Also by the same content: only who sends it again may take it for its own."""
    first = row(store)
    add(store, first)
    others = [row(store) for _ in range(beside)]
    assert store.insert([first, *others], later()) == ["taken"] + ["stored"] * beside
    assert store.insert([first._replace(record=b"\x11[]")], later()) == ["taken"]


def test_what_was_stored_by_a_lost_send(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(store), row(store)]
    for some in (rows, [row(store)]):
        lose_answers(store, monkeypatch, 1)
        add(store, *some)
        assert all(there(store, each) for each in some)


def lose_answers(store: Store, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The connection ends after the next so many calls were carried out."""
    from contextlib import contextmanager

    from shardq.features.far.store import Lost

    left = [count]
    session_of = store._session

    @contextmanager
    def losing(deadline: float) -> Any:
        with session_of(deadline) as session:
            yield session
            if left[0]:
                left[0] -= 1
                raise Lost("it was cut", sent=True)

    monkeypatch.setattr(store, "_session", losing)


@pytest.mark.parametrize("of_outbox", [False, True])
def test_cancel(store: Store, of_outbox: bool) -> None:
    one, other = known(store) if of_outbox else row(store), row(store)
    add(store, other)
    if of_outbox:
        assert store.add([(one, -1, NONE_MS)], later()) == [True]
    else:
        add(store, one)
    assert store.cancel(one.id, later()) == "done"
    assert store.cancel(one.id, later()) == "not far"
    assert not there(store, one)
    assert len(store.find([one.id], later())) == of_outbox, "it is remembered"
    assert there(store, other)


def test_a_cancel_whose_answer_is_lost(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one = row(store)
    add(store, one)
    lose_answers(store, monkeypatch, 1)
    assert store.cancel(one.id, later()) == "unknown"
    assert not there(store, one)


def test_an_id_of_another_topic_is_not_it(store: Store) -> None:
    one = row(store)
    add(store, one)
    other = one._replace(id=one.id.replace("mail", "sms"))
    assert store.find([other.id], later()) == []
    assert store.cancel(other.id, later()) == "not far"
    assert store.reschedule(other.id, one.due, later()) == "not far"
    assert there(store, one)


def test_reschedule(store: Store) -> None:
    one = row(store, tags="\na\n")
    add(store, one)
    for to in (one.due + 5 * HOUR_MS, one.due + 400 * 24 * HOUR_MS, one.due, one.due - FAR_MS):
        assert store.reschedule(one.id, to, later()) == "done"
        assert store.find([one.id], later()) == [(one._replace(due=to), to >= one.due, False)]
    assert store.counted(later()).rows == 1
    # near by now: it is Redis' alone
    assert store.reschedule(one.id, one.due, later()) == "not far"
    assert store.cancel(one.id, later()) == "not far"


# ---- rows of the outbox


def test_a_row_is_added_once(store: Store) -> None:
    one = known(store)
    assert store.add([(one, -1, NONE_MS)], later()) == [True]
    assert store.add([(one, -1, NONE_MS)], later()) == [False]
    assert store.cancel(one.id, later()) == "done"
    assert store.add([(one, -1, NONE_MS)], later()) == [False], "it is remembered"
    other = known(store, id=one.id)
    assert store.add([(other, other.nonce or 0, NONE_MS)], later()) == [False], "another is remembered there"
    assert store.add([(other, one.nonce or 0, NONE_MS)], later()) == [True]
    assert store.find([one.id], later())[0].row == other


def test_a_row_that_comes_too_late_is_not_added(store: Store) -> None:
    one = known(store)
    assert store.add([(one, -1, int(store.now_ms) - 1000)], later()) == [False]
    assert not there(store, one)


def test_a_row_is_replaced_if_it_is_still_that_one(store: Store) -> None:
    one = known(store)
    store.add([(one, -1, NONE_MS)], later())
    two, three = known(store, id=one.id), known(store, id=one.id)
    assert store.replace([(two, one.nonce or 0, NONE_MS)], later()) == [True]
    assert store.replace([(three, one.nonce or 0, NONE_MS)], later()) == [False]
    assert store.find([one.id], later())[0].row == two


def test_what_redis_has_is_remembered_for_a_while(store: Store) -> None:
    one, short = known(store), known(store)._replace(known=1)
    store.add([(one, -1, NONE_MS), (short, -1, NONE_MS)], later())
    other = known(store, id=one.id, due=one.due)
    store.forget([other], later())
    assert there(store, one), "another task of the id"
    store.forget([one, short], later())
    assert not there(store, one)
    store.tidied(later())
    assert [each.row.id for each in store.find([one.id, short.id], later())] == [one.id]
    assert store.counted(later()).rows == 0


BEGIN = (0, "")
ALL = Filtered()


def near(store: Store, after: tuple[int, str] = BEGIN, **options: Any) -> list[Row]:
    usual = {"members": 1, "member": 0, "most": 1000, "bytes": 1 << 20, "deadline": later()}
    return store.near(after, **{**usual, **options})


def come_nearer(store: Store, *rows: Row, by_ms: int) -> list[Row]:
    """The same rows as if time had passed."""
    moved = [each._replace(due=each.due - by_ms) for each in rows]
    far, store.horizon = store.horizon, type(store.horizon)(0, -100 * HOUR_MS)
    add(store, *moved)
    store.horizon = far
    return moved


def test_near_rows_in_their_order(store: Store) -> None:
    rows = come_nearer(store, *(row(store, number * 600_000) for number in range(1, 9)), by_ms=HOUR_MS)
    expected = sorted(
        (each for each in rows if each.due <= store.now_ms + HOUR_MS), key=lambda each: (each.due, each.id)
    )
    assert near(store) == expected
    assert near(store, after=(expected[2].due, expected[2].id)) == expected[3:]
    assert near(store, most=3) == expected[:3]
    assert near(store, bytes=5) == expected[:2]


def test_a_row_larger_than_a_page_goes_alone(store: Store) -> None:
    rows = come_nearer(store, *(row(store, record=bytes(100)) for _ in range(3)), by_ms=2 * HOUR_MS)
    assert near(store, bytes=10) == [min(rows, key=lambda each: (each.due, each.id))]


def test_shares(store: Store) -> None:
    rows = come_nearer(store, *(row(store, 3_300_000) for _ in range(20)), by_ms=0)
    shares = [near(store, members=3, member=member) for member in range(3)]
    assert sorted(itertools.chain(*shares)) == sorted(rows)
    assert all(shares)
    overdue = come_nearer(store, *(row(store) for _ in range(3)), by_ms=2 * HOUR_MS)
    for member in range(3):
        assert set(overdue) <= set(near(store, members=3, member=member)), "everybody takes what is overdue"


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_page_reads_no_more_than_a_page(store: Store) -> None:
    """Also of a table that was filled this minute, of which PostgreSQL has no statistics."""
    count, page = 20_000, 100
    add(store, *(row(store) for _ in range(count)))
    before = read(store)
    store.horizon = Horizon(24 * HOUR_MS)
    assert len(near(store, most=page)) == page
    assert read(store) - before < 3 * page
    store.horizon = Horizon(60_000)
    before = read(store)
    assert near(store) == []
    assert read(store) - before < page, "what is far is not looked at"
    store.horizon = Horizon(24 * HOUR_MS)
    before = read(store)
    assert len(store.page(ALL, "", page, later()).rows) == page
    assert read(store) - before < 2 * LOOK + 3 * page, "to its end, and what is between"


def read(store: Store) -> int:
    """How many rows PostgreSQL has read for what was asked on the store's connection."""

    def work(session: Session, _: bool) -> int:
        session.run("SELECT pg_stat_force_next_flush()")
        session.run("SELECT 1")
        reads = "sum(seq_tup_read + coalesce(idx_tup_fetch, 0))"
        [(rows,)] = session.run(f"SELECT {reads} FROM pg_stat_user_tables WHERE relname = '{TABLE}'")
        return int(rows)

    return store.attempt(work, later())


def test_what_redis_has_is_forgotten_unless_it_has_another_time_by_now(store: Store) -> None:
    rows = [row(store), row(store)]
    add(store, *rows)
    store.reschedule(rows[0].id, rows[0].due + 5, later())
    store.forget(rows, later())
    assert there(store, rows[0])
    assert not there(store, rows[1])


def listed(store: Store, asked: Filtered = ALL, limit: int = 7) -> list[Row]:
    rows = list[Row]()
    after: str | None = ""
    while after is not None:
        page = store.page(asked, after, limit, later())
        rows += [each for each, _ in page.rows]
        after = page.after
    return rows


def test_lists(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardq.features.far.store.LOOK", 5)
    rows = [row(store, FAR_MS + number * HOUR_MS, topic=f"t{number % 2}") for number in range(20)]
    rows += [row(store, FAR_MS + number, tags="\na\nb c\nü\n") for number in range(3)]
    add(store, *rows)
    moved = []
    for each in rows[:6]:
        store.reschedule(each.id, each.due + 1, later())
        moved.append(each._replace(due=each.due + 1))
    rows = [*moved, *rows[6:]]
    assert sorted(listed(store)) == sorted(rows)
    assert sorted(listed(store, limit=1)) == sorted(rows)
    assert sorted(listed(store, Filtered(topic="t1"))) == sorted(each for each in rows if each.id.startswith("t1/"))
    assert sorted(listed(store, Filtered(tag="b c"))) == sorted(rows[20:])
    assert sorted(listed(store, Filtered(tag="ü"))) == sorted(rows[20:])
    assert listed(store, Filtered(tag="b")) == []
    begin, end = rows[3].due, rows[9].due
    assert sorted(listed(store, Filtered(begin_ms=begin, end_ms=end))) == sorted(
        each for each in rows if begin <= each.due < end
    )


def test_counts_by_time(store: Store) -> None:
    rows = [row(store)]
    rows += [row(store, due=rows[0].due + number * HOUR_MS) for number in range(1, 5)]
    add(store, *rows)
    assert store.spans(rows[0].due - FAR_MS, HOUR_MS, 4, later()) == [0, 0, 1, 1, 3]


def test_what_is_due_before_an_instant_is_dropped(store: Store) -> None:
    rows = [row(store, FAR_MS + number * HOUR_MS // 2) for number in range(6)]
    add(store, *rows)
    store.reschedule(rows[1].id, rows[1].due + 1, later())
    assert store.drop(rows[3].due, 10) == 3
    assert [there(store, each) for each in rows if each is not rows[1]] == [False, False, True, True, True]
    assert store.drop(rows[3].due, 10) == 0
    assert store.counted(later()).rows == 3


def counts(store: Store) -> tuple[int, bool, bool]:
    counted = store.counted(later())
    return counted.rows, counted.exact, counted.at_least


def test_of_many_it_is_told_what_the_number_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact, the database's estimate, or so many at least."""
    add(store, *(row(store) for _ in range(20)))
    assert counts(store) == (20, True, False)
    monkeypatch.setattr("shardq.features.far.store.EXACT", 10)
    assert counts(store) == (10, False, True)
    if isinstance(store, PostgresStore):
        store.attempt(lambda session, _: session.run(f"ANALYZE {TABLE}"), later())
        assert counts(store) == (20, False, False)
        # what comes after that is seen by its size
        add(store, *(row(store, record=b"x" * 1000) for _ in range(40)))
        assert store.counted(later()).rows > 20


def test_all_of_a_page_get_another_due_time(store: Store) -> None:
    rows = [row(store, FAR_MS + number * HOUR_MS) for number in range(6)]
    gone, near, *others = rows
    add(store, *(each for each in rows if each is not gone))
    store.attempt(lambda session, _: session.change(f"UPDATE {TABLE} SET due = 1 WHERE id = '{near.id}'"), later())
    to = gone.due + 100 * HOUR_MS
    done = store.reschedule_all([each.id for each in rows], to, later())
    assert sorted(done) == sorted(each.id for each in others)
    found = store.find(done, later())
    assert sorted(each.row for each in found) == sorted(each._replace(due=to) for each in others)


def test_all_of_a_page_after_a_lost_answer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(store) for _ in range(5)]
    add(store, *rows)
    lose_answers(store, monkeypatch, 1)
    ids = [each.id for each in rows]
    assert sorted(store.reschedule_all(ids, rows[0].due + HOUR_MS, later())) == sorted(ids)


# ---- whose it is


def test_a_table_keeps_its_identity(store: Store, database: str, name: str) -> None:
    other = open_store(database)
    try:
        assert other.open(name, 60.0, later()) == store.open(name, 3600.0, later())
        with pytest.raises(InvalidUrl, match="belongs to the engine"):
            other.open("another", 3600.0, later())
    finally:
        other.close()


def test_many_that_open_a_new_table_at_once_agree(database: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All find that there is none, make it, and then give it to the engine."""
    stores = [open_store(database) for _ in range(4)]
    together = Barrier(len(stores))

    def at_once(create: Callable[[Session], None], session: Session) -> None:
        together.wait(30)
        create(session)
        together.wait(30)

    for each in stores:
        monkeypatch.setattr(each, "create", partial(at_once, each.create))
    with ThreadPoolExecutor(len(stores)) as threads:
        identities = set(threads.map(lambda each: each.open(name, 3600.0, later()), stores))
    for each in stores:
        each.close()
    assert len(identities) == 1


@pytest.mark.parametrize(
    "url", ["mysql://host/shop", "redis://127.0.0.1", "sqlite://", "postgresql://host:port:x/[", "http://x"]
)
def test_urls_that_name_no_database(url: str) -> None:
    with pytest.raises(InvalidUrl, match="far="):
        open_store(url)


def test_a_password_is_not_told() -> None:
    assert (
        open_store("postgresql+psycopg://app:secret@db.example:5433/shop").where == "postgresql://db.example:5433/shop"
    )


def test_another_ahead(store: Store, database: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both count while somebody may go by the former one; then the new one, in every process."""
    other = open_store(database)
    other.open(name, 60.0, later())
    monkeypatch.setattr("shardq.features.far.store.CLOCK_S", -1.0)
    far_ms, hour_ms = store.horizon.far_ms, 3_600_000
    for ahead in (60.0, 60.0):
        owner = store.change_ahead(ahead, later())
        assert (owner.ahead, owner.former) == (60, 3600)
        assert abs(owner.changes_until - store.now_ms - far_ms) < 10_000
    assert other.counted(later()).rows == 0
    for each in (store, other):
        assert each.horizon.memory_ms == far_ms + hour_ms
        assert (each.horizon.ahead_ms, each.horizon.far_ms) == (60_000, far_ms)
    with pytest.raises(Unavailable, match="change it again in"):
        other.change_ahead(120.0, later())
    other.attempt(lambda session, _: session.change(f"UPDATE {OWNER} SET changed = changed - {far_ms}"), later())
    for each in (store, other):
        assert each.counted(later()).rows == 0
        assert (each.horizon.ahead_ms, each.horizon.far_ms) == (60_000, far_ms - hour_ms + 60_000)
    assert other.change_ahead(7200.0, later()).former == 60
    assert (other.horizon.ahead_ms, other.horizon.far_ms) == (60_000, far_ms + hour_ms)
    other.close()
