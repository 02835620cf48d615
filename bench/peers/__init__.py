"""The same work done by shardq and by the queues that a user might choose instead: ``python -m bench.peers``.

Reading order: ``adapter`` (the description of a peer), ``catalogue`` (all of them), ``programs`` (how each pushes and
handles, in an environment of its own; they share ``programs.kit``), ``homes`` (those environments), ``child`` and
``stores`` (processes and servers during a turn), ``turns`` (what is measured), ``outcome`` and ``__main__``.
"""
