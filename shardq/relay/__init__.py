"""What carries commands to the servers that wait elsewhere: in the table of an outbox, or in the file of a spool.

``row`` says what waits, ``sending`` carries it out, ``mover`` decides what goes when, ``confirming`` when it may leave
its store. ``table`` and ``file`` are the stores. ``chain_aio`` has the links of an engine's commands. ``README.md``
beside this file says where a command can wait, and what each place promises.
"""
