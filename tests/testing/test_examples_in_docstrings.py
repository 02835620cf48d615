"""Every public name of ``shardq.testing`` has an example in its docstring, and every example runs."""

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
from shardq import testing


def public() -> Iterator[tuple[str, Any]]:
    for name in testing.__all__:
        value = getattr(testing, name)
        yield name, value
        for method, function in inspect.getmembers(value, inspect.isfunction):
            if not method.startswith("_"):
                yield f"{name}.{method}", function


PUBLIC = dict(sorted(public()))


def examples(name: str) -> list[doctest.Example]:
    # of the clock for asyncio they are written as for threads
    return doctest.DocTestParser().get_examples(PUBLIC[name].__doc__ or "")


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_example(name: str) -> None:
    assert examples(name)


async def tried(found: list[doctest.Example], clock: Any, engine: Any, url: str) -> None:
    async def done(result: Any) -> Any:
        return await result if isinstance(result, Awaitable) else result

    worker = engine.worker()
    worker.on("handled")(lambda _: None)
    names = {"shardq": shardq, "dt": dt, "clock": clock, "engine": engine, "worker": worker, "url": url}
    for example in found:
        code = compile(example.source, "<example>", "single", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with contextlib.redirect_stdout(io.StringIO()), patch.object(sys, "displayhook", lambda _: None):
            await done(eval(code, names))


def prepared(name: str) -> list[shardq.Task]:
    """The tasks that the example of this name is about."""
    if name == "assert_not_pushed":
        return []
    return [shardq.Task("hi"), shardq.Task({"to": "ann"}, topic="mail", delay=3600)][: 1 if name == "drain" else 2]


@pytest.mark.parametrize("name", [name for name in PUBLIC if not name.startswith("AsyncClock")])
def test_the_examples_run(name: str, url: str) -> None:
    with testing.Clock(url) as clock:
        engine = clock.adopt(shardq.Engine(shards=1))
        engine.push_many(prepared(name))
        asyncio.run(tried(examples(name), clock, engine, url))


@pytest.mark.parametrize("name", ["AsyncClock", "AsyncClock.close_from_outside"])
def test_the_examples_of_the_clock_for_asyncio_run(name: str, url: str) -> None:
    clock = testing.AsyncClock(url)
    if name == "AsyncClock":
        asyncio.run(tried(examples(name), clock, clock.adopt(shardq.AsyncEngine(shards=1)), url))
    else:
        clock.close_from_outside()
    assert asyncio.run(clock.close()) is None
