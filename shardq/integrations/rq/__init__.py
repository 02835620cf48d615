"""RQ: ``enqueue_in`` and ``enqueue_at`` go through an engine, in place of RQ's scheduler. ``README.md`` tells how."""

from shardq.integrations.rq.delaying import RqDelaying, delay_through

__all__ = ["RqDelaying", "delay_through"]
