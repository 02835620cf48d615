"""Real servers and clusters on this machine, for tests, benches, and trying things out.

Reading order: ``servers`` (which programs), ``server`` (one process, and breaking it), ``node``, ``view``, ``moves``
and ``cluster`` (many), ``sentinels``, ``local``, ``command`` and ``entry``. ``warden`` ends what its owner left
behind.
"""
