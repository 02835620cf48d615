"""The server's bytes for a pending task, everything included: by payload, by length of the id, with a key, and by the
number of tasks in a shard, since tables double at the powers of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bench.figures import Figure
from bench.loads import FAR_S, PAYLOAD, PAYLOAD_BYTES, payload_of, spread_tasks
from bench.stand import SHARDS, Stand, Suite
from shardq import Engine, Task
from shardq.core.model.ids import UNIQUE_LENGTH

PER_SHARD = 12_500

PAYLOADS = (10, 100, 1_000, 4_096)
KEYS = 1_000
"""Among which the tasks with keys are divided."""

ID_LENGTHS = (8, UNIQUE_LENGTH, 20, 36)

FILLS = (
    7_000,
    8_000,
    8_400,
    9_500,
    11_000,
    12_500,
    14_500,
    16_000,
    16_800,
    19_000,
    22_000,
    25_000,
    29_000,
    32_000,
    33_600,
)
"""Tasks of one shard: around 8,192, 16,384 and 32,768."""

FEW_SHARDS = 4
"""Few shards give enough tasks for a figure, in a tenth of a second."""

WARM_UP = 500
"""Tasks that are pushed and removed again before the first look, so that the scripts are loaded."""


def _measure(stand: Stand) -> Iterator[Figure]:
    shards = stand.pick(2, SHARDS)
    count = shards * PER_SHARD
    stand.say(f"{count:,} tasks in {shards} shards")
    each = _bytes(stand, shards, lambda engine: engine.push_many(spread_tasks(count)), count)
    yield Figure(
        f"memory, {PER_SHARD:,} pending a shard, {shards} shards, {PAYLOAD_BYTES} B",
        each,
        "bytes/task",
        reference="aim: ≤ 225 on Valkey 9, ≤ 290 on Redis 7.0",
        at={"curve": "memory"},
    )
    for size in stand.pick(PAYLOADS[:2], PAYLOADS):
        stand.say(f"payloads of {size:,} B")
        yield _by(stand, f"payload of {size:,} B", {"bytes": size}, _tasks(payload=payload_of(size)))
    for length in stand.pick(ID_LENGTHS[:1], ID_LENGTHS):
        stand.say(f"ids of {length} characters")
        ours = " (as ours are)" if length == UNIQUE_LENGTH else ""
        name = f"id of {length} characters{ours}"
        yield _by(stand, name, {"id": length}, _tasks(length=length))
    stand.say("tasks with keys")
    yield _by(stand, "held: due, and waiting for its key", {"key": KEYS}, _held())
    yield from _fills(stand)


SUITE = Suite("memory", "bytes of a pending task, by payload, id and number", _measure)


def _bytes(stand: Stand, shards: int, push: Callable[[Engine], object], count: int) -> float:
    with stand.engine(shards=shards) as engine:
        before = _empty(stand, engine)
        with engine:
            push(engine)
        return (stand.memory() - before) / count


def _empty(stand: Stand, engine: Engine) -> int:
    engine.push_many(spread_tasks(WARM_UP))
    engine.purge(everything=True)
    # it is closed at each look, because connections and their buffers are no part of a task
    engine.close()
    return stand.memory()


def _by(stand: Stand, name: str, at: dict[str, float], tasks: Sequence[Task]) -> Figure:
    count = FEW_SHARDS * PER_SHARD
    each = _bytes(stand, FEW_SHARDS, lambda engine: engine.push_many(tasks), count)
    return Figure(f"memory, {name}", each, "bytes/task", at={"curve": f"memory: {next(iter(at))}", **at})


def _tasks(*, payload: str = PAYLOAD, length: int = 0) -> list[Task]:
    """Returns tasks with ids of a given length, or with ours."""
    tasks = spread_tasks(FEW_SHARDS * PER_SHARD, at_least_s=FAR_S, payload=payload)
    if not length:
        return tasks
    return [Task(task.payload, delay=task.delay, id=f"{number:0{length}}") for number, task in enumerate(tasks)]


def _held() -> list[Task]:
    return [Task(PAYLOAD, key=f"{number % KEYS:07}") for number in range(FEW_SHARDS * PER_SHARD)]


def _fills(stand: Stand) -> Iterator[Figure]:
    """Fills one engine step by step."""
    fills = stand.pick(FILLS[:2], FILLS)
    with stand.engine(shards=FEW_SHARDS) as engine:
        before, have = _empty(stand, engine), 0
        for fill in fills:
            stand.say(f"{fill:,} tasks a shard")
            with engine:
                engine.push_many(spread_tasks((fill - have) * FEW_SHARDS, at_least_s=FAR_S))
            have = fill
            each = (stand.memory() - before) / (fill * FEW_SHARDS)
            at: dict[str, float | str] = {"curve": "memory: tasks of a shard", "tasks": fill}
            yield Figure(f"memory, {fill:,} pending a shard", each, "bytes/task", at=at)
