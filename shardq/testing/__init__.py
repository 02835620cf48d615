"""Testing programs that use shardq: an engine on a real server, and a clock that the test moves. A pytest plugin.

    >>> def test_reminder(shardq_engine, shardq_clock):
    ...     shardq_engine.push("hi", delay=86_400)
    ...     shardq_clock.advance(days=1)
    ...     shardq.testing.assert_ready(shardq_engine, payload="hi")

``plugin`` has the fixtures, which pytest finds by itself; ``README.md`` beside this file says what they do.
"""

from shardq.core.lazy import TYPE_CHECKING, lazily

if TYPE_CHECKING:
    from shardq.testing.asserts import StoredTask, assert_not_pushed, assert_pushed, assert_ready, drain, tasks
    from shardq.testing.clock import AsyncClock, Clock
else:
    # pytest loads this package in every run, also in those that use none of it.
    _asserts = ("StoredTask", "assert_not_pushed", "assert_pushed", "assert_ready", "drain", "tasks")
    __getattr__, __dir__ = lazily(
        __name__,
        dict.fromkeys(("AsyncClock", "Clock"), "shardq.testing.clock")
        | dict.fromkeys(_asserts, "shardq.testing.asserts"),
    )

__all__ = ["AsyncClock", "Clock", "StoredTask", "assert_not_pushed", "assert_pushed", "assert_ready", "drain", "tasks"]
