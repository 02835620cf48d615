"""``python -m bench.sinks`` measures how many tasks a second one relay process hands to a sink, from ready in
the engine to taken by the sink and acknowledged, and looks there whether each has arrived.

``destinations`` has the sinks: how each is started, and how what it holds is counted. ``relaying`` is the process whose
relay is measured, ``__main__`` the command.
"""
