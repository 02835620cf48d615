"""The number of the format in which an engine is stored, and the names of the features that it uses. Both are in its
topology; a build that can't read the one, or does not know one of the others, does nothing.

A *format* is all that ``lua/README.md`` says: keys, records, what a script takes and does. A build reads its own and
the one before. A *feature* is what an engine has that earlier builds of the same format do not know: a further kind of
key, another form of ids. Neither is changed while a process lives that would not understand it (``engine.versions``),
and a change counts the epoch up: whoever knows the topology from before is refused by every shard, reads it, and stops.
"""

from __future__ import annotations

from collections.abc import Collection

from shardq.errors import IncompatibleVersion

FORMAT = 2
"""The format of new engines, the first in which an engine has an id, and each change of its topology a word of its own.
Only ``shardq upgrade`` raises the stored format of others.
"""

OLDEST = 0
"""The oldest that is read: of builds from before the first release, which wrote no number. All else is as in 1."""

COLD = "cold"
"""Far tasks wait in a table of a database (``Topology.cold``)."""

SETTINGS = "settings"
"""The settings of each topic are a field of their own (``Topology.topics``). New engines have it; ``shardq
upgrade`` gives it to others: until then their settings are read, and not changed.
"""

KEYS = "keys"
"""Tasks may have keys (``Topology.is_keyed``): a shard has the KEYS of lanes."""

FEATURES: frozenset[str] = frozenset({COLD, KEYS, SETTINGS})
"""The features that this build knows."""


def check(format: int, features: Collection[str]) -> None:
    """Raises IncompatibleVersion for what this build can't read."""
    if not OLDEST <= format <= FORMAT:
        advice = "upgrade shardq here" if format > FORMAT else "use an earlier version, and `shardq upgrade` with it"
        reads = f"{_this_build()} reads {OLDEST} to {FORMAT}"
        raise IncompatibleVersion(f"the engine is stored in format {format}, and {reads}: nothing is done; {advice}")
    if unknown := sorted(set(features) - FEATURES):
        raise IncompatibleVersion(
            f"the engine uses {', '.join(map(repr, unknown))}, which {_this_build()} does not know: nothing is done; "
            "upgrade shardq here"
        )


def _this_build() -> str:
    from shardq.version import __version__  # here: it takes a while to load

    return f"this shardq {__version__}"
