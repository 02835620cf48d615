"""The same work on 1, 3 and 6 masters, a master that dies, shards that are added: the cost and the benefit of nodes.

``python -m bench.nodes``. All nodes of these clusters share a machine, so more of them can't make anything faster here.
The measurement shows that a task costs no more CPU where there are more nodes, and that each node does its part of the
work. A model of masters with machines of their own follows from both. Reading order: ``costs`` and ``model`` (more and
more nodes), ``timeline`` and ``flow`` (tasks under watch), ``failover`` and ``expand`` (events), ``show`` and
``__main__``.
"""
