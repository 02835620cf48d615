"""demo: many tasks through the engine, live, with every one of them accounted for.

``command`` is the command and what it shows, ``trial`` the work and its ledger, ``clock`` an independent clock,
``watchdog`` who clears up when it was killed.
"""
