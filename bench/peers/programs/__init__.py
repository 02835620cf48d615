"""Programs push and handle tasks by each peer's API. A program runs in its peer's environment and imports that, the
standard library and ``kit``; nothing else of this repository is certain to be there.
"""
