"""Sidekiq: jobs for its Ruby workers, pushed from Python and delayed by an engine. ``README.md`` tells how."""

from typing import TYPE_CHECKING

from shardq.core.lazy import lazily
from shardq.integrations.sidekiq.client_sync import Sidekiq

if TYPE_CHECKING:
    from shardq.integrations.sidekiq.client_aio import AsyncSidekiq
else:
    __getattr__, __dir__ = lazily(__name__, {"AsyncSidekiq": "shardq.integrations.sidekiq.client_aio"})

__all__ = ["AsyncSidekiq", "Sidekiq"]
