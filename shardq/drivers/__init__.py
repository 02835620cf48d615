"""Carries calls to the servers that serve them, and imports no client of Redis but hiredis, the parser.

Pure, in reading order: ``settings`` (a URL as a value), ``faults`` (what an error means), ``patience`` (what to
do about it, and when to give up), ``slots`` (who serves what), ``discover`` (how that is learnt), ``handshake``
(what is said first on a connection), ``copies`` (what replicas have), ``outages`` (what the log says of nodes that
fail), ``descriptors`` (how many files this process may have open). Then the two drivers, side by side: ``sync`` with
``lanes``, ``ear``, ``routes``, ``pool``, ``wire`` and ``dial``; ``aio`` with ``aioroutes``, ``pipe`` and ``aiodial``.
Both connect with ``resolving`` and ``tls``.
"""
