"""Starting the server process. Called by ``share``, which holds the server's lock meanwhile."""

from __future__ import annotations

import subprocess
from pathlib import Path

from shardq.embedded import program
from shardq.embedded.places import Place
from shardq.errors import EmbeddedFault

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
