"""mypy knows the arguments of a task from its function: a push with others is an error before the program runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

GOOD = """
import asyncio
from typing import assert_type
import shardq

engine = shardq.Engine()
asynchronous = shardq.AsyncEngine()
worker = engine.worker(topics=["mail"])
weighted = asynchronous.worker(topics={"mail": 1})

@engine.task(topic="mail")
async def send(to: str, text: str = "") -> int:
    return 1

@worker.task
def dig(depth: int, *, fast: bool) -> str:
    return ""

@asynchronous.task(name="count", timeout=5)
def count(*numbers: int) -> list[int]:
    return list(numbers)

@weighted.task
async def rest() -> None: ...

assert_type(send.push("ann"), shardq.Receipt)
assert_type(send.options(delay=5, id="one", durability="fsynced").push("ann", text="hello"), shardq.Receipt)
assert_type(dig.push(5, fast=True), shardq.Receipt)
assert_type(dig(5, fast=True), str)

async def main() -> None:
    assert_type(await send("ann", "hello"), int)
    assert_type(await count.push(1, 2, 3), shardq.Receipt)
    assert_type(await rest.options(expires=60).push(), shardq.Receipt)
    assert_type(count(1), list[int])
"""

BAD = """
import shardq

engine = shardq.Engine()
asynchronous = shardq.AsyncEngine()

@engine.task(topic="mail")
async def send(to: str, text: str) -> None: ...

@asynchronous.task
def dig(depth: int) -> None: ...

send.push("ann")                                # error: call-arg
send.push("ann", 5)                             # error: arg-type
send.push(("ann", "hello"))                     # error: call-arg arg-type
send.push("ann", "hello", delay=5)              # error: call-arg
send.options(delay=5).push("ann")               # error: call-arg
send.options(delay=5).push("ann", subject="x")  # error: call-arg
send.options(delay="soon")                      # error: arg-type
send.options(later=5)                           # error: call-arg
engine.task(topics="mail")                      # error: call-overload

async def main() -> None:
    await send("ann")                           # error: call-arg
    dig.push(5)                                 # error: unused-coroutine
    await dig.push("deep")                      # error: arg-type
    await dig.options().push()                  # error: call-arg
"""


def test_a_good_program_and_a_bad_one(tmp_path: Path) -> None:
    for name, text in (("good.py", GOOD), ("bad.py", BAD)):
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "good.py", "bad.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found: dict[int, set[str]] = {}
    for line in done.stdout.splitlines():
        if error := re.fullmatch(r"bad\.py:(\d+): error: .* \[([a-z-]+)\]", line):
            found.setdefault(int(error[1]), set()).add(error[2])
        else:
            assert ": note: " in line, done.stdout
    expected = {
        at: set(line.partition("# error: ")[2].split())
        for at, line in enumerate(BAD.splitlines(), start=1)
        if "# error: " in line
    }
    assert found == expected, done.stdout + done.stderr
