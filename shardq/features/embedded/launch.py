"""Starts the server process. Called by ``share``, which holds the server's lock meanwhile."""

from __future__ import annotations

import os
import string
import subprocess
from pathlib import Path

from shardq.errors import EmbeddedFault
from shardq.features.embedded import program
from shardq.features.embedded.places import Place

# Log lines of servers that can't read a snapshot's version: of Valkey and Redis 8, and of others.
_UNREADABLE = ("handle RDB format version", "Bad file format reading the append only file")
# Bytes that are written to a configuration as they are. All others are escaped: the server loses some of them.
_PLAIN = frozenset((string.ascii_letters + string.digits + "/._-+ ").encode())
_START_S = 30.0  # the server detaches itself in this time; it reads its data later


def launch(place: Place, *, fsync: str, lock: int) -> None:
    """Starts a server in the background. The server keeps ``lock`` for as long as it lives.

    A server that was killed while it had ``always`` gets ``always`` again, whatever ``fsync`` is: others may rely on
    it.

    The server detaches itself (``daemonize``). It belongs to no terminal and is nobody's child, so Ctrl-C does not
    reach it, and it leaves no zombie.
    """
    try:
        place.note_start()
        binary = program.find()
        socket = place.choose_socket()
        config = _config(place, socket, fsync="always" if place.fsync() == "always" else fsync)
        fresh = place.folder / "server.conf.new"
        fresh.write_bytes(config)
        fresh.replace(place.config)
        if place.log.exists():
            place.log.replace(place.folder / "server.log.1")
        run = subprocess.run(
            [binary, place.config],
            env=program.environment(),
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
    binary = program.find()
    version = program.version(binary)
    if version == writer:
        return ""
    return (
        f"the data in {place.folder} was written by {writer}, and {binary} is {version}, which can't read it: "
        f"pip install --upgrade 'shardq[embedded]', or name a program of {writer} or later in ${program.ENVIRONMENT}; "
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
