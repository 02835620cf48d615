"""The dispatcher: what moves every task at its due time. One in each process that called ``start()``.

``dispatcher`` puts the parts together: ``membership`` says which processes live, ``shares`` which shards are ours,
a ``poller`` thread serves each of them, woken by the shard's bell; ``pacing`` decides how much and how long,
``lateness`` keeps how late the tasks were; ``forwarding`` serves the routes of a poller, ``relay`` those to
lists on other nodes and those within a rate, ``faults`` knows which of them fail.
"""

from shardq.dispatcher.dispatcher import Dispatcher
from shardq.dispatcher.faults import RouteFault
from shardq.dispatcher.lateness import Lateness
from shardq.dispatcher.poller import PollerReport, Retention

__all__ = ["Dispatcher", "Retention", "Lateness", "PollerReport", "RouteFault"]
