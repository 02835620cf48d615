"""The bytes that the page about the outbox names were measured."""

from __future__ import annotations

import re
from contextlib import closing

import pytest
import sqlalchemy as sa

import shardq
from shardq import outbox
from shardq.core.calls.request import Command
from shardq.core.layout.keys import shard_keys
from shardq.engine.access import EngineAccess
from shardq.engine.wiring import connected
from tests.support.pages import page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "id"), [(r"(\d+) bytes\s+of\s+Redis", None), (r"(\d+) with\s+an\s+id\s+of\s+your\s+own", "{:015}")]
)
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_moved_row_takes_what_the_page_says(url: str, name: str, said: str, id: str | None) -> None:
    [figure] = re.findall(said, page("outbox"))
    database, rows = sa.create_engine("sqlite://"), 10_000
    outbox.create(database)
    with database.begin() as connection:
        tasks = [shardq.Task(n, topic="mail", id=id and id.format(n)) for n in range(rows)]
        outbox.push_many(connection, tasks)
    engine, seen = shardq.Engine(url, name=name, shards=1), shard_keys(name, 0).seen
    with closing(outbox.OutboxRelay(engine, database)) as relay, connected(EngineAccess(engine).options) as driver:
        while relay.step():
            pass
        taken = driver.call(Command(shard_keys(name, 0).slot, ["MEMORY", "USAGE", seen, "SAMPLES", "0"], int))
    assert int(figure) == pytest.approx(taken / rows, rel=0.5)
