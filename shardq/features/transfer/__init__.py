"""Tasks as lines of text, out of an engine and into another: ``shardq export`` and ``shardq import``,
``engine.export()`` and ``engine.restore()``.

``lines`` understands a line, ``exporting`` makes the lines of an engine, ``importing`` carries out those of a chunk,
and ``adopting`` stores their tasks. The form of a task is that of ``shardq list --json``
(``features/listing/line.py``). The page for users is ``guide/another-server.md``.
"""

from shardq.features.transfer.importing import Restored

__all__ = ["Restored"]
