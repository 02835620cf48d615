"""Sinks: what a forwarded topic feeds, beside the lists and streams of the engine's own servers.

``base`` has what a sink is, for one of your own, and ``registry`` finds that of a URL; ``README.md`` tells which there
are. In every dispatcher ``routes`` serves the routes of the topology: a delivery loop with a handler for each
(``handling``), whose ``gate`` tells if the sink may be asked.
"""

from shardq.features.sinks.base import AsyncSink, Failed, Message, Refused, Result, Sent, Sink, Unsent

__all__ = ["AsyncSink", "Failed", "Message", "Refused", "Result", "Sent", "Sink", "Unsent"]
