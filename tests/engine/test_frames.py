"""The way of a request through the package: the Python frames that one call enters, which is what a reader steps
through. Each test prints them (``pytest -rP``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import shardq
from shardq import Delivery, Engine
from shardq.core.drivers import connection
from tests.support.states import make_ready

PACKAGE = Path(shardq.__file__).parent

Frames = list[tuple[int, str, str]]
"""Depth, file and name of each."""


def frames_of(work: Callable[[], object]) -> Frames:
    """The frames of the package that the work enters in this thread, in their order."""
    seen: Frames = []
    met: set[FrameType] = set()
    """A generator that is resumed is no other frame."""

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        # a comprehension is no frame any more from Python 3.12 on
        if event != "call" or code.co_name == "<listcomp>" or not code.co_filename.startswith(str(PACKAGE)):
            return
        if frame in met:
            return
        met.add(frame)
        depth, outer = 0, frame.f_back
        while outer is not None:
            depth, outer = depth + 1, outer.f_back
        seen.append((depth, str(Path(code.co_filename).relative_to(PACKAGE)), code.co_name))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return seen


def check(what: str, work: Callable[[], object], *, frames: int, files: int) -> None:
    """Counts the frames and files of the work in its second run, and prints them."""
    work()
    seen = frames_of(work)
    outermost = min(depth for depth, _, _ in seen)
    for depth, file, name in seen:
        print(f"{'  ' * (depth - outermost)}{name}  {file}")
    count, used = len(seen), len({file for _, file, _ in seen})
    print(f"{what}: {count} frames in {used} files")
    assert count <= frames, f"{what} enters {count} frames of the package: take some out of its way"
    assert used <= files, f"{what} goes through {used} files of the package: take some out of its way"


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that a slow machine left unused for a moment is not looked at: that is a frame more."""
    monkeypatch.setattr(connection, "LOOK_AFTER_S", 60.0)


@pytest.mark.parametrize(("engines", "url"), [("sync", "single")], indirect=True)
def test_a_push(engine: Engine) -> None:
    check("a push", lambda: engine.push({"order": 42}, delay=60), frames=34, files=13)


@pytest.mark.parametrize(("engines", "url"), [("sync", "single")], indirect=True)
def test_a_claim_and_an_ack(running: Engine) -> None:
    make_ready(running, 8)
    consumer, held = running.consumer("mail"), list[Delivery]()
    check("a claim", lambda: held.extend(consumer.claim(1)), frames=50, files=13)
    check("an ack", lambda: consumer.ack(held.pop()), frames=39, files=10)
