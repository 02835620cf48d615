"""The dashboard: the state of one engine as web pages, and its operation by buttons.

    >>> dashboard = shardq.dashboard.app(engine, token="a long secret of yours")
    >>> site = Starlette(routes=[Mount("/queue", dashboard)])

``shardq dashboard`` serves it by itself. It needs Starlette: ``pip install 'shardq[dashboard]'``. ``README.md`` beside
this file says what the pages show, how they are protected, and how to add one.
"""

from shardq.core.lazy import TYPE_CHECKING, lazily

if TYPE_CHECKING:
    from shardq.dashboard.application import app
else:
    _NEEDED = "shardq.dashboard needs Starlette and Jinja: pip install 'shardq[dashboard]'"
    __getattr__, __dir__ = lazily(
        __name__,
        {"app": "shardq.dashboard.application"},
        needs=dict.fromkeys(("starlette", "jinja2", "anyio"), _NEEDED),
    )

__all__ = ["app"]
