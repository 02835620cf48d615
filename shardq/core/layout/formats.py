"""The number of the format in which an engine is stored, and the names of the features that it uses. Both are in its
topology; a build that can't read the one, or does not know one of the others, does nothing.

A *format* is all that ``lua/README.md`` says: keys, records, what a script takes and does. A build reads its own and
the one before. A *feature* is what an engine has that other builds which read the format do not know: a further kind of
key, another form of ids. Neither is changed while a process lives that would not understand it (``engine.versions``),
and a change counts the epoch up: whoever knows the topology from before is refused by every shard, reads it, and stops.
All else can be changed while both builds run.
"""

from __future__ import annotations

from collections.abc import Collection

from shardq.errors import IncompatibleVersion

FIRST = 3
"""The format of the first release."""

FORMAT = 3
"""The format of new engines. Only ``shardq upgrade`` raises the stored format of others."""

FEATURES: frozenset[str] = frozenset()
"""The features that this build knows."""


class WrittenBeforeFirst(IncompatibleVersion):
    """The engine was written by a build of before the first release: nothing reads it, and it can only be removed."""


def check(format: int, features: Collection[str]) -> None:
    """Raises IncompatibleVersion for what this build can't read."""
    if format < FIRST:
        raise WrittenBeforeFirst(
            "the engine was written by a build of before the first release; `shardq engines --remove NAME` removes it"
        )
    oldest = max(FIRST, FORMAT - 1)
    if not oldest <= format <= FORMAT:
        advice = "upgrade shardq here" if format > FORMAT else "use an earlier version, and `shardq upgrade` with it"
        reads = f"{_this_build()} reads " + (f"{oldest} to {FORMAT}" if oldest < FORMAT else f"{FORMAT} alone")
        raise IncompatibleVersion(f"the engine is stored in format {format}, and {reads}: nothing is done; {advice}")
    if unknown := sorted(set(features) - FEATURES):
        raise IncompatibleVersion(
            f"the engine uses {', '.join(map(repr, unknown))}, which {_this_build()} does not know: nothing is done; "
            "upgrade shardq here"
        )


def _this_build() -> str:
    from shardq.version import __version__  # here: it takes a while to load

    return f"this shardq {__version__}"
