"""An embedded server: a Valkey under the user's data directory, shared by the processes that use it.

``enter`` finds or starts it, ``leave`` shuts it down when nobody else uses it. Called by the engine for
``embedded://`` URLs, and when no URL is given.

Reading order: ``places`` (the files), ``locks`` (who uses it, and whether it lives), ``probe`` (what it
answers), ``program`` (which server), ``launch`` (its start), ``share`` (entering and leaving).
"""

from __future__ import annotations

from shardq.embedded.places import default_path
from shardq.embedded.share import Embedded, Fsync, enter

__all__ = ["Embedded", "Fsync", "default_path", "enter"]
