"""A program that forwards the topic "mail" to a function of its own, which writes each payload on a line of a file:
``python -m tests.support.feeding_function URL NAME FILE KEEP``. Says "ready" when it serves.
"""

from __future__ import annotations

import sys
from pathlib import Path

from shardq import Delivery, Engine
from tests.support.workers import say, wait_for_the_end

_file = Path()


def take(batch: list[Delivery]) -> None:
    with _file.open("a") as lines:
        lines.writelines(f"{delivery.payload}\n" for delivery in batch)


def main(url: str, name: str, file: str, keep: str) -> None:
    global _file
    _file = Path(file)
    with Engine(url, name=name) as engine:
        engine.forward("mail", to=take, keep=keep == "keep")
        engine.start()
        say("ready")
        wait_for_the_end()


if __name__ == "__main__":
    # under its own name: the function has that, too, in every process that runs this
    from tests.support.feeding_function import main as run

    run(*sys.argv[1:])
