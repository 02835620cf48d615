"""A child that a handler forks is no worker: it ends where the handler ends in it, and its parent settles the task."""

from __future__ import annotations

import pytest

from tests.support.workers import Worker


@pytest.mark.parametrize("where", ["function", "coroutine", "hook", "multiprocessing"])
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_child_ends_with_its_own_code(url: str, name: str, where: str) -> None:
    with Worker("tests.support.forking_handlers", where, url, name) as worker:
        assert worker.said() == "OK"
