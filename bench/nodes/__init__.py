"""What nodes cost and what they bring: the same work on 1, 3 and 6 masters, a master that dies, shards that are added.

``python -m bench.nodes``. All nodes of these clusters share a machine, so more of them can't make anything faster here.
What can be shown is that a task costs no more CPU where there are more nodes, and that each node has its part of the
work; from both a model follows for machines of their own. Reading order: ``costs`` and ``model``
(more and more nodes), ``timeline`` and ``flow`` (watching tasks while something happens), ``failover`` and ``expand``
(what happens), ``show`` and ``__main__``.
"""
