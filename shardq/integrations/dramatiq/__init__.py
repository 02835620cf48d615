"""Dramatiq: ``send_with_options(delay=…)`` and retries go through an engine. ``README.md`` tells how."""

from shardq.integrations.dramatiq.delaying import DramatiqDelaying, delay_through

__all__ = ["DramatiqDelaying", "delay_through"]
