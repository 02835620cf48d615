"""An embedded server: a Valkey under the user's data directory, shared by the processes that use it.

``enter`` finds or starts the server, ``locate`` restarts it when it was killed, ``leave`` shuts it down after its last
user. Called by the engine for ``embedded://`` URLs, and when no URL is given.

The server keeps an append-only file, and no snapshots. A write is in the file when it is answered, so a kill does not
undo it; ``fsync`` says when it is on the disk. There is one exception: with ``everysec`` on a disk that takes longer
than a second to flush, writes are answered up to two seconds before they are in the file. When the disk is full, the
server refuses writes, keeps those it has answered in its memory, and stays up when the last user leaves. With
``always`` it ends instead, and has answered nothing that is not on the disk.

Reading order: ``places`` (the files), ``locks`` (who uses the server, and whether it lives), ``process`` (the server
that runs), ``program`` (starting one), ``share`` (entering and leaving).
"""

from __future__ import annotations

from shardq.features.embedded.places import default_path
from shardq.features.embedded.program import ENVIRONMENT, NEVER, never
from shardq.features.embedded.share import Embedded, Fsync, enter

__all__ = ["ENVIRONMENT", "NEVER", "Embedded", "Fsync", "default_path", "enter", "never"]
