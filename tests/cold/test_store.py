"""The table by itself, in both databases."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

import pytest

from shardq.errors import InvalidUrl
from shardq.features.cold.databases import open_store
from shardq.features.cold.ids import HOUR_MS, Place, bucket_of
from shardq.features.cold.postgres import PostgresSession, PostgresStore
from shardq.features.cold.rows import Horizon, Row
from shardq.features.cold.statements import COLD, NAMED
from shardq.features.cold.store import LOOK, NONE, Filtered, Session, Store
from tests.cold.conftest import later

FAR_MS = 2 * HOUR_MS

numbers = itertools.count()


def row(store: Store, after_ms: int = FAR_MS, **columns: Any) -> Row:
    due = int(store.now_ms) + after_ms
    usual = Row(bucket_of(due), next(numbers), due, "mail", None, b"\x11{}")
    return usual._replace(**columns)


def add(store: Store, *rows: Row) -> None:
    assert store.insert(rows, later()) == ["stored"] * len(rows)


def there(store: Store, row: Row) -> bool:
    found = store.find(row.id, later())
    assert found is None or found[0].record == row.record
    return found is not None


@pytest.mark.parametrize("count", [1, 2, 300])
def test_far_rows_are_added(store: Store, count: int) -> None:
    rows = [row(store) for _ in range(count)]
    add(store, *rows)
    for each in rows:
        assert store.find(each.id, later()) == (each, True)
    assert store.counted(later()).rows == count


def test_near_rows_are_not(store: Store) -> None:
    rows = [row(store), row(store, 60_000), row(store)]
    assert store.insert(rows, later()) == ["stored", "near", "stored"]
    assert store.insert([row(store, 60_000)], later()) == ["near"]
    assert store.counted(later()).rows == 2


@pytest.mark.parametrize("beside", [0, 1])
def test_a_place_that_is_taken(store: Store, beside: int) -> None:
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

    from shardq.features.cold.store import Lost

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


@pytest.mark.parametrize("named", [False, True])
def test_cancel(store: Store, named: bool) -> None:
    one, other = row(store), row(store)
    add(store, one, other)
    if named:
        assert store.reschedule(one.id, one.due + 1, later()) == "done"
    assert store.cancel(one.id, later()) == "done"
    assert store.cancel(one.id, later()) == "not far"
    assert not there(store, one)
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
    other = one._replace(topic="sms")
    assert store.find(other.id, later()) is None
    assert store.cancel(other.id, later()) == "not far"
    assert store.reschedule(other.id, one.due, later()) == "not far"
    assert there(store, one)


def test_reschedule(store: Store) -> None:
    one = row(store, tags="\na\n")
    add(store, one)
    for to in (one.due + 5 * HOUR_MS, one.due + 400 * 24 * HOUR_MS, one.due, one.due - FAR_MS):
        assert store.reschedule(one.id, to, later()) == "done"
        moved = one._replace(due=to, bucket=bucket_of(to), name=one.id)
        assert store.find(one.id, later()) == (moved, to >= one.due)
    assert store.counted(later()).rows == 1
    # near by now: it is Redis' alone
    assert store.reschedule(one.id, one.due, later()) == "not far"
    assert store.cancel(one.id, later()) == "not far"


def test_what_is_more_than_a_year_away_is_found_by_its_name(store: Store) -> None:
    one = row(store, 3 * 365 * 24 * HOUR_MS)
    one = one._replace(name=one.id)
    add(store, one, row(store))
    assert store.find(one.id, later()) == (one, True)
    assert store.cancel(one.id, later()) == "done"


BEGIN = Place(0, -1)
ALL = Filtered()


def near(store: Store, table: str = COLD, after: Place = BEGIN, **options: Any) -> list[Row]:
    usual = {"members": 1, "member": 0, "most": 1000, "bytes": 1 << 20, "deadline": later()}
    return store.near(table, after, **{**usual, **options})


def come_nearer(store: Store, *rows: Row, by_ms: int) -> list[Row]:
    """The same rows as if time had passed."""
    moved = [each._replace(due=each.due - by_ms, bucket=bucket_of(each.due - by_ms)) for each in rows]
    far, store.horizon = store.horizon, type(store.horizon)(0, -100 * HOUR_MS)
    add(store, *moved)
    store.horizon = far
    return moved


def test_near_rows_in_their_order(store: Store) -> None:
    rows = come_nearer(store, *(row(store, number * 600_000) for number in range(1, 9)), by_ms=HOUR_MS)
    expected = sorted((each for each in rows if each.due <= store.now_ms + HOUR_MS), key=lambda each: each.place)
    assert near(store) == expected
    assert near(store, after=expected[2].place) == expected[3:]
    assert near(store, most=3) == expected[:3]
    assert near(store, bytes=5) == expected[:2]
    assert near(store, NAMED) == []


def test_a_row_larger_than_a_page_goes_alone(store: Store) -> None:
    rows = come_nearer(store, *(row(store, record=bytes(100)) for _ in range(3)), by_ms=2 * HOUR_MS)
    assert near(store, bytes=10) == [min(rows, key=lambda each: each.place)]


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
    bucket = bucket_of(int(store.now_ms) + FAR_MS)
    add(store, *(row(store)._replace(bucket=bucket) for _ in range(count)))
    before = read(store)
    store.horizon = Horizon(24 * HOUR_MS)
    assert len(near(store, most=page)) == page
    assert read(store) - before < 3 * page
    before = read(store)
    assert len(store.page(ALL, BEGIN, page, later()).rows) == page
    assert read(store) - before < 2 * LOOK + 3 * page, "to its end, and what is between"


def read(store: Store) -> int:
    """How many rows PostgreSQL has read for what was asked on the store's connection."""

    def work(session: Session, _: bool) -> int:
        session.run("SELECT pg_stat_force_next_flush()")
        session.run("SELECT 1")
        reads = "sum(seq_tup_read + coalesce(idx_tup_fetch, 0))"
        [(rows,)] = session.run(f"SELECT {reads} FROM pg_stat_user_tables WHERE relname LIKE '{COLD}%'")
        return int(rows)

    return store.attempt(work, later())


@pytest.mark.parametrize("named", [False, True])
def test_what_redis_has_is_forgotten_unless_it_has_another_time_by_now(store: Store, named: bool) -> None:
    rows = [row(store), row(store)]
    add(store, *rows)
    if named:
        for each in rows:
            store.reschedule(each.id, each.due + 1, later())
        found = [store.find(each.id, later()) for each in rows]
        rows = [each[0] for each in found if each]
    store.reschedule(rows[0].id, rows[0].due + 5, later())
    store.forget(rows, later())
    assert there(store, rows[0])
    assert not there(store, rows[1])


def listed(store: Store, asked: Filtered = ALL, limit: int = 7) -> list[Row]:
    rows = list[Row]()
    after: Place | str | None = BEGIN
    while after is not None:
        page = store.page(asked, after, limit, later())
        rows += [each for each, _ in page.rows]
        after = page.after
    return rows


def test_lists(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardq.features.cold.store.LOOK", 5)
    rows = [row(store, FAR_MS + number * HOUR_MS, topic=f"t{number % 2}") for number in range(20)]
    rows += [row(store, FAR_MS + number, tags="\na\nb c\nü\n") for number in range(3)]
    add(store, *rows)
    moved = []
    for each in rows[:6]:
        store.reschedule(each.id, each.due + 1, later())
        moved.append(each._replace(due=each.due + 1, bucket=bucket_of(each.due + 1), name=each.id))
    rows = [*moved, *rows[6:]]
    assert sorted(listed(store)) == sorted(rows)
    assert sorted(listed(store, limit=1)) == sorted(rows)
    assert sorted(listed(store, Filtered(topic="t1"))) == sorted(each for each in rows if each.topic == "t1")
    assert sorted(listed(store, Filtered(tag="b c"))) == sorted(rows[20:])
    assert sorted(listed(store, Filtered(tag="ü"))) == sorted(rows[20:])
    assert listed(store, Filtered(tag="b")) == []
    begin, end = rows[3].due, rows[9].due
    assert sorted(listed(store, Filtered(begin_ms=begin, end_ms=end))) == sorted(
        each for each in rows if begin <= each.due < end
    )


def test_counts_by_time(store: Store) -> None:
    rows = [row(store)]
    rows += [rows[0]._replace(seq=next(numbers), due=rows[0].due + number * HOUR_MS) for number in range(1, 5)]
    add(store, *(each._replace(bucket=bucket_of(each.due)) for each in rows))
    assert store.spans(rows[0].due - FAR_MS, HOUR_MS, 4, later()) == [0, 0, 1, 1, 3]


def test_what_is_due_before_an_instant_is_dropped(store: Store) -> None:
    rows = [row(store, FAR_MS + number * HOUR_MS // 2) for number in range(6)]
    add(store, *rows)
    store.reschedule(rows[1].id, rows[1].due + 1, later())  # it is found by its name now
    assert store.drop(rows[3].due, 10) == 3
    assert [there(store, each) for each in rows if each is not rows[1]] == [False, False, True, True, True]
    assert store.drop(rows[3].due, 10) == 0
    assert store.counted(later()).rows == 3


def counts(store: Store) -> tuple[int, bool, bool]:
    counted = store.counted(later())
    return counted.rows, counted.exact, counted.at_least


def test_of_many_it_is_told_what_the_number_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact, the database's estimate, or so many at least. The partitions of two days count once."""
    add(store, *(row(store, FAR_MS + number % 2 * 24 * HOUR_MS) for number in range(20)))
    assert counts(store) == (20, True, False)
    monkeypatch.setattr("shardq.features.cold.store.EXACT", 10)
    assert counts(store) == (10, False, True)
    if isinstance(store, PostgresStore):
        store.attempt(lambda session, _: session.run(f"ANALYZE {COLD}"), later())
        assert counts(store) == (20, False, False)
        # what comes after that is seen by its size
        add(store, *(row(store, record=b"x" * 1000) for _ in range(40)))
        assert store.counted(later()).rows > 20


def test_all_of_a_page_get_another_due_time(store: Store) -> None:
    rows = [row(store, FAR_MS + number * HOUR_MS) for number in range(6)]
    gone, near, moved, *others = rows
    add(store, *(each for each in rows if each is not gone))
    store.reschedule(moved.id, moved.due + 1, later())  # it is found by its name now
    [named] = [each for each, _ in store.page(Filtered(), "", 9, later()).rows]
    store.attempt(lambda session, _: session.change(f"UPDATE {COLD} SET due = 1 WHERE seq = {near.seq}"), later())
    to = moved.due + 100 * HOUR_MS
    done = store.reschedule_all([gone, near, named, *others], to, later())
    assert sorted(done) == sorted(each.id for each in (moved, *others))
    for each in (moved, *others):
        found = store.find(each.id, later())
        assert found is not None
        assert (found[0].due, found[0].bucket, found[0].record, found[0].name) == (
            to,
            bucket_of(to),
            each.record,
            each.id,
        )
    assert store.reschedule_all([], to, later()) == []


def test_all_of_a_page_after_a_lost_answer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(store) for _ in range(5)]
    add(store, *rows)
    lose_answers(store, monkeypatch, 1)
    assert sorted(store.reschedule_all(rows, rows[0].due + HOUR_MS, later())) == sorted(each.id for each in rows)


def test_a_page_of_a_list_reads_no_partition_behind_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    if not isinstance(store, PostgresStore):
        pytest.skip("a table in SQLite has no parts")
    add(store, *(row(store, FAR_MS + number * 24 * HOUR_MS) for number in range(9)))
    monkeypatch.setattr("shardq.features.cold.store.LOOK", 3)
    plans: list[str] = []
    run = PostgresSession.run

    def explained(session: PostgresSession, statement: str, values: Any = NONE) -> list[tuple[Any, ...]]:
        if "end_bucket" in statement:
            plans.append("\n".join(line for (line,) in run(session, f"EXPLAIN {statement}", values)))
        return run(session, statement, values)

    monkeypatch.setattr(PostgresSession, "run", explained)
    assert len(store.page(Filtered(), Place(0, -1), 100, later()).rows) == 3
    assert plans[0].count(f" on {COLD}_") <= 4, plans[0]


# ---- whose it is


def test_a_table_keeps_its_identity(store: Store, database: str, name: str) -> None:
    other = open_store(database)
    try:
        assert other.open(name, later()) == store.open(name, later())
        with pytest.raises(InvalidUrl, match="belongs to the engine"):
            other.open("another", later())
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
        identities = set(threads.map(lambda each: each.open(name, later()), stores))
    for each in stores:
        each.close()
    assert len(identities) == 1


@pytest.mark.parametrize(
    "url", ["mysql://host/shop", "redis://127.0.0.1", "sqlite://", "postgresql://host:port:x/[", "http://x"]
)
def test_urls_that_name_no_database(url: str) -> None:
    with pytest.raises(InvalidUrl, match="cold="):
        open_store(url)


def test_a_password_is_not_told() -> None:
    assert (
        open_store("postgresql+psycopg://app:secret@db.example:5433/shop").where == "postgresql://db.example:5433/shop"
    )


# ---- partitions


def partitions(store: Store) -> set[int]:
    def work(session: Session, _: bool) -> set[int]:
        from shardq.features.cold.postgres import _PARTITIONS

        return {int(name.rpartition("_")[2]) for (name,) in session.run(_PARTITIONS)}

    return store.attempt(work, later())


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_days_come_and_go(store: Store, database: str, name: str) -> None:
    assert isinstance(store, PostgresStore)
    rows = [row(store, FAR_MS + number * 24 * HOUR_MS) for number in range(3)]
    add(store, *rows)
    days = {each.bucket // 24 for each in rows}
    assert partitions(store) == days
    store.forget(rows[:2], later())
    store.tidied(rows[1].bucket // 24 * 24, later())
    assert partitions(store) == days - {rows[0].bucket // 24}
    store.tidied(rows[2].bucket + 100, later())
    assert partitions(store) == {rows[2].bucket // 24}, "one with rows stays"
    again = open_store(database)
    try:
        again.horizon = store.horizon
        again.open(name, later())
        again.insert([row(again, FAR_MS), row(again, FAR_MS)], later())
        add(store, row(store, FAR_MS), row(store, FAR_MS + 24 * HOUR_MS))
    finally:
        again.close()
    assert partitions(store) == days


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_partition_that_another_process_has_dropped(store: Store) -> None:
    one = row(store)
    add(store, one)
    store.forget([one], later())
    day = one.bucket // 24
    store.attempt(lambda session, _: session.run(f"DROP TABLE {COLD}_{day}"), later())
    add(store, row(store))
    add(store, row(store), row(store))
