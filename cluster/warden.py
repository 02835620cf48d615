"""No server outlives the process that wanted it, however that process dies. Called by ``Server``, and by benches for
processes of others.

One small shell for each process reads from a pipe which servers it has. The pipe closes with the process, also
on SIGKILL; the shell then kills every server that still runs and removes its files. (The parent-death
signal of Linux would not do: it is sent when the *thread* that started the child ends.)
"""

from __future__ import annotations

import atexit
import itertools
import os
import subprocess
import threading
from pathlib import Path

# Reads "KEY PID FOLDER", where "-" stands for none; the last line of a key counts.
_SCRIPT = """
trap '' INT TERM HUP
keys=' '
while read -r key pid folder; do
  case "$keys" in *" $key "*) ;; *) keys="$keys$key " ;; esac
  eval "pid_$key=\\$pid folder_$key=\\$folder"
done
for key in $keys; do
  eval "pid=\\$pid_$key folder=\\$folder_$key"
  [ "$pid" = - ] || kill -9 "$pid" 2>/dev/null
  [ "$folder" = - ] || rm -rf "$folder"
done
"""

_keys = itertools.count()
_lock = threading.Lock()
_shell: subprocess.Popen[str] | None = None


def new_key() -> int:
    """One for each server."""
    return next(_keys)


def note(key: int, *, pid: int | None, folder: Path | None) -> None:
    """Notes what to kill and what to remove for this server should we die now. Replaces what was noted before.

    A negative id is that of a process group.
    """
    _say(f"{key} {pid or '-'} {folder or '-'}\n")


def _say(line: str) -> None:
    global _shell
    with _lock:
        if _shell is None:
            # A session of its own: Ctrl-C in the terminal must not end it before us.
            _shell = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT], stdin=subprocess.PIPE, text=True, start_new_session=True
            )
            atexit.register(_shell.communicate)
        assert _shell.stdin is not None
        _shell.stdin.write(line)
        _shell.stdin.flush()


def _begin_anew() -> None:
    """A fork has servers of its own, and its end is not ours."""
    global _shell
    if _shell is not None and _shell.stdin is not None:
        _shell.stdin.close()
    _shell = None


os.register_at_fork(after_in_child=_begin_anew)
