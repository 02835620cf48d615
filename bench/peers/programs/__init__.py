"""How each peer pushes and handles. A program runs in its peer's environment, and imports that, the standard library
and ``kit``; nothing else of this repository is importable there for certain.
"""
