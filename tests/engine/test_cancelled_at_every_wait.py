"""Whatever operation of asyncio is cancelled, at whichever of its waits: nothing is lost, held or left open, and the
engine goes on.

Each operation runs again and again, cancelled one wait later each time (``tests.support.cancelling``). Leases last for
longer than the tests: what is held by nobody never comes back by itself.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cluster.server import Server
from shardq import AsyncConsumer, AsyncEngine, AsyncResize, AsyncWorker, Engine, Task
from shardq.engine.access import EngineAccess
from shardq.errors import UnknownSchedule
from shardq.features.schedules.handle_aio import AsyncOwnedSchedules, AsyncScheduleHandle
from tests.support.cancelling import CANCELLED, DURABLE, SOON_S, Make, cuts, maker, quiet, run, until
from tests.support.engines import SHARDS
from tests.support.leaks import Leaks
from tests.support.listed import listed
from tests.support.states import FAR_S

LEASE_S = 3600.0
MANY = 20
CLASSES = (AsyncEngine, AsyncConsumer, AsyncWorker, AsyncResize, AsyncScheduleHandle, AsyncOwnedSchedules)


def test_every_operation_is_tried() -> None:
    tests = (Path(__file__), Path(__file__).parents[1] / "consumer/test_cancelled_consumers.py")
    text = "".join(path.read_text(encoding="utf-8") for path in tests)
    for kind in CLASSES:
        for name, member in inspect.getmembers(kind):
            if not name.startswith("_") and (inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)):
                assert f".{name}(" in text, f"{kind.__name__}.{name}"


@pytest.fixture(scope="module")
def server(server_binary: Path) -> Iterator[Server]:
    with Server(server_binary, options=DURABLE) as server:
        yield server


@pytest.fixture
def make(server: Server, name: str) -> Make:
    return maker(server, name)


def stored(engine: AsyncEngine) -> Counter[Any]:
    """Counts the payloads that are stored."""
    with Engine(EngineAccess(engine).options.url, name=engine.name) as other:
        return Counter(task.payload for task in listed(other) if task.topic != "after")


# ---- pushing


async def one(engine: AsyncEngine, n: int) -> object:
    return [await engine.push(f"{n} 0", delay=FAR_S)]


async def own_id(engine: AsyncEngine, n: int) -> object:
    return [await engine.push(f"{n} 0", delay=FAR_S, id=f"own-{n}", dedup=60)]


async def durable(engine: AsyncEngine, n: int) -> object:
    return [await engine.push(f"{n} 0", delay=FAR_S, durability="fsynced")]


async def gathered(engine: AsyncEngine, n: int) -> object:
    return await asyncio.gather(*(engine.push(f"{n} {each}", delay=FAR_S) for each in range(MANY)))


async def many(engine: AsyncEngine, n: int) -> object:
    return await engine.push_many([Task(f"{n} {each}", delay=FAR_S) for each in range(MANY)])


async def many_durable(engine: AsyncEngine, n: int) -> object:
    tasks = [Task(f"{n} {each}", delay=FAR_S) for each in range(MANY)]
    return await engine.push_many(tasks, durability="fsynced")


async def stream(engine: AsyncEngine, n: int) -> object:
    tasks = (Task(f"{n} {each}", delay=FAR_S) for each in range(MANY))
    return [id async for ids in engine.push_iter(tasks) for id in ids]


@pytest.mark.parametrize(
    ("push", "spooling"),
    [
        *((push, False) for push in (one, own_id, durable, gathered, many, many_durable, stream)),
        (one, True),
        (stream, True),
    ],
)
def test_what_was_acknowledged_is_stored_once(
    make: Make, tmp_path: Path, push: Callable[[AsyncEngine, int], Coroutine[Any, Any, object]], spooling: bool
) -> None:
    told: set[str] = set()
    engine = make(spool=tmp_path / "spool") if spooling else make()

    async def main(engine: AsyncEngine) -> None:
        async for cut in cuts():
            receipts = await cut.of(push(engine, cut.number))
            if receipts is not CANCELLED:
                told.update(f"{cut.number} {each}" for each in range(len(receipts)))

    run(engine, main)
    found = stored(engine)
    assert told, "the last attempts are over before they are cancelled"
    assert told <= set(found)
    assert set(found.values()) == {1}


# ---- by id, and all that match


async def dead(engine: AsyncEngine, topic: str) -> str:
    """Returns the id of a task that is dead."""
    id = await engine.push(topic, topic=topic)
    consumer = engine.consumer(topic, lease=LEASE_S)
    await consumer.bury(await consumer.claim(1, wait=SOON_S), "of no use")
    return id


async def far(engine: AsyncEngine, topic: str) -> str:
    """Returns the id of a task that is due much later."""
    return await engine.push(topic, topic=topic, tags=[topic], delay=FAR_S)


Prepare = Callable[[AsyncEngine, str], Coroutine[Any, Any, str]]
Change = Callable[[AsyncEngine, str, str], Coroutine[Any, Any, Any]]

CHANGES: dict[str, tuple[Prepare, Change, str]] = {
    "cancel": (far, lambda engine, topic, id: engine.cancel(id), "gone"),
    "reschedule": (far, lambda engine, topic, id: engine.reschedule(id, delay=0), "ready"),
    "requeue": (dead, lambda engine, topic, id: engine.requeue(id, delay=FAR_S), "scheduled"),
    "cancel_tag": (far, lambda engine, topic, id: engine.cancel_all(tag=topic), "gone"),
    "cancel_all": (far, lambda engine, topic, id: engine.cancel_all(topic=topic), "gone"),
    "requeue_all": (dead, lambda engine, topic, id: engine.requeue_all(topic), "ready"),
    "reschedule_all": (far, lambda engine, topic, id: engine.reschedule_all(topic=topic, delay=0), "ready"),
    "purge": (far, lambda engine, topic, id: engine.purge(topic), "gone"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_made_or_not_and_can_be_made_again(make: Make, change: str) -> None:
    prepare, command, after = CHANGES[change]

    async def main(engine: AsyncEngine) -> None:
        async def state(id: str) -> str:
            task = await engine.get(id)
            return "gone" if task is None else task.state

        await engine.start()
        async for cut in cuts():
            topic = f"topic-{cut.number}"
            id = await prepare(engine, topic)
            before = await state(id)
            assert before == ("dead" if prepare is dead else "scheduled")
            await cut.of(command(engine, topic, id))
            assert await state(id) in (before, after, "scheduled")
            await command(engine, topic, id)

            async def changed(id: str = id) -> bool:
                return await state(id) == after

            await until(changed, f"the state is {after}")

    run(make(), main)


# ---- looking at the whole, and settings


async def seen_dead(engine: AsyncEngine) -> None:
    assert [task.payload async for task in engine.dead("topic-0")] == ["topic-0"]


async def waited(engine: AsyncEngine) -> None:
    resize = await engine.resize(dry_run=True)
    assert await resize.wait(timeout=SOON_S)


async def exported(engine: AsyncEngine) -> None:
    assert [line async for line in engine.export("topic-0")]


RESTORED = (
    '{"id": "restored/own", "state": "scheduled", "payload": 1, "due": "2090-01-01T00:00:00Z"}',
    '{"id": "restored/pushed", "payload": 1, "delay": 90000}',
)


async def removed(engine: AsyncEngine) -> None:
    with suppress(UnknownSchedule):  # an attempt before it was cancelled when it was done
        await engine.schedule("daily").remove()


LOOKS: dict[str, Callable[[AsyncEngine], Coroutine[Any, Any, object]]] = {
    "open": lambda engine: engine.open(),
    "get": lambda engine: engine.get("none"),
    "stats": lambda engine: engine.stats(),
    "health": lambda engine: engine.health(),
    "fleet": lambda engine: engine.fleet(),
    "tasks": lambda engine: engine.tasks(),
    "dead": seen_dead,
    "forecast": lambda engine: engine.forecast(),
    "history": lambda engine: engine.history(),
    "changes": lambda engine: engine.changes(),
    "export": exported,
    "restore": lambda engine: engine.restore(RESTORED),
    "preview": lambda engine: engine.resize(64, dry_run=True),
    "schedules": lambda engine: engine.schedules(),
    "prune_schedules": lambda engine: engine.schedule(owner="billing").prune(keep=[]),
    "growth": waited,
    "pause": lambda engine: engine.pause("other"),
    "resume": lambda engine: engine.resume("other"),
    "limit": lambda engine: engine.limit("other", rate=5),
    "hold": lambda engine: engine.hold("other", key="ann", until=None),
    "keys": lambda engine: engine.keys("other"),
    "configure": lambda engine: engine.configure(max_attempts=5),
    "forward": lambda engine: engine.forward("forwarded", to="a-list"),
    "every": lambda engine: engine.every("daily", interval=86_400, topic="daily"),
    "run_schedule": lambda engine: engine.schedule("daily").run(),
    "pause_schedule": lambda engine: engine.schedule("daily").pause(),
    "resume_schedule": lambda engine: engine.schedule("daily").resume(),
    "remove_schedule": removed,
}


def test_looks_and_settings(make: Make) -> None:
    async def main(engine: AsyncEngine) -> None:
        await engine.start()
        await dead(engine, "topic-0")
        for look in LOOKS.values():
            async for cut in cuts():
                await cut.of(look(engine))
            if look is not LOOKS["remove_schedule"]:
                await look(engine)
        topology = engine.topology
        assert topology.routes["forwarded"].to == "a-list"
        assert topology.settings.max_attempts == 5
        assert "other" not in topology.paused
        assert await engine.schedules() == []
        assert [task.id for task in await engine.tasks("restored")] == ["restored/pushed", "restored/own"]
        assert [task.payload async for task in engine.dead()] == ["topic-0"]

    run(make(), main)


@pytest.mark.slow
def test_another_number_of_shards(make: Make) -> None:
    """Each attempt has an engine of its own, without pollers, for which a change would wait."""

    async def main() -> None:
        async for cut in cuts("begun", "come"):
            async with make(part=cut.number) as engine:
                await engine.push_many([Task(n, delay=FAR_S) for n in range(MANY)])
                shards = SHARDS + 1 if cut.number % 2 else SHARDS - 1
                await cut.of(engine.resize(shards))
                resize = await engine.resize(shards)
                assert engine.topology.shards == shards
                assert Counter(task.payload for task in await engine.tasks()) == Counter(range(MANY))
                if not cut.reached:
                    await engine.start()
                    assert await resize.wait(timeout=SOON_S)
                    assert await resize.done()
                    assert (await resize.progress()).fraction == 1.0
        await quiet()

    asyncio.run(main())


# ---- the life of an engine


async def life(engine: AsyncEngine) -> None:
    async with engine:
        await engine.push("x", topic="after", delay=FAR_S, durability="fsynced")
        assert await engine.consumer().claim(1, wait=0.01) == []
        await engine.start()
        await engine.stop()


@pytest.mark.slow
def test_the_life_of_an_engine(make: Make) -> None:
    async def main() -> None:
        leaks = Leaks()
        async for cut in cuts("begun", "come"):
            engine = make()
            await cut.of(life(engine))
            await engine.open()
            await engine.push("x", topic="after", delay=FAR_S)
            await engine.close()
        await quiet()
        await asyncio.to_thread(leaks.check)

    asyncio.run(main())


def test_a_close_is_finished(make: Make) -> None:
    async def main() -> None:
        leaks = Leaks()
        async for cut in cuts():
            engine = make()
            await engine.start()
            assert await engine.consumer().claim(1, wait=0.01) == []
            await cut.of(engine.close())
            await quiet()
            await asyncio.to_thread(leaks.check)

    asyncio.run(main())
