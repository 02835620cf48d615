"""Every operation as a value: which script or command, on which keys, with which arguments, and how its answer reads.

Nothing here does I/O. One module for each side of the engine: ``produce``, ``dispatch``, ``consume``, ``orders`` (by
id), ``observe`` and ``control``; ``request`` says what a driver needs to know, ``answers`` what all scripts share.
"""
