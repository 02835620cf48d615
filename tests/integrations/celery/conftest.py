"""An app on the shared server, and a dispatcher for its engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from cluster.server import Server
from shardq import Engine
from tests.integrations.celery.processes import Stand, closing

Make = Callable[..., tuple[Stand, Any]]


@pytest.fixture
def make(single: Server, name: str) -> Iterator[Make]:
    """Makes an app, with the module in this process; a dispatcher of its engine runs in this process, too."""
    with ExitStack() as stack:

        def made(*, dispatching: bool = True, **settings: Any) -> tuple[Stand, Any]:
            stand = Stand(single.url, name, **settings)
            stack.callback(stand.redis.close)
            module = stack.enter_context(closing(stand.module()))
            module.dispatchers = []
            if dispatching:
                dispatcher = stack.enter_context(Engine(single.url, name=name, shards=4))
                dispatcher.start()
                module.dispatchers.append(dispatcher)
            return stand, module

        yield made
