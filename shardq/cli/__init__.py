"""The ``shardq`` command. ``main`` is the console script; it is all that works without click and rich.

Reading order: ``app`` (where each command is, and what becomes of its errors), ``options`` (those of every command,
and the types of options), ``config`` (options that pyproject.toml and the environment set), ``session`` (from options
to an open engine), then the commands, each in the module of its name, or beside those that act on the same. They share
``output`` and ``table`` (what is printed and logged) and ``serving`` (Ctrl-C, children, and --http); the tables
themselves are in ``engine.tables``.
"""

from __future__ import annotations

import sys


def main() -> int:
    """The exit code: 0 done, 1 refused or failed, 2 not understood, 130 interrupted, 141 not read to the end."""
    try:
        return _run()
    except KeyboardInterrupt:  # while it was still loading
        return 130


def _run() -> int:
    missing = [name for name in ("click", "rich") if not _installed(name)]
    if missing:
        print(f"error: the shardq command needs {' and '.join(missing)}: pip install 'shardq[cli]'", file=sys.stderr)
        return 1
    from shardq.cli.app import invoke

    return invoke()


def _installed(name: str) -> bool:
    from importlib.util import find_spec  # late: until main runs, nothing hears Ctrl-C

    try:
        return find_spec(name) is not None
    except ValueError:  # None stands in sys.modules: switched off
        return False
