"""The ledger of what became of tasks: where ends are kept, each id is alive, dead, or has one end, whatever becomes of
the workers, and while the number of shards changes.

Tasks go through workers in two processes; one in twenty fails. Each is killed once and replaced, and some tasks are
cancelled, while the engine grows and shrinks.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from shardq import Engine, Task
from tests.support.listed import listed
from tests.support.servers import Servers, keys_of
from tests.support.traffic import unfinished
from tests.support.waiting import wait_until
from tests.support.workers import Worker
from tests.support.working import Options, notes

pytestmark = pytest.mark.ledger

SHARDS, MORE, FEWER = 4, 7, 3


def written(servers: Servers, name: str) -> Counter[str]:
    """How many ends each id has, in all slots of all shards that were ever in use."""
    found: Counter[str] = Counter()
    for keys in keys_of(name, MORE):
        for slot in keys.ends:
            found.update(id.decode() for id in servers.ask(keys.slot, "HKEYS", slot))
    return found


@pytest.mark.promise
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("url", ["single"], indirect=True)
@pytest.mark.parametrize("count", [4_000, 40_000])
def test_each_id_is_alive_dead_or_has_one_end(url: str, name: str, tmp_path: Path, count: int) -> None:
    options = Options(folder=str(tmp_path), concurrency=64, lease=3.0, max_attempts=2, fails=0.05)
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(url, name=name, shards=SHARDS))
        servers = stack.enter_context(Servers(url))
        engine.configure(done_age=3600, done_count=10 * count // 4, topics={"none": {"done_age": 0}})
        engine.start()

        def worker() -> Worker:
            text = msgspec.json.encode(options).decode()
            return stack.enter_context(Worker("tests.support.working", url, name, text))

        workers = [worker(), worker()]
        waiting = engine.push_many([Task(n, delay=3600) for n in range(100)])
        other = engine.push_many([Task(n, delay=3600, topic="none") for n in range(100)])
        pushed = [*waiting, *(id for ids in engine.push_iter(Task(n) for n in range(count)) for id in ids)]
        for number, shards in enumerate((MORE, FEWER)):
            left = count * (2 - number) // 3
            wait_until(lambda: unfinished(servers, name, MORE) - 200 <= left, "some are done", timeout=300)  # noqa: B023
            workers[number].kill()
            workers[number] = worker()
            change = engine.resize(shards)
            cancelled = [id for id in (*waiting, *other)[number::4] if engine.cancel(id)]
            assert cancelled
            assert change.wait(timeout=120)
        alive = wait_until(lambda: at_rest(engine), "all others have ended", timeout=300)
        for each in workers:
            assert each.stop() == 0
        dead = {task.id for task in listed(engine, state="dead")}
        ends = written(servers, name)
        states: dict[str, str] = {}
        for state in ("done", "cancelled"):
            found = [task.id for task in listed(engine, state=state, limit=1000)]
            assert len(found) == len(set(found))
            states |= dict.fromkeys(found, state)
        known = [engine.get(id, ended=True) for id in pushed[:: max(1, count // 500)]]

    assert set(ends.values()) == {1}
    assert not ends.keys() & set(other), "none of a topic that keeps none"
    assert ends.keys() == set(states)
    assert {*alive} - set(other) | dead | ends.keys() == set(pushed)
    assert not dead & ends.keys()
    assert not alive & ends.keys()
    done = {note.id for note in notes(tmp_path) if note.kind == "done"}
    assert {id for id, state in states.items() if state == "done"} <= done
    assert all(known)


def at_rest(engine: Engine) -> set[str]:
    """The ids that are alive, once all of these wait for their time."""
    alive = listed(engine)
    far = {task.id for task in alive if task.state == "scheduled" and not task.failures}
    return far if len(far) == len([task for task in alive if task.state != "dead"]) else set()
