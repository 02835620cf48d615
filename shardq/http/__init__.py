"""The door: an engine over HTTP, for programs in any language, with the dashboard for people.

    >>> application = shardq.http.app(engine, tokens="/etc/shardq/tokens")

``shardq serve`` serves it by itself. It needs Starlette: ``pip install 'shardq[serve]'``. ``README.md`` beside this
file says which calls there are, who may call them, and what the answers mean.
"""

from shardq.core.lazy import TYPE_CHECKING, lazily

if TYPE_CHECKING:
    from shardq.http.application import Door, app
else:
    _NEEDED = "shardq.http needs Starlette and Jinja: pip install 'shardq[serve]'"
    __getattr__, __dir__ = lazily(
        __name__,
        dict.fromkeys(("Door", "app"), "shardq.http.application"),
        needs=dict.fromkeys(("starlette", "jinja2", "anyio"), _NEEDED),
    )

__all__ = ["Door", "app"]
