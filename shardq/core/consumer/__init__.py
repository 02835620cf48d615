"""Consumers: claim ready tasks under a lease, and settle them.

The consumers that engines return are in ``aio``, from which ``sync`` is generated. ``claiming`` and ``settling`` are
operations for both.

A consumer waits for tasks without polling. A claim that finds every list empty registers its process in
``waiting/TOPIC`` of each of them, and sleeps. From a task that arrives to the consumer that claims it::

    server                          wakeups                 WaiterRegistry          WaitStrategy (of one claim)
      | a list gets a task: draws      |                       |                       | sleeps
      | a process of waiting/TOPIC,    |                       |                       |
      | publishes TOPIC to it          |                       |                       |
      |------------------------------->| wakeup_received       |                       |
      |                                |---------------------->| wakes the waiter that |
      |                                |                       | waits longest ------->| claims
      |                                | no waiter took it within GRACE_S:             |
      |<-------------------------------| wake.lua draws another process                |

``waiter_registry`` is state, and the ``WaitStrategy`` of ``claim_state`` decides, both without I/O; ``wakeups`` does
the I/O for all consumers of an engine. The wake channels are heard by ``shardq.core.subscriber``.
"""

from typing import TYPE_CHECKING

from shardq.core.consumer.sync import Consumer
from shardq.core.lazy import lazily

if TYPE_CHECKING:
    from shardq.core.consumer.aio import AsyncConsumer
else:
    __getattr__, __dir__ = lazily(__name__, {"AsyncConsumer": "shardq.core.consumer.aio"})

__all__ = ["AsyncConsumer", "Consumer"]
