"""push_many and push_iter: order, batches, and the report of what was not stored."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.server import Server
from shardq import Engine, PushError, ServerFault, Task, Unanswered, Unavailable
from shardq.core.model.ids import Ids
from shardq.core.producer import packing
from shardq.core.producer.packing import MOST_OF_SHARD, chunk_sizes
from shardq.errors import InvalidDelay
from tests.producer.gathered import calls_of
from tests.support.engines import SHARDS, Engines
from tests.support.servers import Servers, keys_of
from tests.support.states import FAR_S, counted, state_of
from tests.support.waiting import wait_until

CHUNK = MOST_OF_SHARD * SHARDS
"""Of push_iter, when it has grown."""


def far(payload: object, **options: object) -> Task:
    return Task(payload, delay=FAR_S, **options)  # type: ignore[arg-type]  # each by its own name


def test_ids_come_in_the_order_of_the_tasks(engine: Engine) -> None:
    tasks = [
        far(n, id=f"mine-{n}") if n % 3 == 0 else far(n, topic="email") if n % 3 == 1 else far(n, headers={"n": str(n)})
        for n in range(100)
    ]
    ids = engine.push_many(iter(tasks))
    assert len(set(ids)) == 100
    assert {id.outcome for id in ids} == {"pushed"}
    for n, id in enumerate(ids):
        task = engine.get(id)
        assert task is not None
        assert task.payload == n
        assert id == f"mine-{n}" if n % 3 == 0 else id.startswith("email/") == (n % 3 == 1)


def test_nothing_to_push(engine: Engine) -> None:
    assert engine.push_many([]) == []
    assert list(engine.push_iter([])) == []


def test_batches_are_bounded_in_bytes_too(engine: Engine) -> None:
    ids = engine.push_many([far("x" * 300_000) for _ in range(20)])
    assert engine.stats().scheduled == 20
    task = engine.get(ids[19])
    assert task is not None
    assert task.payload == "x" * 300_000


def test_of_ids_made_here_only_those_that_are_taken_are_made_anew(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that knows one of them stores none of the batch: the others are sent again as they are."""
    made = Ids.many
    monkeypatch.setattr(Ids, "many", lambda self, n, topic="": [f"made-{number}" for number in range(n)])
    engine.push_many([far("before"), far("before")])
    monkeypatch.setattr(Ids, "many", lambda self, n, topic="": [*made(self, n - 2, topic=topic), "made-0", "made-1"])
    receipts = engine.push_many([far(n) for n in range(40)])
    monkeypatch.undo()
    assert {"made-0", "made-1"}.isdisjoint(receipts)
    assert [task.payload for id in receipts if (task := engine.get(id))] == list(range(40))


def test_a_shard_that_can_not_take_its_batches(engine: Engine, servers: Servers, name: str) -> None:
    broken = keys_of(name, SHARDS)[2]
    servers.ask(broken.slot, "SET", broken.due, "not a sorted set")
    tasks = [far(n, id=f"mine-{n}") if n % 2 else far(n) for n in range(400)]
    with pytest.raises(PushError, match="WRONGTYPE") as caught:
        engine.push_many(tasks)
    error = caught.value
    lost = [id for id in error.ids if engine.topology.shard_of(id) == 2]
    assert error.ids[1::2] == [f"mine-{n}" for n in range(1, 400, 2)]
    assert sorted(error.failed) == sorted(lost)
    assert all(isinstance(reason, ServerFault) for reason in error.failed.values())
    assert error.stored == [id for id in error.ids if id not in error.failed]
    assert error.unknown == []
    # All or nothing: of the failed batches nothing is stored, of the others all is.
    assert servers.ask(broken.slot, "EXISTS", broken.task) == 0
    servers.ask(broken.slot, "DEL", broken.due)
    assert engine.stats().scheduled == len(error.stored) == 400 - len(lost)


def test_a_lost_answer_is_an_unknown_fate(engines: Engines, own_server: Server, name: str) -> None:
    patient = engines.opened(own_server.url, name=name, shards=SHARDS)
    engine = engines.make(own_server.url, name=name, shards=SHARDS, timeout=0.4)
    tasks = [far(n, id=f"mine-{n}") for n in range(20)]

    def lost() -> PushError | None:
        """None when nothing had left this process before the time was over, or it was over before the pause."""
        with contextlib.suppress(Unavailable, Unanswered, PushError):
            engine.push_many([far("warm", id="warm", on_conflict="replace")])
            own_server.pause()
            try:
                with pytest.raises(PushError, match="0 of 20 tasks are stored") as caught:
                    engine.push_many(tasks)
            finally:
                own_server.resume()
            return caught.value if caught.value.unknown else None
        return None

    error = wait_until(lost, "an answer is lost")
    assert error is not None
    assert error.stored == []
    assert own_server.address in str(error), "it names the cause, also where no task has certainly failed"
    # What never left this process has certainly failed, the rest may be there: told apart.
    assert sorted([*error.unknown, *error.failed]) == sorted(error.ids)
    assert all(isinstance(reason, Unavailable) for reason in error.failed.values())
    assert {state_of(patient, id) for id in error.failed} <= {"gone"}
    assert patient.push_many(tasks) == error.ids
    assert patient.stats().scheduled == 21


# ---- push_iter


def test_push_iter_yields_all_ids_in_order(engine: Engine) -> None:
    count = 2 * CHUNK + 123
    parts = list(engine.push_iter(far(n, id=f"mine-{n}") if n % 2 else far(n) for n in range(count)))
    ids = list(itertools.chain(*parts))
    assert len(ids) == len(set(ids)) == count
    assert ids[1::2] == [f"mine-{n}" for n in range(1, count, 2)]
    assert engine.stats().scheduled == count
    for n in (0, CHUNK, count - 1):
        task = engine.get(ids[n])
        assert task is not None
        assert task.payload == n


def test_push_iter_sends_a_batch_once(engine: Engine, servers: Servers) -> None:
    """Only one whose answer was lost is looked after, task by task."""
    before = calls_of(servers)
    assert sum(map(len, engine.push_iter(far(n) for n in range(CHUNK)))) == CHUNK
    assert calls_of(servers) - before < CHUNK / 10


@pytest.mark.parametrize("again", [False, True], ids=["no ids", "ids that come again"])
def test_push_iter_takes_no_more_than_it_can_send(engine: Engine, monkeypatch: pytest.MonkeyPatch, again: bool) -> None:
    monkeypatch.setattr(packing, "CALL_BYTES", 600)  # some hundred tasks a call
    taken = 0

    def tasks() -> Iterator[Task]:
        nonlocal taken
        for n in range(8 * CHUNK):
            taken += 1
            yield far(n, id=f"mine-{n % CHUNK}", on_conflict="replace") if again else far(n)

    told = most = 0
    for ids in engine.push_iter(tasks()):
        most = max(most, taken - told)
        told += len(ids)
    assert told == taken == 8 * CHUNK
    # The window under way, the one being packed, and what the nodes may still have in their queues.
    assert most <= 5 * CHUNK


def test_push_iter_may_be_left(engine: Engine) -> None:
    parts = engine.push_iter(far(n) for n in range(10 * CHUNK))
    ids = next(iter(parts))
    parts.close()  # type: ignore[attr-defined]  # a generator
    assert state_of(engine, ids[0]) == "scheduled"
    assert engine.push("x", delay=FAR_S)
    assert engine.stats().scheduled < 10 * CHUNK


def test_a_bad_task_in_the_middle_of_push_iter(engine: Engine) -> None:
    before = sum(itertools.islice(chunk_sizes(SHARDS), 2))
    bad = before + 17
    told: list[str] = []
    parts = engine.push_iter(Task(n, delay=-1 if n == bad else FAR_S) for n in range(20 * bad))
    with pytest.raises(InvalidDelay, match="a delay can't be -1"):
        told.extend(itertools.chain.from_iterable(parts))
    # All before the window of the bad one is stored and told, of that window nothing is sent.
    assert len(told) == before
    assert engine.stats().scheduled == before


class CursorGone(Exception):
    """What a database's cursor raises when its connection is lost."""


def failing(error: BaseException) -> Iterator[Task]:
    yield from (far(n) for n in range(4 * CHUNK))
    raise error


@pytest.mark.parametrize("spooling", [False, True])
def test_an_input_that_fails_in_push_iter(
    engines: Engines, url: str, name: str, tmp_path: Path, spooling: bool
) -> None:
    engine = engines.opened(url, name=name, shards=SHARDS, **({"spool": tmp_path / "spool"} if spooling else {}))
    told: list[str] = []
    with pytest.raises(CursorGone):
        told.extend(id for ids in engine.push_iter(failing(CursorGone())) for id in ids)
    assert 0 < len(told) == counted(engine).scheduled


def test_ctrl_c_in_the_input_of_push_iter(url: str, name: str) -> None:
    told: list[str] = []
    with Engine(url, name=name, shards=SHARDS) as engine:
        with pytest.raises(KeyboardInterrupt):
            told.extend(id for ids in engine.push_iter(failing(KeyboardInterrupt())) for id in ids)
        assert 0 < len(told) == counted(engine).scheduled


def test_an_input_that_fails_beside_tasks_that_are_refused(engine: Engine) -> None:
    engine.push("x", delay=FAR_S, id="mine")

    def tasks(error: BaseException) -> Iterator[Task]:
        yield far("y", id="mine", on_conflict="reject")
        yield from failing(error)

    with pytest.raises(PushError) as refused:
        list(engine.push_iter(tasks(CursorGone())))
    assert list(refused.value.failed) == ["mine"]
