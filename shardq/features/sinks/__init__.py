"""Sinks: what a forwarded topic feeds, beside the lists and streams of the engine's own servers.

A sender in every dispatcher claims the topic's tasks, hands them to the sink, and acknowledges what it took. ``base``
has what a sink is, for one of your own; ``README.md`` tells which there are.
"""

from shardq.features.sinks.base import AsyncSink, Failed, Message, Refused, Result, Sent, Sink, Unsent

__all__ = ["AsyncSink", "Failed", "Message", "Refused", "Result", "Sent", "Sink", "Unsent"]
