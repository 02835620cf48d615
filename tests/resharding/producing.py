"""A producer process: ``python -m tests.resharding.producing URL NAME FOLDER``. Pushes one task after the other, with
ids of its own in turn with those of the engine, and writes each receipt to ``receipts`` in the folder when it has it.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from pathlib import Path

from shardq import Engine
from tests.support.workers import say, wait_for_the_end

FAR_S = 3600.0


def main(url: str, name: str, folder: Path) -> None:
    end = threading.Event()

    def wait() -> None:
        wait_for_the_end()
        end.set()

    threading.Thread(target=wait, daemon=True).start()
    with Engine(url, name=name) as engine, (folder / "receipts").open("w", buffering=1) as out:
        say("under way")
        for n in itertools.count():
            if end.is_set():
                break
            receipt = engine.push(n, delay=FAR_S, id=f"p{n}" if n % 2 else None)
            out.write(f"{receipt} {receipt.outcome}\n")
            time.sleep(0.001)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
