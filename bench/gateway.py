"""A gateway in a process of its own, for ``suites/polls``: ``python -m bench.gateway URL NAME PORT``."""

from __future__ import annotations

import sys
import threading

from bench.children import taking_part
from shardq import AsyncEngine
from shardq.http import app
from shardq.http.server import served


def main(url: str, name: str, port: str) -> None:
    engine = AsyncEngine(url, name=name)
    door = app(engine)

    async def close() -> None:
        await door.close()
        await engine.close()

    def serving(over: threading.Event) -> bool:
        over.wait()
        return True

    with served(door, "127.0.0.1", int(port), start=engine.open, close=close):
        taking_part(serving)


if __name__ == "__main__":
    main(*sys.argv[1:])
