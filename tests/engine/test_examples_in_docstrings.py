"""Every public name has an example in its docstring, where pydoc and editors show it, and every example runs."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import datetime as dt
import doctest
import inspect
import io
import sys
from collections.abc import Awaitable, Iterator
from typing import Any
from unittest.mock import patch

import pytest

import shardq
from shardq.delivery.calling import LotCalls
from shardq.delivery.handler import Batching, Handler
from shardq.delivery.hooks import Hooks
from shardq.delivery.in_flight import InFlight
from shardq.delivery.job import Lot
from shardq.delivery.prefetch import BatchRoom

LONG_S = 30.0


class Engine(shardq.Engine):
    """Its workers end as soon as they run."""

    def worker(self, *topics: Any, **options: Any) -> shardq.Worker:
        worker = super().worker(*topics, **options)
        worker.stop()
        return worker


class AsyncEngine(shardq.AsyncEngine):
    """The same."""

    def worker(self, *topics: Any, **options: Any) -> shardq.AsyncWorker:
        worker = super().worker(*topics, **options)
        worker.stop()
        return worker


def public() -> Iterator[tuple[str, Any]]:
    """The public names, and the methods of public classes."""
    for name in set(shardq.__all__) - {"__version__"}:
        value = getattr(shardq, name)
        yield name, value
        for method, function in inspect.getmembers(value, inspect.isfunction):
            if not method.startswith("_") and function.__module__.startswith("shardq."):
                yield f"{name}.{method}", function


PUBLIC = dict(sorted(public()))


def examples_of(value: Any) -> list[doctest.Example]:
    """The examples in its docstring. An error may leave them to the one that it inherits from, a protocol's methods to
    their class.
    """
    places = [value]
    if isinstance(value, type) and issubclass(value, shardq.ShardqError):
        places += value.__mro__[1 : value.__mro__.index(shardq.ShardqError)]
    if value in (shardq.Codec.encode, shardq.Codec.decode):
        places += [shardq.Codec]
    found = (doctest.DocTestParser().get_examples(place.__doc__ or "") for place in places)
    return next(filter(None, found), [])


def send(to: str, text: str) -> None: ...


def batch_of(deliveries: list[shardq.Delivery[Any]]) -> shardq.Batch[Any]:
    """A batch as a handler gets it, while its call runs."""
    in_flight = InFlight(1)
    handler = Handler(
        topic=deliveries[0].topic,
        run=print,
        is_coroutine=lambda _: False,
        has_coroutines=lambda: False,
        name=lambda _: "store",
        max_attempts=None,
        backoff=shardq.Backoff(),
        batching=Batching(size=10),
    )
    lot = Lot.of(handler, deliveries, BatchRoom(1))
    in_flight.put_lot(lot)
    assert in_flight.begin(lot)
    batch = LotCalls(in_flight, Hooks(), lot, lambda lot, size, seconds: None).next()
    assert batch is not None
    return batch


async def done(result: Any) -> Any:
    return await result if isinstance(result, Awaitable) else result


async def prepared(engine: Any, used: set[str], ended: contextlib.ExitStack) -> dict[str, Any]:
    """The names that examples use, whether or not they make some of them themselves."""
    if used & {"handle", "delivery", "deliveries", "batch", "resize"}:
        await done(engine.start())
    names: dict[str, Any] = {"__name__": "examples", "shardq": shardq, "dt": dt, "engine": engine}
    names["id"] = await done(engine.push({"order": 42}, delay=1800))
    consumer = names["consumer"] = engine.consumer()
    if "handle" in used:
        await done(engine.push({"order": 43}))

        def handle(payload: object) -> Any:
            consumer.close()
            return asyncio.sleep(0) if isinstance(engine, AsyncEngine) else None

        names["handle"] = handle
    if used & {"delivery", "deliveries", "batch"}:
        await done(engine.push({"order": 44}))
        names["deliveries"] = await done(consumer.claim(1, wait=LONG_S))
        [names["delivery"]] = names["deliveries"]
    if used & {"buffer", "pending"}:
        buffer = names["buffer"] = ended.enter_context(engine.buffered())
        names["pending"] = buffer.push({"order": 45}, delay=60)
    if "resize" in used:
        names["resize"] = await done(engine.resize(dry_run=True))
    if "worker" in used:
        names["worker"] = engine.worker()
        names["worker"].on("other")(print)
    if "batch" in used:
        names["batch"] = batch_of(names["deliveries"])
    if "Event" in used:
        names["Event"] = dict
    if "send" in used:
        names["send"] = engine.task(topic="mail")(send)
    return names


async def tried(examples: list[doctest.Example], engine: Any, url: str, name: str) -> None:
    """Runs the examples one by one, as at a prompt; a result is compared where the example shows one."""
    used = {node.id for one in examples for node in ast.walk(ast.parse(one.source)) if isinstance(node, ast.Name)}
    with contextlib.ExitStack() as ended:
        names = await prepared(engine, used, ended)
        for example in examples:
            source = example.source.replace("redis://127.0.0.1:6379/0", url).replace('"orders"', repr(name))
            code = compile(source, "<example>", "single", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            shown: list[Any] = []
            with contextlib.redirect_stdout(io.StringIO()) as printed, patch.object(sys, "displayhook", shown.append):
                await done(eval(code, names))
            values = [await done(value) for value in shown]
            printed.write("".join(f"{value!r}\n" for value in values if value is not None))
            if example.want:
                assert doctest.OutputChecker().check_output(example.want, printed.getvalue(), doctest.ELLIPSIS), (
                    f"{example.source}shows {printed.getvalue()}, not {example.want}"
                )


@pytest.mark.parametrize("url", ["single"], indirect=True)
@pytest.mark.parametrize("public_name", PUBLIC)
def test_a_public_name_has_an_example_and_it_runs(url: str, name: str, public_name: str) -> None:
    examples = examples_of(PUBLIC[public_name])
    assert examples, f"shardq.{public_name} has no example (>>>) in its docstring"
    kind = AsyncEngine if public_name.startswith("Async") else Engine

    async def run() -> None:
        engine: Any = kind(url, name=name, shards=4)
        try:
            await tried(examples, engine, url, name)
        finally:
            await done(engine.close())

    asyncio.run(run())
