"""Tasks of one key that one call pushes come in the order of the call, whatever becomes of its batches on their way."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest

from cluster.server import Server
from shardq import Engine, Task
from shardq.core.layout.lanes import unique_of
from tests.keys.account import TOPIC
from tests.support.disturbing import again_and_again
from tests.support.engines import Engines

KEYS, EACH = 40, 100


def tasks(own: bool) -> Iterator[Task]:
    """The tasks of all keys, the first of each, the second of each …; ``own``: with ids of their own."""
    for n in range(EACH):
        for key in range(KEYS):
            yield Task(n, topic=TOPIC, key=f"k{key}", delay=60, id=f"id-{n:04}" if own else None)


def push(engine: Engine, way: str, own: bool) -> list[str]:
    if way == "push_many":
        return list(engine.push_many(list(tasks(own))))
    return list(itertools.chain.from_iterable(engine.push_iter(tasks(own))))


def assert_in_order(engine: Engine, ids: list[str]) -> None:
    wrong = {}
    for key in range(KEYS):
        pushed = ids[key::KEYS]
        listed = [each.id for each in engine.tasks(TOPIC, key=f"k{key}")]
        if listed != pushed:
            wrong[key] = [pushed.index(id) for id in listed]
    assert not wrong, f"{len(wrong)} keys out of order; of one: {next(iter(wrong.values()))}"
    assert len({unique_of(id) for id in ids}) > 1


@pytest.mark.parametrize("own", [False, True], ids=["made-ids", "own-ids"])
@pytest.mark.parametrize("way", ["push_many", "push_iter"])
@pytest.mark.parametrize("meets", ["no-scripts", "scripts-flushed", "connections-killed", "resize"])
def test_what_one_call_pushes_comes_in_its_order(
    engines: Engines, own_server: Server, name: str, way: str, own: bool, meets: str
) -> None:
    engine = engines.opened(own_server.url, name=name, shards=4)
    engine.push("the engine takes up keys", topic=TOPIC, key="first")
    own_server.ask("SCRIPT", "FLUSH")
    match meets:
        case "scripts-flushed":
            with again_and_again(lambda: own_server.ask("SCRIPT", "FLUSH")):
                ids = push(engine, way, own)
        case "connections-killed":
            with again_and_again(lambda: own_server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")):
                ids = push(engine, way, own)
        case "resize":
            resized = threading.Thread(target=engine.resize, args=(8,))
            resized.start()
            ids = push(engine, way, own)
            resized.join()
        case _:
            ids = push(engine, way, own)
    assert_in_order(engine, ids)
