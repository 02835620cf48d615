"""A process that has none of the packages of the extras: ``python -m tests.support.without_extras PACKAGES LINES…``.

PACKAGES are the names of top-level modules, with commas between them, that can't be found here. Each line is a program,
or the words of a ``shardq`` command; it prints the error in which that ends, as JSON, and which of PACKAGES were asked
for meanwhile. ``import *`` imports every module of shardq, and prints a line for each.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pkgutil
import sys
from typing import Any


class Hiding:
    """A finder of modules that finds all but some."""

    def __init__(self, finder: Any, hidden: frozenset[str], asked: set[str]) -> None:
        self._finder = finder
        self._hidden = hidden
        self._asked = asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        top = name.partition(".")[0]
        if top in self._hidden:
            self._asked.add(top)
            return None
        return self._finder.find_spec(name, path, target)


def main(packages: str, lines: list[str]) -> None:
    hidden, asked = frozenset(packages.split(",")), set[str]()
    sys.meta_path[:] = [Hiding(finder, hidden, asked) for finder in sys.meta_path]
    os.environ["PATH"] = ""  # no server to embed is found there

    def tell(what: str, error: BaseException | None) -> None:
        told = None if error is None else [type(error).__name__, str(error)]
        print(json.dumps([what, told, sorted(asked)]), flush=True)
        asked.clear()

    for line in lines:
        if line == "import *":
            shardq = importlib.import_module("shardq")
            for module in pkgutil.walk_packages(shardq.__path__, "shardq.", onerror=lambda name: None):
                asked.clear()  # the walk imports packages itself, to look into them
                try:
                    importlib.import_module(module.name)
                except BaseException as exc:  # noqa: BLE001  the test looks at it
                    tell(module.name, exc)
                else:
                    tell(module.name, None)
            continue
        errors = io.StringIO()
        try:
            with contextlib.redirect_stderr(errors):
                command(line) if line.startswith("shardq ") else exec(line, {})
        except BaseException as exc:  # noqa: BLE001  the test looks at it
            tell(line, exc if not errors.getvalue() else SystemExit(errors.getvalue()))
        else:
            tell(line, SystemExit(errors.getvalue()) if errors.getvalue() else None)


def command(words: str) -> None:
    from shardq.cli import main

    sys.argv = words.split()
    main()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
