"""A program of a user, which calls all that is public. It is never run: ``test_typed.py`` has mypy check it as it is
checked in a project that has shardq installed. ``wrong.py`` has the calls that mypy must refuse.
"""
