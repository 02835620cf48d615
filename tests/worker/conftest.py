"""Workers in processes of their own, and the flavours of handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardq import Engine
from tests.support.workers import Start, Worker
from tests.support.working import Note, Options, notes
from tests.worker.flavours import Flavour


@pytest.fixture
def start(running: Engine, url: str, name: str, tmp_path: Path) -> Iterator[Start]:
    """Starts a worker process; ``amid``: in a program of ``worker_programs``."""
    with ExitStack() as stack:

        def begin(amid: str | None = None, **options: Any) -> Worker:
            text = msgspec.json.encode(Options(folder=str(tmp_path), **options)).decode()
            program = ("tests.support.working",) if amid is None else ("tests.support.worker_programs", amid)
            worker = stack.enter_context(Worker(*program, url, name, text))
            assert worker.said() == "ready"
            return worker

        yield begin
        (tmp_path / "open").touch()  # for a test that failed before it did


@pytest.fixture(params=["function", "coroutine"])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """Runs a test with handlers that are functions, and with coroutine functions."""
    chosen: Flavour = request.param
    return chosen


@pytest.fixture
def noted(tmp_path: Path) -> Callable[[str], list[Note]]:
    """Returns the notes of one kind."""
    return lambda kind: [note for note in notes(tmp_path) if note.kind == kind]


@pytest.fixture
def open_gate(tmp_path: Path) -> Callable[[], None]:
    return (tmp_path / "open").touch
