"""The same work done by shardq and by what a user might pick instead: ``python -m bench.peers``.

Reading order: ``adapter`` (what is said of a peer), ``catalogue`` (all of them), ``programs`` (how each pushes and
handles, run in an environment of the peer's own; ``programs.kit`` is what they share), ``homes`` (making those
environments), ``child`` and ``stores`` (what runs meanwhile), ``turns`` (what is measured), ``outcome`` and
``__main__``.
"""
