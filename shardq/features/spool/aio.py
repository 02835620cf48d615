"""The waits of an engine for asyncio on the spool's file, in a thread. The twin for threads is ``sync``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardq.errors import ShardqError
    from shardq.features.spool.commands import Command
    from shardq.features.spool.spool import Spool
    from shardq.features.spool.stats import SpoolStats


async def add(spool: Spool, commands: Sequence[Command], *, lost: ShardqError | None = None) -> bool:
    """Stores commands, see ``Spool.add``; also if the caller is cancelled meanwhile."""
    return await asyncio.shield(asyncio.wrap_future(spool.submit(commands, lost=lost)))


async def stats(spool: Spool | None) -> SpoolStats | None:
    """The gauge of the engine's spool, if it has one."""
    if spool is None:
        return None
    from shardq.engine import thread_work

    return await thread_work.make(spool.stats, lambda _: None)
