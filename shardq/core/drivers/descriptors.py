"""The file descriptors of this process: how many it may have, and how many it has. A connection takes one.

A library does not change limits of its program: what is too little is said at ``engine.start()`` (``advice``), and by
the error of a connection that finds none left (``faults``). The command, whose process is its own, asks for ``more``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sys

ENOUGH = 65_536  # far more than 1,024 shards on many masters need

REMEDY = "raise that limit (ulimit -n, LimitNOFILE= in systemd), or run more processes, which share the shards"


def allowed() -> int:
    """The number of files that this process may have open: the soft limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def in_use() -> int:
    """The number of files that it has open; 0 where the system does not say."""
    try:
        # one of them is the listing's own
        return len(os.listdir("/dev/fd")) - 1  # noqa: PTH208  nothing but the count is wanted
    except OSError as exc:
        return allowed() if scarce(exc) else 0


def scarce(exc: OSError) -> bool:
    """True if the error says that there is no descriptor left, in this process or in the whole system."""
    return exc.errno in (errno.EMFILE, errno.ENFILE)


def shortage() -> OSError | None:
    """The error of opening a file now, if it is that no descriptor is left: some failures by it do not say so."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as exc:
        return exc if scarce(exc) else None
    return None


def more() -> None:
    """Raises the soft limit to ``ENOUGH``, or as far as the hard one allows. For a process that is one's own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # macOS allows less than it says; what is too little is said at the start
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
