"""Carries calls to the servers that serve them, and imports no client of Redis but hiredis, the parser.

Pure, in reading order: ``settings`` (a URL as a value), ``faults`` (what an error means), ``patience`` (what to
do about it, and when to give up), ``slots`` (who serves what), ``discover`` (how that is learnt). Then the two
drivers, side by side: ``sync`` with ``lanes``, ``ear``, ``routes``, ``pool``, ``outages`` and ``wire``; ``aio`` with
``aioroutes`` and ``pipe``. Both open their connections through ``dial``.
"""
