"""resize, expand and shrink: another number of shards while everything runs.

``command`` is the commands, ``forecast`` what a change would move, ``watch`` how far one is.
"""
