"""An embedded server: a Valkey under the user's data directory, shared by the processes that use it.

``enter`` finds or starts it, ``locate`` starts it again when it was killed, ``leave`` shuts it down when nobody else
uses it. Called by the engine for ``embedded://`` URLs, and when no URL is given.

It keeps an append-only file and no snapshots beside it. A write is in the file when it is answered, which a kill does
not undo, and on the disk when ``fsync`` says so. Only where the disk is so slow that a flush lasts longer than a second
does ``everysec`` let writes wait for the file, too, for two seconds at most. With a full disk it refuses writes, keeps
those it has answered for in its memory, and stays up when the last user leaves; with ``always`` it ends instead, and
answers for none.

Reading order: ``places`` (the files), ``locks`` (who uses it, and whether it lives), ``probe`` (what it
answers), ``process`` (which process it is), ``program`` (which server), ``launch`` (its start), ``share`` (entering and
leaving).
"""

from __future__ import annotations

from shardq.embedded.places import default_path
from shardq.embedded.share import Embedded, Fsync, enter

__all__ = ["Embedded", "Fsync", "default_path", "enter"]
