"""Every request as a value: the script or command, its keys and arguments, and how its answer reads. No I/O.

``request`` is what a driver needs to know of one, and what the answers of all scripts share. The others are one for
each side of the engine: ``by_id``, ``dispatch``, ``consume``, ``listing``, ``resharding``, ``observe``, ``control`` and
``node_info``.
"""
