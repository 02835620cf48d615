"""Names the files of an embedded server, and reads what they say. Called by the other modules of this package.

lock         held shared by every process that uses the server; see ``locks``
server.lock  held by the server process itself
socket       the path of the unix socket, written by the process that starts the server
server.sock  the unix socket, if its path is short enough for one
server.conf, server.log, server.log.1, server.pid
appendonlydir/   the data
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
import stat
import tempfile
import time
from pathlib import Path

from shardq.errors import EmbeddedFault

_SOCKET_PATH_BYTES = 100  # a socket's address has 108 bytes on Linux and 104 on macOS, with the byte that ends it
_HEAD_BYTES = 64  # the first twenty or so of a snapshot name the server that wrote it
_FULL_BYTES = 1 << 20  # with less room on the disk, log lines may be missing, too


def default_path() -> Path:
    """``$XDG_DATA_HOME/shardq``, or ``~/.local/share/shardq``.

    Raises EmbeddedFault where neither is known, as in a container whose user has no name.
    """
    given = Path(os.environ.get("XDG_DATA_HOME", ""))
    if given.is_absolute():
        return given / "shardq"
    home = Path(os.environ.get("HOME", ""))
    if not home.is_absolute():
        try:
            home = Path(pwd.getpwuid(os.getuid()).pw_dir)
        except KeyError:
            raise EmbeddedFault(
                "there is no directory for the data of the embedded server: neither XDG_DATA_HOME nor HOME is an "
                f"absolute path, and the system knows no home of the user {os.getuid()}; "
                "set one of them, or name a directory: embedded:///path"
            ) from None
    return home / ".local" / "share" / "shardq"


class Place:
    """The files of one server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.users_lock: Path = folder / "lock"
        self.server_lock: Path = folder / "server.lock"
        self.config: Path = folder / "server.conf"
        self.log: Path = folder / "server.log"
        self.pid: Path = folder / "server.pid"
        self._own_socket = folder / "server.sock"
        self._short_name = f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}.sock"
        """The socket's name in the runtime directory, where the path of this directory is too long."""

    @classmethod
    def at(cls, path: Path) -> Place:
        """The place in this directory, which is made for this user alone unless it exists."""
        try:
            folder = path.expanduser().resolve()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (OSError, RuntimeError) as exc:
            raise EmbeddedFault(
                f"the directory {path} of the embedded server cannot be made: {exc}; "
                "choose one that you may write to: embedded:///path, or set XDG_DATA_HOME"
            ) from exc
        return cls(folder)

    def socket(self) -> Path | None:
        """The socket of the server that runs, or ran last; None if none is known.

        A file holds its path, because it can't be computed: a login and a cron job have different runtime directories.
        If this directory is a copy of another, the file names the other's socket, and is ignored.
        """
        try:
            path = Path(os.fsdecode((self.folder / "socket").read_bytes()))
        except FileNotFoundError:
            return None
        return path if path == self._own_socket or path.name == self._short_name else None

    def is_socket(self, path: Path) -> bool:
        """True if the server of this directory listens there, also if the directory was moved since."""
        return path.name in (self._own_socket.name, self._short_name)

    def choose_socket(self) -> Path:
        """Chooses the socket of the next server, and writes its path down. For the holder of the server's lock."""
        path = self._own_socket
        if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
            path = _runtime_folder() / self._short_name
        if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
            raise EmbeddedFault(
                f"neither {self._own_socket} nor {path} is short enough for a socket, which is {_SOCKET_PATH_BYTES} "
                "bytes: choose a directory with a shorter path, embedded:///path, or set XDG_RUNTIME_DIR to one"
            )
        fresh = self.folder / "socket.new"
        fresh.write_bytes(os.fsencode(path))
        fresh.replace(self.folder / "socket")
        return path

    def writer(self) -> str:
        """The server that wrote the data, like ``Valkey 9.1.2``, as the snapshot before the appended commands says."""
        for base in sorted((self.folder / "appendonlydir").glob("*.base.rdb")):
            with base.open("rb") as file:
                said = re.search(rb"(redis|valkey)-ver.([\d.]+)", file.read(_HEAD_BYTES), re.DOTALL)
            if said:
                return f"{said[1].decode().capitalize()} {said[2].decode()}"
        return ""

    def fsync(self) -> str:
        """The ``appendfsync`` of a server that was killed; empty if the last one ended in good order.

        In good order, a server removes the file with its process id.
        """
        try:
            self.pid.stat()
            said = re.search(rb"^appendfsync (\w+)$", self.config.read_bytes(), re.MULTILINE)
        except FileNotFoundError:
            return ""
        return said[1].decode() if said else ""

    def started_s(self) -> float:
        """Seconds since a process last tried to start a server here; see ``note_start``."""
        try:
            return time.time() - self.config.stat().st_mtime
        except FileNotFoundError:
            return float("inf")

    def note_start(self) -> None:
        """Notes that this process tries now. From the second time on it needs no room on the disk."""
        self.config.touch(mode=0o600)

    def last_words(self) -> str:
        """The end of the server's log, and a note if the disk is full, which no log says."""
        try:
            text = self.log.read_text(errors="replace")
        except FileNotFoundError:
            text = ""
        tail = "\n".join(text.splitlines()[-12:])
        said = f"the end of {self.log}:\n{tail}" if tail else f"{self.log} is empty"
        free = shutil.disk_usage(self.folder).free
        return f"the disk of {self.folder} is full ({free} bytes are free); {said}" if free < _FULL_BYTES else said


def _runtime_folder() -> Path:
    """A directory with a short path, which belongs to this user alone."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if Path(runtime).is_absolute() and Path(runtime).is_dir():
        folder = Path(runtime) / "shardq"
    else:
        folder = Path(tempfile.gettempdir()) / f"shardq-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    # Where all may write, another user could have made the directory first, to listen in the server's place.
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise EmbeddedFault(
            f"{folder}, the directory for the embedded server's socket, is not this user's alone: "
            "remove it, or set XDG_RUNTIME_DIR"
        )
    return folder
