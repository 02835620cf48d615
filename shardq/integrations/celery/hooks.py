"""The hook in one Celery app: every message of a task passes it on its way out, and every revoke.

It is put in before the app has read its configuration, and reads none: the classes of ``app.amqp`` and ``app.control``
are replaced by subclasses of theirs, of which Celery makes objects at the first use as always. They stay for good, and
change nothing without ``Hook.through``, nor in an app that was pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from celery.app.amqp import AMQP
from celery.app.control import Control
from kombu.utils.imports import symbol_by_name

OPTION = "shardq"
"""``apply_async(…, shardq=False)``: this message goes as Celery sends it."""

Send = Callable[..., Any]
"""``app.amqp.send_task_message``: ``send(producer, name, message, **options)``."""


class Through(Protocol):
    """The replacement of sending and of revoking."""

    def send(self, send: Send, producer: Any, name: str, message: Any, options: dict[str, Any]) -> Any:
        """Sends a message, or sees to it that it is sent in time."""

    def revoke(self, task_ids: Any) -> None:
        """Cancels what waits here. Called before the workers are told."""


class Hook:
    """The hook of one app."""

    def __init__(self) -> None:
        self.through: Through | None = None


_hooks: WeakKeyDictionary[Any, Hook] = WeakKeyDictionary()


def hook_of(app: Any) -> Hook:
    """The hook in this app, which is put in at the first call."""
    if app not in _hooks:
        _hooks[app] = Hook()
        _put_in(app, "amqp", HookedAmqp, _SendsThrough)
        _put_in(app, "control", HookedControl, _RevokesThrough)
    return _hooks[app]


def _through(app: Any) -> Through | None:
    hook = _hooks.get(app)
    return None if hook is None else hook.through


def _put_in(app: Any, part: str, hooked: type, mixin: type) -> None:
    """``hooked`` is for Celery's own class: it has a name, by which an app can be pickled."""
    made = vars(app).get(part)
    base = symbol_by_name(getattr(app, f"{part}_cls")) if made is None else type(made)
    if not issubclass(base, mixin):
        hooked = hooked if base in hooked.__bases__ else type(base.__name__, (mixin, base), {})
        setattr(app, f"{part}_cls", hooked)
        if made is not None:
            made.__class__ = hooked
            vars(made).pop("send_task_message", None)  # cached by the class before


class _SendsThrough:
    app: Any

    def _create_task_sender(self) -> Send:
        send: Send = super()._create_task_sender()  # type: ignore[misc]  # of the class beside this one
        app = self.app

        def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
            through = _through(app)
            if options.pop(OPTION, True) is False or through is None:
                return send(producer, name, message, **options)
            return through.send(send, producer, name, message, options)

        return send_task_message


class _RevokesThrough:
    app: Any

    def revoke(self, task_id: Any, *args: Any, **options: Any) -> Any:
        through = _through(self.app)
        try:
            if through is not None:
                through.revoke(task_id)
        finally:
            answer = super().revoke(task_id, *args, **options)  # type: ignore[misc]  # as above
        return answer


class HookedAmqp(_SendsThrough, AMQP):
    """``app.amqp``."""


class HookedControl(_RevokesThrough, Control):
    """``app.control``."""
