"""A producer with a spool: ``python -m tests.spool.producing URL NAME SPOOL BOOK KIND``.

It pushes, replaces and cancels until it is told to end, and writes into its book what it is about to do and what it was
answered. Also read by tests: ``Book``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shardq import AsyncEngine, Engine, Task
from tests.support.states import FAR_S
from tests.support.workers import say, wait_for_the_end

REPLACED = 5
"""Ids that each producer pushes again and again."""

MANY = 20

PAUSE_S = 0.02
"""Between two rounds: three such processes leave a small machine time for what they are to meet."""


class Producer:
    """One process's commands. What it was acknowledged is in the book before the next one begins."""

    def __init__(self, engine: Any, book: int, kind: str) -> None:
        self._engine = engine
        self._book = book
        self._kind = kind
        self._own = f"p{os.getpid()}"

    def note(self, *words: str) -> None:
        os.write(self._book, (" ".join(words) + "\n").encode())

    async def run(self, ended: threading.Event) -> None:
        number = 0
        while not ended.is_set():
            number += 1
            one = await self._push(f"{self._own}-{number}-a")
            await self._push(f"{self._own}-{number}-b", id=f"{self._own}-{number}", dedup=600)
            many = await self._push_many([f"{self._own}-{number}-m{n}" for n in range(MANY)])
            await self._replace(f"{self._own}-r{number % REPLACED}", number)
            for id in (one, many[0]):
                self.note("cancels", id)
                self.note("cancelled", id, await self._done(self._engine.cancel(id)))
            if number == 1:
                say("under way")
            await asyncio.sleep(PAUSE_S)

    async def _push(self, token: str, **options: Any) -> str:
        self.note("pushes", token)
        receipt = await self._done(self._engine.push(token, delay=FAR_S, **options))
        self.note("pushed", token, receipt, receipt.outcome)
        return str(receipt)

    async def _push_many(self, tokens: list[str]) -> list[str]:
        for token in tokens:
            self.note("pushes", token)
        receipts = await self._done(self._engine.push_many([Task(token, delay=FAR_S) for token in tokens]))
        for token, receipt in zip(tokens, receipts, strict=True):
            self.note("pushed", token, receipt, receipt.outcome)
        return [str(receipt) for receipt in receipts]

    async def _replace(self, id: str, version: int) -> None:
        self.note("replaces", id, str(version))
        await self._done(self._engine.push(f"{id}@{version}", id=id, on_conflict="replace", delay=FAR_S))
        self.note("replaced", id, str(version))

    async def _done(self, result: Any) -> Any:
        return await result if self._kind == "asyncio" else result


class Book:
    """What all producers wrote."""

    def __init__(self, folder: Path) -> None:
        self.intended: set[str] = set()
        self.pushed: dict[str, str] = {}
        """Token → id, of acknowledged pushes."""
        self.cancelled: dict[str, str] = {}
        """Id → outcome, of acknowledged cancels."""
        self.in_doubt: set[str] = set()
        """Ids whose cancel was begun."""
        self.versions: dict[str, list[int]] = {}
        """Id → the last acknowledged version, and the last that was begun."""
        self.outcomes: Counter[str] = Counter()
        for file in folder.iterdir():
            self._read(file.read_text().splitlines())

    def _read(self, lines: Iterable[str]) -> None:
        for line in lines:
            what, subject, *rest = line.split(" ")
            if what == "pushes":
                self.intended.add(subject)
            elif what == "pushed":
                self.pushed[subject] = rest[0]
                self.outcomes[rest[1]] += 1
            elif what == "cancels":
                self.in_doubt.add(subject)
            elif what == "cancelled":
                self.cancelled[subject] = rest[0]
                self.outcomes[f"cancel {rest[0]}"] += 1
            elif what == "replaces":
                self.versions.setdefault(subject, [0, 0])[1] = int(rest[0])
            elif what == "replaced":
                self.versions[subject][0] = int(rest[0])

    def check(self, stored: list[tuple[str, str]]) -> None:
        """Accounts for every task that is stored, given as id and payload."""
        replaced = [(id, payload) for id, payload in stored if "@" in payload]
        plain = [(id, payload) for id, payload in stored if "@" not in payload]
        times = Counter(token for _, token in plain)
        assert [token for token, count in times.items() if count > 1] == [], "stored twice"
        assert set(times) <= self.intended, "stored, and never pushed"
        gone = {id for id, outcome in self.cancelled.items() if outcome in ("cancelled", "spooled")}
        assert set(self.cancelled.values()) <= {"cancelled", "spooled", "unknown"}
        ids = {id for id, _ in plain}
        assert ids & gone == set(), "cancelled, and still there"
        missing = [token for token, id in self.pushed.items() if id not in ids and id not in self.in_doubt]
        assert missing == [], "acknowledged, and lost"
        known = {payload.partition("@")[0]: int(payload.partition("@")[2]) for _, payload in replaced}
        assert len(known) == len(replaced)
        for id, (acknowledged, begun) in self.versions.items():
            assert acknowledged <= known.get(id, 0) <= begun, f"{id} is not at its last version"


def main(url: str, name: str, spool: str, book: str, kind: str) -> None:
    file = os.open(book, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    ended = threading.Event()

    async def run() -> None:
        options: dict[str, Any] = {"name": name, "spool": spool, "timeout": 1.0, "connect_timeout": 1.0}
        if kind == "asyncio":
            async with AsyncEngine(url, **options) as engine:
                await Producer(engine, file, kind).run(ended)
        else:
            with Engine(url, **options) as other:
                await Producer(other, file, kind).run(ended)

    def hear() -> None:
        wait_for_the_end()
        ended.set()

    threading.Thread(target=hear, daemon=True).start()
    asyncio.run(run())


if __name__ == "__main__":
    main(*sys.argv[1:])
