"""A part of scripts by itself, on the model: a test runs a body of its own behind the parts of a script.

A mutant of a part is in the scripts that use it, so it is here as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from shardq.core.calls.lane_control import FAR_MS, close
from shardq.core.layout.keys import shard_keys
from shardq.core.layout.lanes import lane_of
from shardq.core.scripts import Script
from tests.lua.inner import Watched, lines
from tests.lua.shard import EPOCH, NOW, State, meta, text

KEYS = shard_keys("x", 1, keyed=True)
FAR = int(FAR_MS)


def asked(state: State, body: str, *words: str | float, due: str = ", 2") -> tuple[list[Any], list[str]]:
    """Runs ``body`` in place of a script's, with its parts before it. Returns what it answers, and the commands that it
    makes: those that all scripts begin with are left out.
    """
    call = close(KEYS, EPOCH, list(map(str, words))).at(NOW)
    parts = call.script.text.partition("\n-- close: ")[0]
    first = "" if "lanes_from" in body else f"lanes_from(3{due})"
    call = dataclasses.replace(call, script=Script.of("close", f"{parts}\n{first}\n{body}"))
    watched = Watched(KEYS, {"meta": meta()} | state)
    made = lines(watched.made(call))
    return text(watched.answer), made[7 if first else 1 :]


def of_each_word(expression: str) -> str:
    """A body that answers this for each word, ``word``."""
    return f"local told = {{}} for i = 3, #ARGV do local word = ARGV[i] told[i - 2] = {expression} end return told"


def truth(expression: str) -> str:
    """1 for true, 0 for false; what is neither ends the list of answers."""
    return f"(function(is) return is == true and 1 or is == false and 0 or nil end)({expression})"


def entry(id: str, at: int, number: int | None = None) -> str:
    lane = lane_of(id)
    assert lane is not None
    stands = f"{at:015}" if number is None else f"-{number:014}"
    return f"{lane}{stands}/{id.removeprefix(lane)}"


def waiting(tasks: Iterable[tuple[str, int]]) -> State:
    """The keys of tasks that wait: id and due time."""
    tasks = list(tasks)
    return {"keys": {entry(*task): 0 for task in tasks}, "due": {id: FAR + at for id, at in tasks}}


def bytewise(words: Iterable[str]) -> list[str]:
    return sorted(words, key=str.encode)
