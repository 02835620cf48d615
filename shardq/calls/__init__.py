"""Every request as a value: the script or command, its keys and arguments, and how its answer reads. No I/O.

One module for each side of the engine: ``produce``, ``by_id``, ``dispatch``, ``consume``, ``limits``, ``clean``,
``resharding``, ``replicas``, ``observe`` and ``control``. ``request`` is what a driver needs to know of a request,
``answers`` what the answers of all scripts share.
"""
