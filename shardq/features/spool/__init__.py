"""The spool: a file that takes pushes, cancels and reschedules while Redis can't be reached.

    >>> engine = shardq.Engine("redis://127.0.0.1:6379/0", name="orders", spool="/var/lib/shop/orders.spool")
    >>> engine.push({"order": 42}).outcome                               # Redis is away
    'spooled'

What was spooled is replayed in its order, under its ids, when Redis is back. ``README.md`` beside this file says what
holds, and ``shardq spool`` looks at a file. Engines without ``spool=`` load nothing of this.
"""
