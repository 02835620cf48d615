"""What a PushError says of each task is what the server has, also where a call has an id more than once."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest

from shardq import Conflict, Engine, PushError, Task
from shardq.core.model.checks import OnConflict
from shardq.core.model.task import Receipt
from shardq.core.producer import packing
from tests.support.engines import SHARDS
from tests.support.servers import Servers, keys_of
from tests.support.states import FAR_S

IDS = [f"mine-{n}" for n in range(12)]


@pytest.fixture(params=[0, packing.CALL_BYTES], ids=["a task a call", "calls of a shard's"])
def call_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of records that a call has room for; a larger task goes alone."""
    monkeypatch.setattr(packing, "CALL_BYTES", request.param)


def outcomes(engine: Engine, tasks: list[Task]) -> tuple[PushError | None, list[str]]:
    """What a call says of each of its tasks: the outcome of its receipt, failed or unknown."""
    try:
        return None, [receipt.outcome for receipt in engine.push_many(tasks)]
    except PushError as exc:
        said = [
            id.outcome if isinstance(id, Receipt) else "failed" if id in exc.failed else "unknown" for id in exc.ids
        ]
        return exc, said


@pytest.mark.usefixtures("call_bytes")
@pytest.mark.parametrize("choice", ["keep", "reject", "replace"])
def test_ids_that_come_again_in_a_call(engine: Engine, choice: OnConflict) -> None:
    engine.push("before", id=IDS[0], delay=FAR_S)
    tasks = [Task([n, id], id=id, delay=FAR_S, on_conflict=choice) for n in range(3) for id in IDS]
    error, said = outcomes(engine, tasks)
    again = {"keep": "kept", "reject": "failed", "replace": "replaced"}[choice]
    assert said == [again, *["pushed"] * (len(IDS) - 1), *[again] * (2 * len(IDS))]
    if choice == "reject":
        assert error is not None
        assert error.ids == IDS * 3
        assert error.stored == IDS[1:]
        assert error.unknown == []
        assert set(error.failed) == set(IDS)
        assert all(isinstance(why, Conflict) for why in error.failed.values())
        assert str(error).startswith("11 of 36 tasks are stored, 25 are not, 0 have an unknown fate; ")
    stored = {id: engine.get(id) for id in IDS}
    round = 2 if choice == "replace" else 0
    assert {id: task and task.payload for id, task in stored.items()} == {
        id: "before" if id == IDS[0] and choice != "replace" else [round, id] for id in IDS
    }


@pytest.mark.square
@pytest.mark.parametrize("many", [True, False], ids=["push_many", "push_iter"])
def test_tasks_of_one_id_are_stored_in_their_order(
    engine: Engine, servers: Servers, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    """Servers without the script refuse the first calls, and take those that come after it."""
    monkeypatch.setattr(packing, "CALL_BYTES", 0)  # a call for each task
    tasks = [Task(n, id=IDS[n % 4], delay=FAR_S, on_conflict="replace") for n in range(4 * 32)]
    servers.ask_all("SCRIPT", "FLUSH")
    receipts = engine.push_many(tasks) if many else list(chain(*engine.push_iter(tasks)))
    assert [receipt.outcome for receipt in receipts] == ["pushed"] * 4 + ["replaced"] * (len(tasks) - 4)
    stored = [engine.get(id) for id in IDS[:4]]
    assert [task and task.payload for task in stored] == [task.payload for task in tasks[-4:]]


@pytest.mark.usefixtures("call_bytes")
@pytest.mark.parametrize("choice", ["keep", "reject", "replace"])
def test_ids_that_come_again_beside_a_shard_that_takes_nothing(
    engine: Engine, servers: Servers, choice: OnConflict
) -> None:
    broken = keys_of(engine.name, SHARDS)[1]
    servers.ask(broken.slot, "SET", broken.due, "not a sorted set")
    away = {id for id in IDS if engine.topology.shard_of(id) == 1}
    assert 0 < len(away) < len(IDS)
    tasks = [Task([n, id], id=id, delay=FAR_S, on_conflict=choice) for n in range(3) for id in IDS]
    error, said = outcomes(engine, tasks)
    assert error is not None
    servers.ask(broken.slot, "DEL", broken.due)
    there = {id for id in IDS if engine.get(id) is not None}
    assert there == set(IDS) - away
    told = {"keep": ["pushed", "kept", "kept"], "reject": ["pushed", "failed", "failed"]}
    for at, id in enumerate(IDS):
        expected = ["failed"] * 3 if id in away else told.get(choice, ["pushed", "replaced", "replaced"])
        assert said[at :: len(IDS)] == expected, id
    assert Counter(error.stored) == Counter(
        {id: sum(each != "failed" for each in said[at :: len(IDS)]) for at, id in enumerate(IDS) if id in there}
    )


@pytest.mark.parametrize(("choice", "outcome"), [("keep", "seen"), ("replace", "pushed")])
def test_a_push_in_a_dedup_window(engine: Engine, choice: OnConflict, outcome: str) -> None:
    """As the page says: a replacing push always counts, and its window begins anew."""
    for _ in range(2):
        engine.push("x", id="mine", delay=FAR_S, dedup=60, on_conflict="replace")
        engine.cancel("mine")
        assert engine.push("y", id="mine", delay=FAR_S, dedup=60, on_conflict=choice).outcome == outcome
        assert (engine.get("mine") is None) == (outcome == "seen")
        engine.cancel("mine")
        assert engine.push("z", id="mine", delay=FAR_S).outcome == "seen"
