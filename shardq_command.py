"""The ``shardq`` console script. It stands outside the package, so that Ctrl-C while that is still loading is heard
here: whatever is imported from a package loads all of it first.
"""

from __future__ import annotations


def main() -> int:
    """The exit code: 0 done, 1 refused or failed, 2 not understood, 130 interrupted."""
    try:
        from shardq.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130
