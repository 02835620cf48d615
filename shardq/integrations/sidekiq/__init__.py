"""Sidekiq: jobs for its Ruby workers, pushed from Python and delayed by an engine. ``README.md`` tells how."""

from shardq.integrations.sidekiq.client import Sidekiq

__all__ = ["Sidekiq"]
