"""Claims that wait in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest

from shardq import Consumer
from tests.consumer.waiters import LONG_S, Claim, idle
from tests.support.servers import Servers


@pytest.fixture
def claims() -> Iterator[Callable[[Consumer], Claim]]:
    """Begins a claim that waits, in a thread."""
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(32))

        def begin(consumer: Consumer, *, max: int = 1) -> Claim:
            stack.callback(consumer.close)
            return threads.submit(consumer.claim, max, wait=LONG_S)

        yield begin


@pytest.fixture
def all_wait(servers: Servers, name: str) -> Callable[..., set[str]]:
    return partial(idle, servers, name)
