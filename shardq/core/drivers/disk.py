"""The conversation that waits until a server's disk has all that was written. No I/O.

**WAITAOF can't be believed on every server.** Redis 7.4, and Valkey from 8.0 on, answer it under ``appendfsync
everysec`` as soon as the file has the write: the disk may have it a second later. Redis 7.0 does not know it, and a
user may not be allowed to send it. A client can't see an fsync. But INFO tells whether one is pending, and under
``everysec`` a server begins the next one a second after it began the last, if anything was written. So there:

1. Look until no fsync is pending. The server writes what it has postponed because of one before it answers that look.
   So every fsync that begins from now on has the write.
2. Wait for a second, and a tick of the server's timer. Then that fsync is due, if anything is left to sync.
3. Look once: before it answers, the server begins what is due, even if it has stood still meanwhile. Then look until no
   fsync is pending.

Nothing is confirmed by a look at another run of the server, at one that failed to write or to sync, or at one whose
file was switched off or is not yet complete. If the server began a rewrite of its file on the way, the write is in a
file whose fsync INFO does not count, and all begins again. So it does after any fork, where the server skips fsyncs
while it has a child (``no-appendfsync-on-rewrite``), or may, as its user can't read that setting.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from typing import Any, Literal, NamedTuple

from shardq.core.calls.node_info import answers_early, info_fields, knows_waitaof
from shardq.core.calls.request import pack
from shardq.core.drivers.conversations import Exchange
from shardq.core.drivers.faults import ErrorReply, Fault

Synced = Literal["synced", "late", "never"]
"""``late``: not in time. ``never``: the server's operator has chosen ``appendfsync no``."""

NEXT_MS = 1200
"""The longest time until the next fsync begins, from a look at which none was pending: a second, and the server's timer
ticks ten times a second.
"""

LOOK_MS = 25  # the pause between two looks

_UNHEARD_OF = 1_000_000  # replicas that no server has: a WAIT for them is a pause

_LOOK = Exchange(pack("INFO", "server", "persistence", "stats"), 1)
_SETTINGS = Exchange(pack("CONFIG", "GET", "appendfsync", "no-appendfsync-on-rewrite"), 1)


def synced(within_s: float) -> Generator[Exchange, Any, Synced | ErrorReply | Fault]:
    """Waits for so long until the disk has all that was written on this connection, and on any other before that. An
    error is that of a server which does not answer INFO.
    """
    end = time.monotonic() + within_s
    text = yield _LOOK
    if not isinstance(text, bytes):
        return text  # type: ignore[no-any-return]  # an error or a fault
    fields = info_fields(text)
    told = yield _SETTINGS
    if isinstance(told, Fault):
        return told
    settings = _settings(told)
    policy = settings.get(b"appendfsync")
    if policy == b"no":
        return "never"
    if knows_waitaof(fields):
        reached = yield Exchange(pack("WAITAOF", 1, 0, max(1, int((end - time.monotonic()) * 1000))), 1)
        if isinstance(reached, Fault):
            return reached
        if isinstance(reached, list):
            # True as it is, or early. What is not even early is late: with appendfsync no, which this user can't read,
            # or while the file is being made.
            if reached[0] != 1:
                return "late"
            if policy == b"always" or not answers_early(fields):
                return "synced"
    run, skips = fields.get(b"run_id", b""), settings.get(b"no-appendfsync-on-rewrite") != b"no"
    return (yield from _synced_by_time(end, run, skips=skips))


def _synced_by_time(end: float, run: bytes, *, skips: bool) -> Generator[Exchange, Any, Synced | ErrorReply | Fault]:
    """The same by looks and time. ``skips``: the server may skip fsyncs while it has a child."""
    while True:
        first = yield from _nothing_pending(end, run, skips=skips)
        if not isinstance(first, _Look):
            return first
        if time.monotonic() + NEXT_MS / 1000 > end:
            return "late"
        for step in (_pause(NEXT_MS), _LOOK):
            if isinstance(answer := (yield step), Fault):
                return answer
        last = yield from _nothing_pending(end, run, skips=skips)
        if not isinstance(last, _Look):
            return last
        if last.rewrites == first.rewrites and (last.forks == first.forks or not skips):
            return "synced"


class _Look(NamedTuple):
    """The append-only file at one instant."""

    run: bytes  # the server's process
    is_whole: bool  # it is there, complete but for what comes, and the last write and fsync did not fail
    pending: bool  # an fsync is on its way
    has_child: bool  # a process writes a snapshot, or the file anew
    rewrites: bytes  # how often it was begun anew
    forks: bytes  # how many children there have been

    @classmethod
    def of(cls, text: bytes) -> _Look:
        fields = info_fields(text)
        rewrites = fields.get(b"aof_rewrite_in_progress", b"0") != b"0" or fields.get(b"aof_rewrite_scheduled") == b"1"
        return cls(
            run=fields.get(b"run_id", b""),
            is_whole=fields.get(b"aof_enabled") == b"1"
            and fields.get(b"aof_last_write_status", b"ok") == b"ok"
            # while it is made for the first time
            and not (rewrites and fields.get(b"aof_current_size", b"0") == b"0"),
            pending=fields.get(b"aof_pending_bio_fsync", b"0") != b"0",
            has_child=rewrites or fields.get(b"rdb_bgsave_in_progress", b"0") != b"0",
            rewrites=fields.get(b"aof_rewrites", b""),
            forks=fields.get(b"total_forks", b""),
        )


def _nothing_pending(
    end: float, run: bytes, *, skips: bool
) -> Generator[Exchange, Any, _Look | Synced | ErrorReply | Fault]:
    """Looks until no fsync is pending. Returns that look."""
    while True:
        text = yield _LOOK
        if not isinstance(text, bytes):
            return text  # type: ignore[no-any-return]  # an error or a fault
        look = _Look.of(text)
        if look.run != run:
            return "late"
        if look.is_whole and not look.pending and not (skips and look.has_child):
            return look
        if time.monotonic() > end:
            return "late"
        if isinstance(answer := (yield _pause(LOOK_MS)), Fault):
            return answer


def _settings(told: Any) -> Mapping[bytes, bytes]:
    """The settings of an answer to CONFIG GET; none where the user may not ask."""
    if isinstance(told, dict):
        return told
    return dict(zip(told[::2], told[1::2], strict=True)) if isinstance(told, list) else {}


def _pause(ms: int) -> Exchange:
    return Exchange(pack("WAIT", _UNHEARD_OF, ms), 1)
