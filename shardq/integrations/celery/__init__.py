"""Celery's ETAs through shardq: ``delay_through(app, engine)`` in the module of the app, and nothing else changes.

    >>> from shardq.integrations.celery import delay_through
    >>> delay_through(app, shardq.Engine("redis://127.0.0.1:6379/0", name="delays"), above=60)

``README.md`` beside this file says the rest. ``delaying`` puts calls into one app, decides, pushes and cancels;
``messages`` makes the message that the app's transport would have sent, and tells where it goes.
"""

from shardq.errors import MissingPackage

try:
    import celery as _celery  # noqa: F401  what follows needs it
except ImportError as exc:
    raise MissingPackage("shardq.integrations.celery needs Celery: pip install 'shardq[celery]'") from exc

from shardq.integrations.celery.delaying import CeleryDelaying, delay_through

__all__ = ["CeleryDelaying", "delay_through"]
