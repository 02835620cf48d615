"""The dispatcher moves every task at its due time. Each process that called ``start()`` has one.

``dispatcher`` puts the parts together: ``membership`` says which processes live and what they can't reach, ``sharing``
which shards each of them serves, and a ``poller`` thread serves each of them, woken by the shard's bell. ``forwarding``
serves the routes of a poller, and knows which of them fail; ``forwarder`` serves those to lists on other nodes, and
those with a rate. ``retiring`` takes unused topics off the lists, ``resuming`` ends pauses. The engine adds threads of
its own, and what serves the routes that lead elsewhere.
"""

from shardq.core.dispatcher.dispatcher import Dispatcher, RouteServer
from shardq.core.dispatcher.forwarding import RouteFault
from shardq.core.dispatcher.poller import PollerReport
from shardq.core.fleet.lateness import Lateness

__all__ = ["Dispatcher", "Lateness", "PollerReport", "RouteFault", "RouteServer"]
