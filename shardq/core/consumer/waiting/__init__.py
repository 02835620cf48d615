"""Waiting for tasks without polling.

A claim that finds every list empty registers its process in ``waiting/TOPIC`` of each of them, and sleeps. From a task
that arrives to the consumer that claims it::

    server                          wakeups                 registry                strategy (of one claim)
      | a list gets a task: draws      |                       |                       | sleeps
      | a process of waiting/TOPIC,    |                       |                       |
      | publishes TOPIC to it          |                       |                       |
      |------------------------------->| wakeup_received       |                       |
      |                                |---------------------->| wakes the waiter that |
      |                                |                       | waits longest ------->| claims
      |                                | no waiter took it within GRACE_S:             |
      |<-------------------------------| wake.lua draws another process                |

``registry`` is state, and ``strategy`` decides, both without I/O; ``wakeups`` does the I/O for all consumers of an
engine. The wake channels are heard by ``shardq.core.subscriber``.
"""
