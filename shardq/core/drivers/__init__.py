"""Carries calls to the servers that serve them. Uses no client of Redis, only hiredis, the parser.

No I/O, in reading order: ``settings`` (a URL as a value), ``faults`` (what an error means), ``retry`` (what to do about
it, and when to give up), ``conversations`` (what is said to one server in several trips, for both drivers),
``discover`` (which node serves which slot, and learning that), ``routing`` (when to learn it, and what a failed try
leads to), ``outages`` (the log of failing nodes), ``descriptors`` (the files that this process may have open).

Then the two drivers: ``sync`` on ``router``, ``pipelines`` and ``owned``, with ``connection``; ``aio`` with
``aioconnection``. Both connect by ``sockets``.
"""
