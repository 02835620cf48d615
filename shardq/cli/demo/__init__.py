"""demo: many tasks go through the engine, live, and every one of them is accounted for.

``command`` is the command and what it shows, ``trial`` the work and its counts, ``server`` the demo's own server and
the watchdog that clears up after a demo that was killed.
"""
