"""Runs a worker anew when a file of the program changes: for development.

The parent imports nothing of the program. It forks a child that does, which ends with ``CHANGED`` when one of its files
is saved, and is started again.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from shardq.cli.output import complain
from shardq.cli.work.serving import serve
from shardq.cli.work.target import LoadFailed
from shardq.errors import BadInput
from shardq.worker.signal_event import SignalSafeEvent

if TYPE_CHECKING:
    from shardq.worker import AsyncWorker, Worker

CHANGED = 3
"""The exit code of a child that is to be started again."""

LOOK_S = 0.3
"""Between two looks at the files."""


class Files:
    """The .py files of the program: those of modules that were imported since it was made, and are neither Python's nor
    installed.
    """

    def __init__(self) -> None:
        self._before = frozenset(sys.modules)
        python = map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
        installed = (*site.getsitepackages(), site.getusersitepackages())
        self._foreign = tuple(path + os.sep for path in {*python, *installed})
        self._saved: dict[str, int] = {}
        """Each file, and when it was saved as the program was loaded."""

    def add(self, files: Iterable[str] = ()) -> None:
        """Notes the modules that are there by now, and further files."""
        modules = [module for name, module in list(sys.modules.items()) if name not in self._before]
        # By the dict: some modules import more when they are asked for a name.
        loaded = (vars(module).get("__file__") for module in modules if isinstance(module, ModuleType))
        for file in filter(None, (*files, *loaded)):
            if file.endswith(".py") and file not in self._saved and not file.startswith(self._foreign):
                with suppress(OSError):
                    self._saved[file] = Path(file).stat().st_mtime_ns

    def changed(self) -> str | None:
        """Returns a file that was saved since it was noted. One that is gone may be about to be written anew."""
        self.add()
        for file, saved in self._saved.items():
            with suppress(OSError):
                if Path(file).stat().st_mtime_ns != saved:
                    return file
        return None


def serve_until_changed(
    load: Callable[[], Worker | AsyncWorker],
    stop: SignalSafeEvent,
    hurry: SignalSafeEvent,
    *,
    loaded: Callable[[Worker | AsyncWorker], None],
) -> int:
    """The life of a child: runs the worker, or shows why it can't be loaded, until a file changes or ``stop``."""
    # By the bytecode, a change in the same second that keeps the file's size would be none.
    sys.dont_write_bytecode = True
    files = Files()
    try:
        worker = load()
    except (LoadFailed, BadInput) as exc:
        files.add(exc.files if isinstance(exc, LoadFailed) else ())
        complain(f"error: {exc}; waiting until a file is saved")
        while not stop.wait(LOOK_S):
            if files.changed() is not None:
                return CHANGED
        return 0
    files.add()
    loaded(worker)
    changed = threading.Event()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK_S):
            if file := files.changed():
                complain(f"{os.path.relpath(file)} has changed: starting again")
                changed.set()
                stop.set()
                return

    threading.Thread(target=watch, name="shardq-files", daemon=True).start()
    try:
        serve(worker, stop, hurry)
    finally:
        ended.set()
    return CHANGED if changed.is_set() else 0
